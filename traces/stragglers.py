"""The end of a run: how long requests without a reply are waited for, and what becomes of the rest.

Every request has a moment from which its reply is overdue: its deadline plus a guard, as in `Client`. A run
waits until that moment has passed for every request without a reply and no reply has come for a guard's
length: while replies still come, others may stand behind them in the sockets. What has no reply then is lost.
Where the wait is cut short, a request whose reply could still come is *unanswered*, which says nothing of the
cluster.
"""

from __future__ import annotations

from mainspring.traces.arrival import SECOND_NS
from mainspring.traces.records import NO_DEADLINE, Columns, Records

LOOK_NS = SECOND_NS // 4
"""Between two looks at what has no reply."""


class Stragglers:
    """Decides when a run whose sending has ended is over. Instants are from the start of the workload."""

    def __init__(
        self, records: Records, *, guard_ns: int, best_effort_ns: int, longest_ns: int, ended_ns: int
    ) -> None:
        """``ended_ns`` is when sending ended, ``longest_ns`` the longest wait from then on.

        ``guard_ns`` counts from a deadline, ``best_effort_ns`` from the sending of a request without one.
        """
        self._records = records
        self._guard_ns = guard_ns
        self._best_effort_ns = best_effort_ns
        self._limit_ns = ended_ns + longest_ns
        self._last_reply_ns = ended_ns
        self._overdue_ns = 0
        self._look_ns = ended_ns

    def replied(self, now_ns: int) -> None:
        """Take note that a reply came."""
        self._last_reply_ns = now_ns

    def next_ns(self) -> int:
        """Return when to ask again whether the run is over, if no reply comes."""
        return min(self._limit_ns, self._look_ns)

    def over(self, now_ns: int) -> bool:
        """Return whether nothing more is waited for; then what a reply may still come to is `unanswered`."""
        if not self._records.in_flight:
            return True
        if now_ns >= self._look_ns:
            self._look_ns = now_ns + LOOK_NS
            self._overdue_ns = max(self._from_ns(row) for _, row in self._records.without_reply())
        quiet = now_ns - self._last_reply_ns >= self._guard_ns
        if quiet and now_ns >= self._overdue_ns:
            return True
        if now_ns < self._limit_ns:
            return False
        for key, row in self._records.without_reply():
            if not quiet or now_ns < self._from_ns(row):
                self._records.unanswered(key)
        return True

    def _from_ns(self, row: Columns) -> int:
        """Return the instant from which a request's reply is overdue."""
        sent_ns, slo_ns = int(row["sent_ns"]), int(row["slo_ns"])
        if slo_ns == NO_DEADLINE:
            return sent_ns + self._best_effort_ns
        return int(row["intended_ns"]) + slo_ns + self._guard_ns
