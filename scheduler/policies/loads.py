"""LOADs that a policy asks for: which of its models can be loaded now, and on which worker.

Models come in the order that the policy gives them. One that no worker can take now is passed over for a
while, so that it is not looked at on each event.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod

from mypy_extensions import mypyc_attr

from mainspring.cluster.models import Model
from mainspring.cluster.placements import Placement
from mainspring.cluster.residency import able, at
from mainspring.cluster.workers import Worker
from mainspring.scheduler.alarms import Alarm
from mainspring.scheduler.placing import LoadPlan, plan_load
from mainspring.scheduler.state import SchedulerState

PASSED_OVER_NS = 5_000_000
"""Time for which a model that no worker can load now is not looked at again."""
LOOKED_AT = 8
"""Models that are looked at within that time if none can be loaded."""


@mypyc_attr(allow_interpreted_subclasses=True)
class PolicyLoads(ABC):
    """Answers `Policy.next_load`."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._passed_over: list[Model] = []
        self._look_again_ns = 0

    def next_load(self, now_ns: int) -> LoadPlan | None:
        """Return the LOAD of the first model that some worker can take now."""
        state, passed_over = self._state, self._passed_over
        if passed_over and now_ns >= self._look_again_ns:
            for model in passed_over:
                self.put_back(model)
            passed_over.clear()
        while state.load_room and len(passed_over) < LOOKED_AT:
            taken = self.take(now_ns)
            if taken is None:
                break
            plan = self._plan(now_ns, taken)
            if plan is not None:
                self.planned(taken)
                return plan
            if not passed_over:
                self._look_again_ns = now_ns + PASSED_OVER_NS
                state.alarms.set(self._look_again_ns, Alarm.RETRY)
            passed_over.append(taken)
            self.set_aside(taken)
        return None

    @abstractmethod
    def take(self, now_ns: int) -> Model | None:
        """Take out the model that should be loaded next; None if there is none."""

    @abstractmethod
    def planned(self, model: Model) -> None:
        """Enter that a LOAD of a model that was taken out is about to be sent."""

    @abstractmethod
    def set_aside(self, model: Model) -> None:
        """Keep a model that was taken out from being taken again until it is put back."""

    @abstractmethod
    def put_back(self, model: Model) -> None:
        """Return a model that was set aside to its place."""

    @abstractmethod
    def worker_order(self, model: Model, worker: Worker, begin_ns: int) -> tuple[int, int, int] | None:
        """Return what orders a worker among those with room, the lowest first; None if its LOAD is of no use.

        ``begin_ns`` is when the LOAD could begin.
        """

    def find_pages(self, placement: Placement) -> LoadPlan | None:
        """Find pages for a model, evicting by least recent use."""
        return plan_load(placement)

    def _plan(self, now_ns: int, model: Model) -> LoadPlan | None:
        """Find the first worker that can load a model now."""
        state = self._state
        soonest_ns = state.soonest_ns(now_ns)
        candidates = []
        for worker in able(model, state.with_room()):
            order = self.worker_order(model, worker, worker.load.available_ns(now_ns, soonest_ns))
            if order is not None:
                candidates.append((order, worker.number, worker))
        # The first can nearly always take it.
        heapq.heapify(candidates)
        while candidates:
            plan = self.find_pages(at(state.cluster, model.base, heapq.heappop(candidates)[2]))
            if plan is not None:
                return plan
        return None


def shortest_ns(model: Model, worker: Worker) -> int:
    """Return how long it takes from the begin of a LOAD until a request of a model can be done."""
    kind = worker.kind
    return model.load_times[kind].ns + model.infer_times[kind].ns[0]
