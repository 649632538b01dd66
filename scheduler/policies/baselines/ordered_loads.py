"""The choice of the next model to load, for policies that load in the order of a key: arrival, or deadline.

A model that requests wait for and no worker holds is loaded first, over models that were least recently
used. After those come further copies of models that some workers hold: into free pages only, so that with
enough memory every worker ends up with every model that requests come for.
"""

from __future__ import annotations

import heapq
from abc import abstractmethod
from typing import Final

import msgspec
from mypy_extensions import mypyc_attr

from mainspring.cluster.models import Model
from mainspring.cluster.placements import Placement
from mainspring.cluster.residency import is_everywhere, of_worker
from mainspring.cluster.workers import Worker
from mainspring.scheduler.placing import LoadPlan, plan_load
from mainspring.scheduler.policies.loads import PolicyLoads, shortest_ns
from mainspring.scheduler.policies.ready_queue import ReadyQueuePolicy
from mainspring.scheduler.state import SchedulerState

NEVER_USED_NS: Final = -1
"""Every model was used after this instant, so that none is evicted."""


@mypyc_attr(allow_interpreted_subclasses=True)
class OrderedLoads(PolicyLoads):
    """Models to be loaded, by key; the lower, the sooner."""

    def __init__(self, state: SchedulerState, evicts: bool, serves_late: bool) -> None:
        """``evicts`` says whether models may be loaded over others, ``serves_late`` whether a LOAD is of use
        that is in time for no request.
        """
        super().__init__(state)
        self._evicts = evicts
        self._serves_late = serves_late
        self._heap: list[tuple[int, int, Model]] = []
        self._keys: dict[int, int] = {}
        """The key of each model that is in the heap or was taken out to be planned, by number."""
        self._aside: dict[int, int] = {}
        """The key of each model that was set aside, by number."""

    def add(self, model: Model, key: int) -> None:
        """Have a model loaded by a key; a lower one that it was added by stays."""
        number = model.number
        known = self._keys.get(number)
        if number not in self._aside and (known is None or key < known):
            self._keys[number] = key
            heapq.heappush(self._heap, (key, number, model))
            self._state.wants_loads()

    def drop(self, model: Model) -> None:
        """Have a model not loaded after all."""
        self._keys.pop(model.number, None)
        if self._aside.pop(model.number, None) is not None:
            self._passed_over.remove(model)

    def take(self, now_ns: int) -> Model | None:
        """Take out the model of the lowest key."""
        while self._heap:
            key, number, model = heapq.heappop(self._heap)
            if self._keys.get(number) == key:
                return model
        return None

    def planned(self, model: Model) -> None:
        """Forget the model: it is added again if another LOAD is wanted."""
        del self._keys[model.number]

    def set_aside(self, model: Model) -> None:
        """Keep a model and its key aside until it is put back."""
        self._aside[model.number] = self._keys.pop(model.number)

    def put_back(self, model: Model) -> None:
        """Add a model that was set aside by its key."""
        self.add(model, self._aside.pop(model.number))

    def worker_order(self, model: Model, worker: Worker, begin_ns: int) -> tuple[int, int, int] | None:
        """Prefer a worker that has room for a model, then one that begins soon and holds few models."""
        has_room = worker.pages.free >= model.pages
        if not has_room and not self._evicts:
            return None
        if not self._serves_late:
            dues = model.queue.dues
            if not dues or begin_ns + shortest_ns(model, worker) > dues[-1]:
                return None
        return not has_room, begin_ns, len(worker.lru)

    def find_pages(self, placement: Placement) -> LoadPlan | None:
        """Find pages for a model, over the least recently used if models may be evicted."""
        return plan_load(placement, None if self._evicts else NEVER_USED_NS)


@mypyc_attr(allow_interpreted_subclasses=True)
class OrderedLoadsPolicy(ReadyQueuePolicy):
    """Base of the policies that load models in the order of `load_key`."""

    def __init__(
        self, state: SchedulerState, options: msgspec.Struct, keeps_keys: bool = False, shares: bool = False
    ) -> None:
        super().__init__(state, options, keeps_keys, shares)
        self._absent = OrderedLoads(state, evicts=True, serves_late=self.serves_late)
        self._copies = OrderedLoads(state, evicts=False, serves_late=self.serves_late)

    @abstractmethod
    def load_key(self, model: Model) -> int | None:
        """Return the key of a model that requests wait for; None if none does."""

    def want_load(self, model: Model) -> None:
        """Have a model loaded that requests wait for, if any worker lacks it."""
        key = self.load_key(model)
        if key is None:
            return
        if not model.holders:
            self._absent.add(model, key)
            return
        self._absent.drop(model)
        if not is_everywhere(self.state.cluster, model):
            self._copies.add(model, key)
        else:
            self._copies.drop(model)

    def drop_load(self, model: Model) -> None:
        """Have a model not loaded for which no request waits any more."""
        self._absent.drop(model)
        self._copies.drop(model)

    def residency_changed(self, now_ns: int, placement: Placement) -> None:
        """Enter the model on the worker or void its entry, and have it loaded where that is wanted."""
        super().residency_changed(now_ns, placement)
        self.want_load(placement.model)

    def worker_joined(self, now_ns: int, worker: Worker) -> None:
        """Have loaded what waits: this worker may take it."""
        for model in self.state.cluster.waiting_models():
            for each in model.by_bucket:
                self.want_load(each)

    def worker_left(self, now_ns: int, worker: Worker) -> None:
        """Have loaded what only this worker held."""
        super().worker_left(now_ns, worker)
        for placement in of_worker(worker):
            for each in placement.by_bucket:
                self.want_load(each.model)

    def next_load(self, now_ns: int) -> LoadPlan | None:
        """Return the LOAD of the model of the lowest key that no worker holds, or of a further copy."""
        return self._absent.next_load(now_ns) or self._copies.next_load(now_ns)
