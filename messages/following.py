"""The conversation of a controller that stands by with the one that leads: it is told what must outlive that.

It says `FollowerHello`, is welcomed, and gets the leader's whole memory (`controller.memory`), then each line
that is added.
"""

from __future__ import annotations

import msgspec

from mainspring.messages.peers import Goodbye, Ping, Pong, Refused, Welcome


class FollowerHello(msgspec.Struct, frozen=True, tag="follower_hello"):
    """The first message of a controller that stands by, and its first again after each `Refused`."""

    protocol: int
    controller: str
    """Its address."""


class Remember(msgspec.Struct, frozen=True, tag="remember"):
    """Lines of the leader's memory."""

    lines: tuple[bytes, ...]
    begins: bool = False
    """True if they are the first of all that is in force: what was told before is void."""
    ends: bool = False
    """True if they are the last of it."""


FromFollower = FollowerHello
"""Messages that a controller may receive from one that stands by, beside `Pong` and `Goodbye`."""

ToFollower = Welcome | Refused | Ping | Goodbye | Remember
"""Messages that a controller that stands by may receive from the one that leads."""

Followed = Pong | Goodbye | FollowerHello
"""Messages that it sends."""
