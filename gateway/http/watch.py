"""Looks after connections now and then: which of them take too long?

Each is looked at once in a period, a few at a time, so that ten thousand idle ones delay nobody; a connection
costs nothing for this while it is busy. The timer is set for the next of them, and none while there are none:
a gateway at rest does not wake up for it.
"""

from __future__ import annotations

import asyncio
from time import monotonic_ns
from typing import Final, Protocol

SLOTS: Final = 50
"""Into which a period is divided."""
_LEAST_PERIOD_NS = 100_000_000
_LONGEST_PERIOD_NS = 5_000_000_000
_PARTS = 4
"""A time-out may be noticed late by one part in this many of itself."""


_ROUNDING = 1e-3


class Watched(Protocol):
    """What is looked after."""

    def check(self, now_ns: int) -> bool:
        """Do what is due; return whether to look again."""


class Watch:
    """See the module's docstring; of one event loop, the one that runs when it is made."""

    def __init__(self, shortest_timeout_ns: int) -> None:
        period_ns = min(max(shortest_timeout_ns // _PARTS, _LEAST_PERIOD_NS), _LONGEST_PERIOD_NS)
        self.period_s = period_ns / 1e9
        self._interval_s = self.period_s / SLOTS
        self._slots: list[list[Watched]] = [[] for _ in range(SLOTS)]
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()
        self._done = 0
        """How many intervals have been worked off since then; a slot's turn comes every `SLOTS` of them."""
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0
        """Which interval the timer is set for."""
        self._closed = False

    def add(self, watched: Watched) -> None:
        """Look after this one from now on, for the first time within a period, or a little later."""
        passed = max(self._done, self._passed())
        if self._timer is None or passed < self._next:
            # Nothing was to be done since.
            self._done = passed
        self._slots[passed % SLOTS].append(watched)
        if self._timer is None:
            self._set()

    def close(self) -> None:
        """Look after nothing more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        for slot in self._slots:
            slot.clear()

    def _passed(self) -> int:
        # A timer that is on time may come out a little less than its number.
        return int((self._loop.time() - self._began_s) / self._interval_s + _ROUNDING)

    def _turn(self) -> None:
        now_ns, passed = monotonic_ns(), self._passed()
        for number in range(self._done + 1, min(passed, self._done + SLOTS) + 1):
            slot = self._slots[number % SLOTS]
            looked_at = slot[:]
            # A check may add others.
            slot.clear()
            slot += [each for each in looked_at if each.check(now_ns) and not self._closed]
        self._done = max(self._done, passed)
        self._timer = None
        self._set()

    def _set(self) -> None:
        """Set the timer for the next slot that holds something."""
        if self._closed:
            return
        for number in range(self._done + 1, self._done + SLOTS + 1):
            if self._slots[number % SLOTS]:
                self._next = number
                at_s = self._began_s + number * self._interval_s
                self._timer = self._loop.call_at(at_s, self._turn)
                return
