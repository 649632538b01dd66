"""The network between the processes: each message takes its time, and none overtakes another of its link."""

from __future__ import annotations

from mainspring.simulator.draws import Draws
from mainspring.simulator.faults import Faults


class Link:
    """One direction between two processes."""

    __slots__ = ("_delay_ns", "_draws", "_jitter_ns", "_last_ns")

    def __init__(self, faults: Faults, draws: Draws) -> None:
        self._delay_ns = faults.delay_ns
        self._jitter_ns = faults.delay_jitter_ns
        self._draws = draws
        self._last_ns = 0

    def arrival_ns(self, sent_ns: int) -> int:
        """Return when a message arrives that is sent now, behind those sent before."""
        when_ns = sent_ns + self._delay_ns
        if self._jitter_ns:
            when_ns += int(self._draws.uniform() * self._jitter_ns)
        when_ns = max(when_ns, self._last_ns)
        self._last_ns = when_ns
        return when_ns
