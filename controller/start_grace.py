"""Requests that arrive before the first worker has joined a controller that has just begun to lead."""

from __future__ import annotations

import heapq
from typing import Final

from mainspring.messages.events import QueryArrived, RequestArrived
from mainspring.messages.queries import Piece

LEFT_NS: Final = 5_000_000
"""The time before its deadline at which a held request is rejected, so that the rejection is not late."""


Held = tuple[RequestArrived | QueryArrived, tuple[Piece, ...]]
"""The arrival of a request, or of a query with its pieces."""


class StartGrace:
    """Holds requests that arrive before the first worker has joined a controller that has just started.

    After a restart of the controller, gateways often submit what waits for it before the workers have said
    hello again; a rejection with ``no_worker`` would be wrong a moment later. Time and number are bounded.
    """

    def __init__(self, grace_ns: int, limit: int) -> None:
        self._grace_ns = grace_ns
        self._limit = limit
        self._until_ns: int | None = None
        self._held: dict[int, Held] = {}
        self._due: list[tuple[int, int]] = []
        """A heap of the instants at which held requests are rejected; released requests stay in it."""
        self.over = False
        """True if requests go to the scheduler at once from now on."""

    def __len__(self) -> int:
        return len(self._held)

    def began(self, now_ns: int) -> None:
        """Begin the time in which requests are held; later calls have no effect."""
        if self._until_ns is None:
            self._until_ns = now_ns + self._grace_ns

    def hold(self, now_ns: int, request_id: int, held: Held) -> bool:
        """Hold a request, or a query, until a worker joins, its deadline is near or the time is over.

        Return False if it is not held, so that the caller hands it to the scheduler.
        """
        until_ns = now_ns if self._until_ns is None else self._until_ns
        if self.over or now_ns >= until_ns or len(self._held) >= self._limit:
            return False
        if request_id not in self._held:
            self._held[request_id] = held
            deadline_ns = held[0].deadline_ns
            if deadline_ns is not None:
                heapq.heappush(self._due, (deadline_ns - LEFT_NS, request_id))
        return True

    def next_ns(self) -> int | None:
        """Return when `release` or `given_up` may next return a request; None while no request is held."""
        if self.over or self._until_ns is None or not self._held:
            return None
        return min(self._until_ns, self._due[0][0]) if self._due else self._until_ns

    def given_up(self, now_ns: int) -> list[int]:
        """Return the ids of what must be rejected now, to be in time, and hold it no longer."""
        late = []
        while self._due and self._due[0][0] <= now_ns:
            request_id = heapq.heappop(self._due)[1]
            if self._held.pop(request_id, None) is not None:
                late.append(request_id)
        return late

    def cancel(self, request_id: int) -> None:
        """Forget a request, if it is held."""
        self._held.pop(request_id, None)

    def release(self, now_ns: int, worker_joined: bool) -> list[tuple[int, Held]]:
        """Return the requests that need not be held any longer, in order of arrival."""
        self.over = self.over or worker_joined or (self._until_ns is not None and now_ns >= self._until_ns)
        if not self.over:
            return []
        released = list(self._held.items())
        self._held.clear()
        self._due.clear()
        return released
