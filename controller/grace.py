"""Requests that come before any worker has joined a controller that has just started: held for a moment.

After a controller's restart, gateways submit anew what waits for it, often before the workers have said
hello again; rejecting these with ``no_worker`` would be wrong a moment later. Pure.
"""

from __future__ import annotations

import heapq

from mainspring.messages.events import RequestArrived

LEFT_NS = 5_000_000
"""Time before its deadline at which a held request is given up, so that the refusal is not late."""


class StartGrace:
    """Holds arrivals until the first worker joins, for a bounded time after the start, bounded in number."""

    def __init__(self, grace_ns: int, limit: int) -> None:
        self._grace_ns = grace_ns
        self._limit = limit
        self._until_ns: int | None = None
        self._held: dict[int, RequestArrived] = {}
        self._due: list[tuple[int, int]] = []
        """A heap of when held requests are to be given up; those that were released stay in it."""
        self.over = False
        """Whether arrivals go to the scheduler at once, for good."""

    def __len__(self) -> int:
        return len(self._held)

    def began(self, now_ns: int) -> None:
        """The controller serves from now on; later calls change nothing."""
        if self._until_ns is None:
            self._until_ns = now_ns + self._grace_ns

    def hold(self, now_ns: int, event: RequestArrived) -> bool:
        """Return whether the arrival is held; the caller takes in what is not.

        Each is held until a worker joins, its deadline is near, or the grace is over.
        """
        until_ns = now_ns if self._until_ns is None else self._until_ns
        if self.over or now_ns >= until_ns or len(self._held) >= self._limit:
            return False
        if event.request_id not in self._held:
            self._held[event.request_id] = event
            if event.deadline_ns is not None:
                heapq.heappush(self._due, (event.deadline_ns - LEFT_NS, event.request_id))
        return True

    def next_ns(self) -> int | None:
        """Return when `release` or `given_up` may have something to say; None while nothing is held."""
        if self.over or self._until_ns is None or not self._held:
            return None
        return min(self._until_ns, self._due[0][0]) if self._due else self._until_ns

    def given_up(self, now_ns: int) -> list[RequestArrived]:
        """Return, and hold no longer, what could not be answered in time any more."""
        late = []
        while self._due and self._due[0][0] <= now_ns:
            event = self._held.pop(heapq.heappop(self._due)[1], None)
            if event is not None:
                late.append(event)
        return late

    def cancel(self, request_id: int) -> None:
        """Forget a held request; nothing happens if it is not held."""
        self._held.pop(request_id, None)

    def release(self, now_ns: int, worker_joined: bool) -> list[RequestArrived]:
        """Return what need not be held any longer, in order of arrival."""
        self.over = self.over or worker_joined or (self._until_ns is not None and now_ns >= self._until_ns)
        if not self.over:
            return []
        released = list(self._held.values())
        self._held.clear()
        self._due.clear()
        return released
