"""The messages that tell gateways what can be served, and the words for why a model can't.

Of each model, the controller says why it can't be served now (`Standing`); a model repository says, by way of
the controller, what it was asked to serve and has not yet brought up (`Awaited`). `gateway.core.readiness`
makes one answer of both. A reason begins with one of the words below.
"""

from __future__ import annotations

from typing import Final

import msgspec

STARTING: Final = "starting"
NO_CONTROLLER: Final = "no controller"
NO_WORKER: Final = "no worker"
NO_MODEL: Final = "no model is served"
BEING_COMPILED: Final = "being compiled"
CANT_BE_LOADED: Final = "can't be loaded"
LEAVING: Final = "leaving"


class Standing(msgspec.Struct, frozen=True, tag="standing"):
    """Reports for which of these models the controller could have requests answered; it has told of all
    others before."""

    models: dict[str, str]
    """Reason why a model can't be served, by the scheduler's name of it; empty: it could, as can models
    without an entry."""


class Awaited(msgspec.Struct, frozen=True, tag="awaited"):
    """Models that are to be served, and that gateways take no requests for yet."""

    models: dict[str, str]
    """Reason why a model is not served yet, by the name that clients call it; empty: it is served, or is not
    to be."""
    whole: bool = False
    """True if nothing else is awaited, whatever was said before."""


Told = Standing | Awaited
"""Messages about readiness that gateways receive."""


def why(word: str, detail: str = "") -> str:
    """Return a reason: one of the words, and what there is to say beside it."""
    return f"{word}: {detail}" if detail else word
