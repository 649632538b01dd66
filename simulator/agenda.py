"""What is to happen when, in virtual time; of the same instant in the order in which it was set."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

NEVER_NS = 1 << 62
"""Later than every instant."""

Entry = tuple[int, int, Callable[..., None], tuple[Any, ...]]
"""(instant, count of entries so far, what to call, with what)"""


class Agenda:
    """A heap of calls to come."""

    __slots__ = ("_count", "entries", "now_ns")

    def __init__(self) -> None:
        self.now_ns = 0
        """The present instant."""
        self.entries: list[Entry] = []
        """As a heap; the simulation takes from it."""
        self._count = 0

    def at(self, when_ns: int, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function at an instant."""
        self._count += 1
        heapq.heappush(self.entries, (when_ns, self._count, function, arguments))
