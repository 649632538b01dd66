"""Requests that come before any worker has joined a controller that has just started: held for a moment.

After a controller's restart, gateways submit anew what waits for it, often before the workers have said
hello again; rejecting these with ``no_worker`` would be wrong a moment later. Pure.
"""

from __future__ import annotations

from mainspring.messages.events import RequestArrived


class StartGrace:
    """Holds arrivals until the first worker joins, for a bounded time after the start, bounded in number."""

    def __init__(self, grace_ns: int, limit: int) -> None:
        self._grace_ns = grace_ns
        self._limit = limit
        self._until_ns: int | None = None
        self._held: dict[int, RequestArrived] = {}
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

        What could not wait until the end of the grace is not held: it is to be rejected at once.
        """
        until_ns = now_ns if self._until_ns is None else self._until_ns
        patient = event.deadline_ns is None or event.deadline_ns > until_ns
        if self.over or now_ns >= until_ns or not patient or len(self._held) >= self._limit:
            return False
        self._held.setdefault(event.request_id, event)
        return True

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
        return released
