"""Keeps the collector's pauses to times when they delay nobody, and short.

What is there after a collection is taken out of the next ones (``gc.freeze``): thousands of models'
signatures would be looked through each time. What leaves was frozen while it was there, and nothing but a
collection of everything frees it: that comes when nothing is going on.
"""

from __future__ import annotations

import gc
from types import ModuleType
from typing import Final

COLLECT_NS: Final = 1_000_000_000
"""Least time between two collections while nothing is asked for."""
COLLECT_BUSY_NS: Final = 20_000_000_000
"""Longest time between two while something always is."""


class Garbage:
    """Collects in the loop's pauses; while it is entered, the collector does nothing of itself."""

    def __init__(self, collector: ModuleType = gc) -> None:
        """``collector`` has the functions of `gc`."""
        self._gc = collector
        self._was_enabled = collector.isenabled()
        self._collected_ns = 0
        self._turns = -1
        self._held = 0

    def __enter__(self) -> Garbage:
        self._collect(0)
        self._gc.disable()
        return self

    def __exit__(self, *_: object) -> None:
        self._gc.unfreeze()
        if self._was_enabled:
            self._gc.enable()

    def consider(self, now_ns: int, *, turns: int, in_flight: int, held: int) -> None:
        """Collect if nothing is going on, or if it has been too long; to be called now and then.

        ``turns`` counts what the loop has done, ``in_flight`` requests without an answer, ``held`` the models
        and workers that are known.
        """
        idle = turns == self._turns and not in_flight
        self._turns = turns
        if now_ns - self._collected_ns > (COLLECT_NS if idle else COLLECT_BUSY_NS):
            self._collected_ns = now_ns
            self._collect(held, whole=idle)

    def _collect(self, held: int, *, whole: bool = True) -> None:
        if whole and held < self._held:
            self._gc.unfreeze()
        self._held = held if whole else max(held, self._held)
        self._gc.collect()
        self._gc.freeze()
