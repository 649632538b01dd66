"""Models of a repository as clients know them, and the words for why a model can't be served.

Of each model, the controller says why it can't be served now (`Standing`); a model repository says, by way of
the controller, what it was asked to serve and has not yet brought up (`Awaited`). `gateway.core.readiness`
makes one answer of both. A reason begins with one of the words below.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

STARTING: Final = "starting"
NO_CONTROLLER: Final = "no controller"
NO_WORKER: Final = "no worker"
NO_MODEL: Final = "no model is served"
WAITS: Final = "waits to be compiled"
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


def for_clients(text: str, name: str, public: str) -> str:
    """Return a text in which a model is called what clients call it, ``public``, and not by the scheduler's
    ``name``, which still stands in paths."""
    if name == public or name not in text:
        return text
    return re.sub(rf"(?<![\w/.-]){re.escape(name)}(?![\w/-])", lambda _: public, text)


class ServedModel(msgspec.Struct, frozen=True):
    """A model of a repository as clients know it: which of its versions are served, and with what options.

    A gateway replaces the whole of it at once: a request is for the version of the moment it arrives in.
    """

    name: str
    """Name by which clients call it."""
    versions: dict[int, str]
    """Name of the `ModelSpec` of each version that is served; the highest version is the default. Empty: the
    model is not served any more."""
    slo_ns: int | None = None
    """SLO of requests that bring none; None for the server's default."""
    cache: bool = False
    """True if equal requests may be answered from the prediction cache."""
    config: str = ""
    """Its configuration as JSON, in the field names of the Open Inference Protocol's ``ModelConfig``."""
    priority_levels: int = 0
    """The lowest priority that a request may have, 1 being the highest; 0: requests have what they say."""
    default_priority: int = 0
    """Priority of requests that have none, or one beyond the lowest; only with ``priority_levels``."""
    max_queue_size: int = 0
    """Number of requests that may wait for it; one more is refused. 0: as many as the scheduler's bounds
    allow."""
    labels: dict[str, tuple[str, ...]] = {}
    """Names of the classes that an output's values stand for, by index, empty where one has none; for each
    such output."""
    priority_slos_ns: dict[int, int] = {}
    """SLO of requests of a priority that bring none, in the place of ``slo_ns``; 0: the server's default."""

    def priority_of(self, said: int) -> int:
        """Return the priority of a request that says one, or 0: with ``priority_levels`` one of these."""
        return said if not self.priority_levels or 0 < said <= self.priority_levels else self.default_priority
