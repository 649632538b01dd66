"""Messages about which controller leads, where one may follow another."""

from __future__ import annotations

import msgspec


class Leads(msgspec.Struct, frozen=True, tag="leads"):
    """A controller that stood by leads from now on: the peer is to say hello there."""

    epoch: int


class Deposed(msgspec.Struct, frozen=True, tag="deposed"):
    """A peer's answer to a controller that another one has followed: it leads no more."""

    epoch: int
    """The highest epoch of a controller that has welcomed the peer."""
