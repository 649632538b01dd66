"""Which model to load next, for policies that load in the order of a key: arrival, or deadline.

A model that requests wait for and no worker holds is loaded first, over models that were least recently
used. After those come further copies of models that some workers hold: into free pages only, so that with
enough memory every worker ends up with every model that is asked for.

Models are found by a heap; those that no worker can take now are passed over for a while, and not looked at
on each event.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from mainspring.cluster.placements import Model, Placement
from mainspring.scheduler.alarms import Alarm
from mainspring.scheduler.placing import LoadPlan, plan_load
from mainspring.scheduler.state import SchedulerState

PASSED_OVER_NS = 5_000_000
"""How long a model that no worker can load now is not looked at again."""
LOOKED_AT = 8
"""Models of the lowest keys that are looked at within that time if none can be loaded."""
NEVER_USED_NS = -1
"""Every model was used after this instant, so that none is evicted."""


class OrderedLoads:
    """Models to be loaded, by key; the lower, the sooner."""

    def __init__(self, state: SchedulerState, evicts: bool) -> None:
        """``evicts`` says whether models may be loaded over others."""
        self._state = state
        self._evicts = evicts
        self._heap: list[tuple[int, int, Model]] = []
        self._keys: dict[int, int] = {}
        """The key of each model in the heap, by number."""
        self._passed_over: dict[int, tuple[int, Model]] = {}
        """Models that could not be loaded, by number, with their keys."""
        self._look_again_ns = 0

    def wish(self, model: Model, key: int) -> None:
        """Ask for a model by a key; a wish with a lower one stays."""
        number = model.number
        known = self._keys.get(number)
        if number not in self._passed_over and (known is None or key < known):
            self._keys[number] = key
            heapq.heappush(self._heap, (key, number, model))
            self._state.loads_dirty = True

    def drop(self, model: Model) -> None:
        """Take a wish back."""
        self._keys.pop(model.number, None)
        self._passed_over.pop(model.number, None)

    def next_load(self, now_ns: int, can_help: Callable[[Placement, int], bool]) -> LoadPlan | None:
        """Return the plan of the first wish that a worker with room can fulfil, and take the wish out.

        ``can_help(placement, ready_ns)`` says whether a LOAD there that ends at ``ready_ns`` is of use.
        """
        if now_ns >= self._look_again_ns and self._passed_over:
            again, self._passed_over = self._passed_over, {}
            for key, model in again.values():
                self.wish(model, key)
        heap, keys = self._heap, self._keys
        while heap and self._state.load_room and len(self._passed_over) < LOOKED_AT:
            key, number, model = heapq.heappop(heap)
            if keys.get(number) != key:
                continue
            del keys[number]
            plan = self._plan(now_ns, model, can_help)
            if plan is not None:
                return plan
            if not self._passed_over:
                self._look_again_ns = now_ns + PASSED_OVER_NS
                self._state.alarms.set(self._look_again_ns, Alarm.RETRY)
            self._passed_over[number] = key, model
        return None

    def _plan(self, now_ns: int, model: Model, can_help: Callable[[Placement, int], bool]) -> LoadPlan | None:
        """Find the worker that has room for a model, begins soonest and holds the fewest models."""
        state = self._state
        soonest_ns = state.soonest_ns(now_ns)
        candidates = []
        for name, worker in state.load_room.items():
            placement = model.placements.get(name)
            if placement is None or not placement.loadable:
                continue
            has_room = worker.pages.free >= model.pages
            if not has_room and not self._evicts:
                continue
            begin_ns = worker.load.available_ns(now_ns, soonest_ns)
            if can_help(placement, begin_ns + placement.load_time.ns):
                candidates.append((not has_room, begin_ns, len(worker.lru), worker.number, placement))
        candidates.sort()
        for *_, placement in candidates:
            plan = plan_load(placement, None if self._evicts else NEVER_USED_NS)
            if plan is not None:
                return plan
        return None
