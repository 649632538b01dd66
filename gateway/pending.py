"""One request without an answer, and the timers of all of them. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from mainspring.gateway.config import GatewayConfig, milliseconds
from mainspring.gateway.sends import Connection, Frame
from mainspring.gateway.validation import Accepted

_EARLIER_NS = 1_000_000
_EARLIER_SHARE = 64
"""So much before an answer would be late, or this part of its SLO if that is less, the client is told."""
_CONTROLLER_NS = 20_000_000
"""So long a request waits at least: the controller says when an answer would have been possible."""
_SPARE_TIMERS = 1_024
"""Timers of answered requests that are kept before the heap is made anew without them."""


class Dispatched(msgspec.Struct, frozen=True):
    """One time that the controller sent the request to a worker."""

    action_id: int
    worker: str
    batch_size: int
    cold: bool
    at_ns: int


@dataclass(slots=True, eq=False)
class Pending:
    """A request in the table."""

    serial: int
    """Position in the order of arrival; never changes, while request ids do."""
    connection: Connection
    key: int
    accepted: Accepted
    frames: tuple[Frame, ...]
    """In the order of the model's inputs, kept until the reply is out so that they can be sent again."""
    arrived_ns: int
    deadline_ns: int | None
    """When its caller is to have the answer."""
    due_ns: int | None
    """When the answer is to leave for that: the controller's deadline."""
    expires_ns: int
    """When it is answered with a time-out."""
    input_bytes: int
    digest: bytes | None = None
    """What the cache finds its outputs by; None if they are not kept."""
    cache_ns: int = 0
    """What it took to look for its outputs there, and to keep them."""
    follows: bool = False
    """Whether another request of the same digest is submitted in its place."""
    wake_ns: int = 0
    """Its next timer."""
    request_id: int | None = None
    """What the present controller knows it by; None while there is no controller."""
    ids: list[int] = field(default_factory=list)
    """All that it was ever known by: outputs under an old id are as good."""
    dispatches: list[Dispatched] = field(default_factory=list)

    def story(self) -> str:
        """Return one line for a person that looks for a fault."""
        sent = ", ".join(f"action {d.action_id} on {d.worker}" for d in self.dispatches) or "never dispatched"
        return (
            f"request {self.serial} (key {self.key} of {self.connection}, model {self.accepted.model!r}, "
            f"arrived {self.arrived_ns}, deadline {self.deadline_ns}, id {self.request_id} of {self.ids}, "
            f"timer {self.wake_ns}, {sent})"
        )


class Patience:
    """How long requests wait for outputs at most."""

    def __init__(self, config: GatewayConfig) -> None:
        self._grace_ns = milliseconds(config.grace_ms)
        self._best_effort_ns = milliseconds(config.best_effort_timeout_ms)

    def begin(
        self,
        serial: int,
        now_ns: int,
        connection: Connection,
        key: int,
        accepted: Accepted,
        frames: Sequence[Frame],
        digest: bytes | None,
    ) -> Pending:
        """Return a request that came now; ``frames`` as its client ordered them."""
        ordered = tuple([frames[place] for place in accepted.frame_order])
        deadline_ns = due_ns = None
        expires_ns = now_ns + self._best_effort_ns
        if accepted.slo_ns is not None:
            deadline_ns = now_ns + accepted.slo_ns
            due_ns = deadline_ns - max(0, accepted.back_ns)
            # Who has no use for late outputs is told just before they would be late.
            expires_ns = due_ns - min(_EARLIER_NS, accepted.slo_ns // _EARLIER_SHARE)
            expires_ns = max(expires_ns, now_ns + _CONTROLLER_NS)
            if accepted.late_outputs or expires_ns > deadline_ns + self._grace_ns:
                expires_ns = deadline_ns + self._grace_ns
        return Pending(
            serial=serial,
            connection=connection,
            key=key,
            accepted=accepted,
            frames=ordered,
            arrived_ns=now_ns,
            deadline_ns=deadline_ns,
            due_ns=due_ns,
            expires_ns=expires_ns,
            input_bytes=sum(map(len, ordered)),
            digest=digest,
        )


class Timers:
    """The next timer of each pending request, as a heap that forgets lazily."""

    def __init__(self, pending: Mapping[int, Pending]) -> None:
        """``pending`` is the table by serial: what is not in it any more has no timer."""
        self._pending = pending
        self._heap: list[tuple[int, int]] = []

    def arm(self, request: Pending, wake_ns: int) -> None:
        """Set the request's one timer."""
        request.wake_ns = wake_ns
        heapq.heappush(self._heap, (wake_ns, request.serial))
        if len(self._heap) > 2 * len(self._pending) + _SPARE_TIMERS:
            self._heap = [(each.wake_ns, each.serial) for each in self._pending.values()]
            heapq.heapify(self._heap)

    def next_ns(self) -> int | None:
        """Return the instant of the nearest timer."""
        while self._heap:
            wake_ns, serial = self._heap[0]
            if self._current(wake_ns, serial) is not None:
                return wake_ns
            heapq.heappop(self._heap)
        return None

    def pop_due(self, now_ns: int) -> Pending | None:
        """Return a request whose timer is due, once for each timer."""
        while self._heap and self._heap[0][0] <= now_ns:
            request = self._current(*heapq.heappop(self._heap))
            if request is not None:
                return request
        return None

    def armed(self) -> dict[int, int]:
        """Return the live timers by serial, for `validate`."""
        return {serial: wake_ns for wake_ns, serial in self._heap if self._current(wake_ns, serial)}

    def _current(self, wake_ns: int, serial: int) -> Pending | None:
        request = self._pending.get(serial)
        return request if request is not None and request.wake_ns == wake_ns else None
