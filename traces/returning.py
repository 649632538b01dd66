"""Clients that are refused for want of time and ask once more, with what is left until their deadline.

The simulator and the replayer have them ask by the same rule; a request that comes back is still one request.
"""

from __future__ import annotations

import heapq
from typing import Final

import msgspec

from mainspring.messages.codes import Reason
from mainspring.traces.arrival import Arrival
from mainspring.traces.source import Source

RETRIED: Final = frozenset({Reason.OVERLOADED, Reason.DEADLINE_PASSED, Reason.DEADLINE_UNREACHABLE})
"""Refusals after which such a client asks again: at another moment, there may be time for it."""


def again_ns(now_ns: int, retry_ns: int, deadline_ns: int | None, reason: Reason) -> int | None:
    """Return when a client that is refused now asks again; None if it does not."""
    at_ns = now_ns + retry_ns
    if not retry_ns or reason not in RETRIED or deadline_ns is None or deadline_ns <= at_ns:
        return None
    return at_ns


class Returning:
    """A source whose clients ask once more after a refusal."""

    def __init__(self, source: Source, retry_ns: int) -> None:
        self._source = source
        self._retry_ns = retry_ns

    def next_ns(self) -> int | None:
        """Same as `Source.next_ns`."""
        return self._source.next_ns()

    def take(self) -> Arrival:
        """Same as `Source.take`."""
        return msgspec.structs.replace(self._source.take(), retry_ns=self._retry_ns)

    def completed(self, client: int, now_ns: int) -> None:
        """Same as `Source.completed`."""
        self._source.completed(client, now_ns)

    def done(self, now_ns: int, /) -> bool:
        """Same as `Source.done`."""
        return self._source.done(now_ns)


def returning(source: Source, retry_ns: int) -> Source:
    """Return a source whose clients ask once more ``retry_ns`` after a refusal; with 0 they do not."""
    return Returning(source, retry_ns) if retry_ns else source


class Returns:
    """The requests that may come back, and those about to; instants as in `Arrival.time_ns`."""

    def __init__(self) -> None:
        self._may: dict[int, Arrival] = {}
        self._due: list[tuple[int, int]] = []
        """(instant, key)"""

    def sent(self, key: int, arrival: Arrival) -> None:
        """Note a request that is sent for the first time."""
        if arrival.retry_ns:
            self._may[key] = arrival

    def answered(self, key: int) -> None:
        """Note that a request has its outputs."""
        self._may.pop(key, None)

    def refused(self, now_ns: int, key: int, reason: Reason) -> bool:
        """Note a refusal; return whether the request comes back, so that this is not its reply."""
        arrival = self._may.get(key)
        if arrival is None:
            return False
        deadline_ns = None if arrival.slo_ns is None else arrival.time_ns + arrival.slo_ns
        at_ns = again_ns(now_ns, arrival.retry_ns, deadline_ns, reason)
        if at_ns is None:
            del self._may[key]
            return False
        heapq.heappush(self._due, (at_ns, key))
        return True

    def next_ns(self) -> int | None:
        """Return when the next one is due; None if none is about to come."""
        return self._due[0][0] if self._due else None

    def take(self) -> tuple[int, Arrival]:
        """Return the key and the arrival of the next one, which comes back no more after that."""
        key = heapq.heappop(self._due)[1]
        return key, self._may.pop(key)
