"""The environment that a simulation's parts share: virtual time with what is to happen, chance, and links."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

import numpy as np

from mainspring.simulator.spec import Faults

NEVER_NS = 1 << 62
"""Later than every instant."""

Entry = tuple[int, int, Callable[..., None], tuple[Any, ...]]
"""(instant, count of entries so far, what to call, with what)"""

DRAWS = 1024


class Agenda:
    """The calls that are to be made, as a heap by instant; of one instant in the order of `at`."""

    __slots__ = ("_count", "entries", "now_ns")

    def __init__(self) -> None:
        self.now_ns = 0
        """The present instant."""
        self.entries: list[Entry] = []
        """The heap; the simulation takes from it."""
        self._count = 0

    def at(self, when_ns: int, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function at an instant."""
        self._count += 1
        heapq.heappush(self.entries, (when_ns, self._count, function, arguments))


class Draws:
    """Random numbers from one seeded generator, drawn many at a time: one alone costs ten times as much."""

    __slots__ = ("_normal", "_rng", "_uniform")

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._uniform: list[float] = []
        self._normal: list[float] = []

    def uniform(self) -> float:
        """Return a number drawn evenly from [0, 1)."""
        if not self._uniform:
            self._uniform = self._rng.random(DRAWS).tolist()
        return self._uniform.pop()

    def normal(self) -> float:
        """Return a number from the standard normal distribution."""
        if not self._normal:
            self._normal = self._rng.standard_normal(DRAWS).tolist()
        return self._normal.pop()


class Link:
    """One direction between two processes: each message takes its time, and none overtakes another."""

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
