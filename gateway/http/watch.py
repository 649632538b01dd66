"""Looks after connections now and then: which of them take too long?

Each is looked at once in a period, a few at a time, so that ten thousand idle ones delay nobody; a connection
costs nothing for this while it is busy.
"""

from __future__ import annotations

import asyncio
from time import monotonic_ns
from typing import Protocol

SLOTS = 50
_LEAST_PERIOD_NS = 100_000_000
_LONGEST_PERIOD_NS = 5_000_000_000
_PARTS = 4
"""A time-out may be noticed late by one of so many parts of itself."""


class Watched(Protocol):
    """What is looked after."""

    def check(self, now_ns: int) -> bool:
        """Do what is due; return whether to look again."""


class Watch:
    """A wheel of connections; see the module's docstring."""

    def __init__(self, shortest_timeout_ns: int) -> None:
        period_ns = min(max(shortest_timeout_ns // _PARTS, _LEAST_PERIOD_NS), _LONGEST_PERIOD_NS)
        self._interval_s = period_ns / SLOTS / 1e9
        self._slots: list[list[Watched]] = [[] for _ in range(SLOTS)]
        self._at = 0
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(self._interval_s, self._turn)

    def add(self, watched: Watched) -> None:
        """Look after this one from now on."""
        self._slots[self._at - 1].append(watched)

    def close(self) -> None:
        """Look after nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        for slot in self._slots:
            slot.clear()

    def _turn(self) -> None:
        now_ns = monotonic_ns()
        self._slots[self._at] = [each for each in self._slots[self._at] if each.check(now_ns)]
        self._at = (self._at + 1) % SLOTS
        if self._timer is not None:
            self._timer = self._loop.call_later(self._interval_s, self._turn)
