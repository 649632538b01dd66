"""LOADs by what they bring: requests saved for each millisecond of the way to the device.

The load priority of Clockwork's appendix B is unfulfilled work in device time. Divided by a request's time
it is unfulfilled requests; less what their executions cost (`ExecPrice`) and divided by the LOAD's own time,
what a LOAD brings for what it costs: a model of long executions and large weights does not go before many
small ones, and one that would displace more requests than it serves is not loaded.

Evicted are the models whose loss is least: what those that wait are worth, and those that will come before
the model could be back. That requests wait says little by itself: where some have to be dropped, those of
the models that are worth least wait longest.
"""

from __future__ import annotations

from typing import Final

from mainspring.cluster.placements import Model, Placement, Worker
from mainspring.scheduler.alarms import Alarm
from mainspring.scheduler.placing import LoadPlan, plan_load
from mainspring.scheduler.policies.demand import DemandTracker
from mainspring.scheduler.policies.demand_loads import PASSED_OVER_NS, DemandLoads
from mainspring.scheduler.policies.mainspring.constants import EVICTED_FOR_NS, WORTH_SCALE
from mainspring.scheduler.policies.mainspring.exec_price import ExecPrice
from mainspring.scheduler.policies.mainspring.popularity import Popularity
from mainspring.scheduler.policies.notes import model_note
from mainspring.scheduler.state import SchedulerState

_RETRY: Final = Alarm.RETRY


class WorthTracker(DemandTracker):
    """Orders models by what a LOAD of theirs brings for each millisecond that it takes."""

    def __init__(self, state: SchedulerState, price: ExecPrice) -> None:
        super().__init__(state)
        self._alarms = state.alarms
        self._price = price
        self._look_again_ns = 0

    def worth(self, model: Model, priority_ns: int) -> int:
        """Return the worth of unfulfilled rows for each nanosecond of LOAD, scaled; at least 1.

        1 stands for a LOAD that is not worth its executions: it keeps its place behind all others.
        """
        cost = single_ns = load_ns = 0
        for kind, times in model.infer_times.items():
            here = times.ns[0] * model.load_times[kind].ns
            if not cost or here < cost:
                cost, single_ns, load_ns = here, times.ns[0], model.load_times[kind].ns
        rows = priority_ns / max(1, single_ns) * model.spec.batch_sizes[0]
        return max(1, int(WORTH_SCALE * self._price.worth(model, rows) / max(1, load_ns)))

    def take(self, now_ns: int) -> Model | None:
        """Take out the model whose LOAD brings most; None too if no LOAD is worth its executions for now."""
        model = super().take(now_ns)
        demand = None if model is None else model_note(model).demand
        if model is None or demand is None:
            return None
        if self.worth(model, demand.priority_ns) > 1:
            return model
        self.put_back(model)
        if now_ns >= self._look_again_ns:
            # The price falls as time passes, with nothing else to say so.
            self._look_again_ns = now_ns + PASSED_OVER_NS
            self._alarms.set(self._look_again_ns, _RETRY)
        return None


class WorthLoads(DemandLoads):
    """Answers `Policy.next_load` by worth, and evicts by loss."""

    def __init__(self, state: SchedulerState, popularity: Popularity, price: ExecPrice) -> None:
        super().__init__(state)
        self._demand = WorthTracker(state, price)
        self._popularity = popularity
        self._price = price

    def plan(self, placement: Placement) -> LoadPlan | None:
        """Find pages for a model that requests wait for."""
        return plan_load(placement, victims=self._victims(placement.worker))

    def _victims(self, worker: Worker) -> list[Placement]:
        """Return who may be evicted, those of the least loss first: none with work in flight."""
        away = self._popularity.expected(EVICTED_FOR_NS)
        losses = [
            (self._loss(placement, away), placement.model.number, placement)
            for placement in worker.lru.values()
            if not placement.infers
        ]
        losses.sort()
        return [placement for _, _, placement in losses]

    def _loss(self, placement: Placement, away: float) -> float:
        """Return what an eviction loses; ``away`` times `ModelNote.popularity` are the requests to expect.

        A copy that is one of several is that part of it.
        """
        model, price = placement.model, self._price
        loss = away * model_note(model).popularity * price.worth_each(model)
        if model.queue.rows:
            loss += price.worth(model, float(model.queue.rows))
        if model.backlog:
            loss += len(model.backlog)
        return loss / max(1, len(model.usable))
