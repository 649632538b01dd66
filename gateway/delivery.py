"""Outcomes to the front ends that brought the requests in, each kept from the faults of the others.

Whatever a front end raises ends with what it was given: it goes to the log and is counted, and everybody
else's answers go out as if nothing had happened.
"""

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
    """Whoever brought requests in: gets what they came to."""

    def answer(self, answer: Answer) -> None:
        """Send a request's outputs."""

    def refuse(self, refusal: Refuse) -> None:
        """Send a request's refusal."""

    def reply(self, connection: Connection, message: Reply) -> None:
        """Send the reply to a wish."""


class Delivery:
    """Hands outcomes over; see the module's docstring."""

    def __init__(self, counts: Counter[str]) -> None:
        """``counts`` gets ``front_end_failures``."""
        self._counts = counts
        self.front_ends: dict[str, FrontEnd] = {}
        """By the name that their connections bear."""

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
        """Hand the reply to a wish over."""
        try:
            self.front_ends[connection.front_end].reply(connection, reply)
        except Exception:
            self._failed(connection, "a reply")

    def _failed(self, connection: Connection, what: str) -> None:
        self._counts["front_end_failures"] += 1
        log.exception("the front end %r failed at %s", connection.front_end, what)
