"""A whole run at a glance: what became of its requests, in steps of equal length. Pure.

However long the run is there are at most `MOST` steps: when it outgrows them, two become one.
"""

from __future__ import annotations

from mainspring.console.payloads import Overview
from mainspring.telemetry.percentiles import DurationHistogram

FIRST_STEP_NS = 1_000_000_000
MOST = 480
"""Most steps: about as many as a slider has pixels to distinguish."""


class _Step:
    """Counts of what happened within one step."""

    __slots__ = ("in_time", "late", "latencies", "offered", "rejected")

    def __init__(self) -> None:
        self.offered = self.in_time = self.late = self.rejected = 0
        self.latencies = DurationHistogram()

    def merge(self, other: _Step) -> None:
        """Add what happened in another step."""
        self.offered += other.offered
        self.in_time += other.in_time
        self.late += other.late
        self.rejected += other.rejected
        self.latencies.merge(other.latencies)


class RunOverview:
    """Counts the requests of a run as they end."""

    def __init__(self, first_ns: int) -> None:
        """The run begins at ``first_ns``."""
        self._first_ns = first_ns
        self._step_ns = FIRST_STEP_NS
        self._steps: list[_Step] = []

    def ended(self, arrived_ns: int, ended_ns: int, outcome: str) -> None:
        """A request has ended: ``in_time``, ``late``, ``rejected`` or ``cancelled``."""
        self._at(arrived_ns).offered += 1
        step = self._at(ended_ns)
        if outcome == "rejected":
            step.rejected += 1
        elif outcome in ("in_time", "late"):
            step.in_time += outcome == "in_time"
            step.late += outcome == "late"
            step.latencies.add(ended_ns - arrived_ns)

    def payload(self, reached_ns: int, *, whole: bool) -> Overview:
        """Return what was counted up to ``reached_ns``, the run's end if the run is ``whole``."""
        steps = self._steps
        return Overview(
            first_ns=self._first_ns,
            step_ns=self._step_ns,
            reached_ns=reached_ns,
            whole=whole,
            offered=[each.offered for each in steps],
            in_time=[each.in_time for each in steps],
            late=[each.late for each in steps],
            rejected=[each.rejected for each in steps],
            p99_ms=[each.latencies.percentile_ms(99) for each in steps],
        )

    def _at(self, at_ns: int) -> _Step:
        index = max(0, at_ns - self._first_ns) // self._step_ns
        while index >= MOST:
            self._halve()
            index = max(0, at_ns - self._first_ns) // self._step_ns
        while len(self._steps) <= index:
            self._steps.append(_Step())
        return self._steps[index]

    def _halve(self) -> None:
        """Let two steps become one."""
        steps, self._step_ns = self._steps, 2 * self._step_ns
        for even, odd in zip(steps[::2], steps[1::2], strict=False):
            even.merge(odd)
        self._steps = steps[::2]
