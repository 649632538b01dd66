"""Bindings of weights at pages, kept for the next model that comes there.

A binding says where an executable's weights are, not what they are. So it serves every model of the
executable whose weights file is laid out alike, whenever its weights are in the same pages in the same
order: then a LOAD has nothing to bind, which for 5 MB in 52 tensors is an eighth of the copy's time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from mainspring.worker.engines.cpu_programs import Bound, Plan

REMEMBERED = 1024
"""Bindings that are kept, at 400 bytes for each tensor; beyond, the one that was longest not loaded goes."""

Pages = tuple[int, ...]


class Placements:
    """Bindings by plan and pages; of several threads each may call."""

    def __init__(self, limit: int = REMEMBERED) -> None:
        self._limit = limit
        self._bound: OrderedDict[tuple[Plan, Pages], Bound] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._bound)

    def find(self, plan: Plan, pages: Pages) -> Bound | None:
        """Return what is bound there, or None. Two models are never in the same pages at a time."""
        key = plan, pages
        with self._lock:
            bound = self._bound.get(key)
            if bound is not None:
                self._bound.move_to_end(key)
            return bound

    def keep(self, plan: Plan, pages: Pages, bound: Bound) -> None:
        """Remember a binding."""
        with self._lock:
            self._bound[plan, pages] = bound
            if len(self._bound) > self._limit:
                self._bound.popitem(last=False)

    def forget(self, executable: str) -> None:
        """Forget all bindings of an executable, by its hash: it is to be closed."""
        with self._lock:
            for key in [key for key in self._bound if key[0].info.executable == executable]:
                del self._bound[key]
