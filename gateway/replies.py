"""Hand each reply to the front end that brought its request in."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Protocol

from mainspring.gateway.core.admin import Reply
from mainspring.gateway.core.effects import Answer, Connection, Refuse
from mainspring.messages.codes import Reason

log = logging.getLogger("mainspring.gateway")

_NO_ANSWER = "the gateway failed at this answer; its log says how"


class FrontEnd(Protocol):
    """A protocol's front end: it brings requests in, and gets the reply to each.

    An error that a front end raises ends with the reply at hand: it is logged and counted, and all other
    replies go out as usual.
    """

    def answer(self, answer: Answer) -> None:
        """Send a request's outputs."""

    def refuse(self, refusal: Refuse) -> None:
        """Send a request's refusal."""

    def reply(self, connection: Connection, message: Reply) -> None:
        """Send the reply to an administrative request."""


class Replies:
    """Hands each reply to its front end."""

    def __init__(self, counts: Counter[str]) -> None:
        """``counts`` gets how often a front end failed."""
        self.front_ends: dict[str, FrontEnd] = {}
        """The front ends, by the name in their connections."""
        self._counts = counts

    def answer(self, answer: Answer) -> None:
        """Hand outputs over; if that fails, a refusal."""
        try:
            self.front_ends[answer.connection.front_end].answer(answer)
        except Exception:
            self._failed(answer.connection, "an answer")
            self.refuse(Refuse(answer.connection, answer.key, Reason.WORKER_FAILED, _NO_ANSWER))

    def refuse(self, refusal: Refuse) -> None:
        """Hand a refusal over."""
        try:
            self.front_ends[refusal.connection.front_end].refuse(refusal)
        except Exception:
            self._failed(refusal.connection, f"a refusal ({refusal.reason})")

    def reply(self, connection: Connection, reply: Reply) -> None:
        """Hand the reply to an administrative request over."""
        try:
            self.front_ends[connection.front_end].reply(connection, reply)
        except Exception:
            self._failed(connection, "a reply")

    def _failed(self, connection: Connection, what: str) -> None:
        self._counts["front_end_failures"] += 1
        log.exception("the front end %r failed at %s", connection.front_end, what)
