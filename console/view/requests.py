"""Requests: those that have not ended, and the newest of those that have."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec

from mainspring.messages.evidence import Evidence, RejectEvidence
from mainspring.messages.model import ModelSpec

WAITING, RUNNING = "waiting", "running"
IN_TIME, LATE, REJECTED, CANCELLED, LOST = "in_time", "late", "rejected", "cancelled", "lost"
NOTABLE = (REJECTED, LATE, LOST)
"""Outcomes that somebody may ask about, and that are remembered in a ring of their own."""


class Request(msgspec.Struct, gc=False):
    """One request."""

    id: int
    model: str
    rows: int
    priority: int
    arrived_ns: int
    arrived_seq: int
    """Which record of the stream its arrival was (`View.seq`)."""
    deadline_ns: int | None
    spec: ModelSpec | None = None
    """Its model as it was when it arrived."""
    outcome: str = WAITING
    reason: str = ""
    detail: str = ""
    earliest_finish_ns: int | None = None
    """As `Reject.earliest_finish_ns`."""
    evidence: Evidence | RejectEvidence | None = None
    """What its last INFER, or its rejection, was computed from."""
    ended_ns: int = 0
    """End of EXEC, or when it was rejected, cancelled, or found to be lost; 0 before."""
    ended_seq: int = 0
    """Which record of the stream that was; 0 before."""
    cold: bool = False
    """Whether its model was resident nowhere when it arrived, as its INFER says."""
    worker: str = ""
    """Where its last INFER was sent."""
    action_id: int = 0
    """That INFER; 0 if there was none."""
    tries: tuple[tuple[str, int], ...] = ()
    """Its INFERs that ended without outputs: worker, and which record of the stream the result was."""

    @property
    def latency_ns(self) -> int | None:
        """From arrival at the controller to EXEC's end; None unless it was executed."""
        return self.ended_ns - self.arrived_ns if self.outcome in (IN_TIME, LATE) else None


class RequestBook:
    """All requests that are remembered; who waits in which queue is the models' part."""

    def __init__(self, notable: int, others: int) -> None:
        """At most so many that ended are remembered: rejected, late or lost, and others."""
        self.open: dict[int, Request] = {}
        """By id, in the order of arrival."""
        self._most = {True: notable, False: others}
        self._rings: dict[bool, deque[Request]] = {True: deque(), False: deque()}
        self._ended: dict[int, Request] = {}

    def get(self, request_id: int) -> Request | None:
        """Return a request by id."""
        return self.open.get(request_id) or self._ended.get(request_id)

    def ended(self, request_id: int) -> bool:
        """Return whether a request is remembered to have ended."""
        return request_id in self._ended

    def end(self, request: Request) -> None:
        """Move a request, whose outcome and end are set, to those that ended."""
        self.open.pop(request.id, None)
        notable = request.outcome in NOTABLE
        ring = self._rings[notable]
        ring.append(request)
        self._ended[request.id] = request
        if len(ring) > self._most[notable]:
            self._forget(ring.popleft())

    def newest(self, outcomes: Iterable[str], model: str = "") -> Iterator[Request]:
        """Yield ended requests of these outcomes, the newest first."""
        wanted = tuple(outcomes)
        rings = [reversed(self._rings[key]) for key in (True, False) if self._concerns(key, wanted)]
        merged = rings[0] if len(rings) == 1 else _merged(rings)
        for request in merged:
            if request.outcome in wanted and (not model or request.model == model):
                yield request

    def ids(self) -> Iterator[int]:
        """Yield the ids of all that are remembered."""
        yield from self.open
        yield from self._ended

    def forget(self, before_ns: int) -> None:
        """Forget what ended before an instant."""
        for ring in self._rings.values():
            while ring and ring[0].ended_ns < before_ns:
                self._forget(ring.popleft())

    def older(self, before_ns: int, most: int) -> list[Request]:
        """Return open requests that arrived before an instant, and the oldest of more than ``most``."""
        over = len(self.open) - most
        found = []
        for index, request in enumerate(islice(self.open.values(), max(over, 1_000))):
            if request.arrived_ns < before_ns or index < over:
                found.append(request)
        return found

    def __len__(self) -> int:
        """Return how many requests are remembered."""
        return len(self.open) + len(self._ended)

    def _forget(self, request: Request) -> None:
        if self._ended.get(request.id) is request:
            del self._ended[request.id]

    @staticmethod
    def _concerns(notable: bool, wanted: tuple[str, ...]) -> bool:
        return any((outcome in NOTABLE) == notable for outcome in wanted)


def _merged(rings: list[Iterator[Request]]) -> Iterator[Request]:
    """Yield requests of several rings, the one that ended with the newest record first."""
    heads = [(ring, next(ring, None)) for ring in rings]
    while any(head is not None for _, head in heads):
        newest = max(range(len(heads)), key=lambda each: -1 if (h := heads[each][1]) is None else h.ended_seq)
        ring, request = heads[newest]
        assert request is not None
        yield request
        heads[newest] = ring, next(ring, None)
