"""A process's clock: off from true time, at another rate, and stepping."""

from __future__ import annotations

_MILLION = 1_000_000


class Clock:
    """Translates between true time and what one process reads; all in nanoseconds."""

    __slots__ = ("_asked_ns", "_at_ns", "_read_ns", "_reads_ns", "ppm", "stepped_ns")

    def __init__(self, offset_ns: int = 0, ppm: int = 0) -> None:
        """``ppm``: microseconds that it gains a second."""
        self._at_ns, self._reads_ns = 0, offset_ns
        self._asked_ns, self._read_ns = 0, offset_ns
        """The last answer of `reads`: a turn asks many times."""
        self.ppm = ppm
        self.stepped_ns = -1
        """True instant of the last step; negative before one."""

    def reads(self, true_ns: int) -> int:
        """Return what it reads at an instant."""
        if true_ns != self._asked_ns:
            past_ns = true_ns - self._at_ns
            self._asked_ns = true_ns
            self._read_ns = self._reads_ns + past_ns + past_ns * self.ppm // _MILLION
        return self._read_ns

    def true_ns(self, reads_ns: int) -> int:
        """Return the first instant at which it reads this or more, if it does not step before."""
        past_ns = (reads_ns - self._reads_ns) * _MILLION // (_MILLION + self.ppm)
        while self._reads_ns + past_ns + past_ns * self.ppm // _MILLION < reads_ns:
            past_ns += 1
        return self._at_ns + past_ns

    def step(self, true_ns: int, by_ns: int) -> None:
        """Have it jump; a monotonic clock only jumps forward, as over a suspension."""
        self._reads_ns, self._at_ns = self.reads(true_ns) + by_ns, true_ns
        self._asked_ns, self._read_ns = true_ns, self._reads_ns
        self.stepped_ns = true_ns
