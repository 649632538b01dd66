"""Outcomes of requests in each second, and over the last 10, 60 and 300 seconds."""

from __future__ import annotations

from collections import deque

from mainspring.telemetry.percentiles import DurationHistogram

SECOND_NS = 1_000_000_000
WINDOWS = (10, 60, 300)
"""Lengths in whole seconds for which totals are kept."""


class Totals:
    """Counts of what happened within some time."""

    __slots__ = ("cold", "in_time", "late", "latencies", "offered", "rejected", "slos", "turned_away")

    def __init__(self) -> None:
        self.offered = 0
        """Requests that arrived."""
        self.in_time = 0
        """Requests whose EXEC ended by their deadline, best-effort ones included."""
        self.late = 0
        self.cold = 0
        """Number of the requests in time and late whose model was resident nowhere when they arrived."""
        self.rejected: dict[str, int] = {}
        """Number of rejected requests by reason."""
        self.turned_away: dict[str, int] = {}
        """Number of requests that gateways refused themselves, by reason: they are not among those that
        arrived."""
        self.latencies = DurationHistogram()
        """Times from arrival to EXEC's end of requests that ended in time or late."""
        self.slos = DurationHistogram()
        """Times given to the requests that arrived with a deadline."""

    @property
    def rejections(self) -> int:
        """Requests that were rejected, for whatever reason."""
        return sum(self.rejected.values())

    def add(self, other: Totals, sign: int = 1) -> None:
        """Add what happened in another time, or take it off again with a ``sign`` of -1."""
        self.offered += sign * other.offered
        self.in_time += sign * other.in_time
        self.late += sign * other.late
        self.cold += sign * other.cold
        _add(self.rejected, other.rejected, sign)
        _add(self.turned_away, other.turned_away, sign)
        self.latencies.merge(other.latencies, sign)
        self.slos.merge(other.slos, sign)


def _add(totals: dict[str, int], counts: dict[str, int], sign: int) -> None:
    for reason, count in counts.items():
        total = totals.get(reason, 0) + sign * count
        if total:
            totals[reason] = total
        else:
            totals.pop(reason, None)


class Second:
    """A whole second that is over, as its series shows it."""

    __slots__ = ("p99_ms", "totals")

    def __init__(self, totals: Totals) -> None:
        self.totals = totals
        self.p99_ms = totals.latencies.percentile_ms(99)


class Seconds:
    """The second that is going on, those that are over, and totals of the last ones."""

    def __init__(self, keep: int) -> None:
        """Keep ``keep`` seconds, at least as many as the longest window has."""
        self._keep = max(keep, WINDOWS[-1])
        self.now = Totals()
        """Totals of the second that is going on."""
        self.number = -1
        """Number of that second on the controller's clock; -1 before the first `reach`."""
        self.past: deque[Second] = deque()
        """The seconds before it, the oldest first."""
        self.windows = {length: Totals() for length in WINDOWS}
        """Totals of the last whole seconds."""

    def reach(self, number: int) -> None:
        """Come to a second of the controller's clock; one that is over already changes nothing."""
        if self.number < 0:
            self.number = number
        if number - self.number > self._keep:
            self.__init__(self._keep)  # type: ignore[misc]
            self.number = number
        while self.number < number:
            self._close()

    def in_window(self, length: int) -> int:
        """Return how many whole seconds a window holds: fewer than its length at first."""
        return min(length, len(self.past))

    def _close(self) -> None:
        past, second = self.past, Second(self.now)
        past.append(second)
        for length, totals in self.windows.items():
            totals.add(second.totals)
            if len(past) > length:
                totals.add(past[-1 - length].totals, -1)
        if len(past) > self._keep:
            past.popleft()
        self.now = Totals()
        self.number += 1
