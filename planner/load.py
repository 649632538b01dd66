"""The detection of changes of a cluster's load, by its rate and its queue (Ribbon, section 4)."""

from __future__ import annotations

from collections import deque

from mainspring.planner.live import QUEUES, Counts

SPAN_S = 10.0
"""Rates are means over this time."""
CHANGED = 0.15
"""A rate that differs by more than this part is another load."""
SURE = 4.0
"""A rate that differs by fewer standard deviations of a Poisson number of requests is the same load."""
LOOKS = 3
"""Looks in a row at which a queue is too long."""
QUICK_S = 2.0
"""Shortest time that a rate is taken over, in seconds, where the queue says that it has changed."""


class LoadWatch:
    """Takes a cluster's counts from time to time, and says when they are of another load."""

    def __init__(self, rate: float, slo_s: float) -> None:
        """``rate`` is the load that was planned for, in requests a second; ``slo_s`` their mean SLO."""
        self._rate = rate
        self._most_queued = QUEUES * rate * slo_s
        self._seen: deque[tuple[float, int]] = deque()
        self._long = 0

    def take(self, now_s: float, counts: Counts) -> float | None:
        """Return the rate if it is another load than what was planned for, else None.

        A queue that stays long says so before the mean rate of `SPAN_S` does.
        """
        self._seen.append((now_s, counts.arrived))
        while len(self._seen) > 2 and now_s - self._seen[1][0] >= SPAN_S:
            self._seen.popleft()
        self._long = self._long + 1 if counts.queued > self._most_queued else 0
        span_s, rate = self._mean(QUICK_S if self._long >= LOOKS else SPAN_S)
        if span_s is None:
            return None
        apart = abs(rate - self._rate)
        sure = SURE * (max(self._rate, 1e-9) / span_s) ** 0.5
        return rate if apart > max(CHANGED * self._rate, sure) else None

    def _mean(self, least_s: float) -> tuple[float | None, float]:
        """Return the time and the mean rate over the shortest past of at least this length."""
        now_s, arrived = self._seen[-1]
        for when_s, before in reversed(self._seen):
            if now_s - when_s >= least_s:
                return now_s - when_s, (arrived - before) / (now_s - when_s)
        return None, 0.0
