"""The default policy's LOADs: what a LOAD is worth, whom it displaces, and further copies of busy models.

The load priority of Clockwork's appendix B is unfulfilled work in device time. Divided by a request's time
it is unfulfilled requests; less what their executions cost (`ExecPrice`) and divided by the LOAD's own time
it is what a LOAD brings for what it costs: a model of long executions and large weights does not go before
many small ones, and one that would displace more requests than it serves is not loaded.
"""

from __future__ import annotations

from mainspring.cluster.models import Model
from mainspring.cluster.placements import Placement
from mainspring.cluster.residency_bits import able, at, is_everywhere
from mainspring.cluster.workers import Worker
from mainspring.messages.actions import LoadReason
from mainspring.scheduler.alarms import Alarm
from mainspring.scheduler.placing import LoadPlan, plan_load
from mainspring.scheduler.policies.demand import DemandLoads
from mainspring.scheduler.policies.loads import PASSED_OVER_NS
from mainspring.scheduler.policies.mainspring.constants import (
    EVICTED_FOR_NS,
    MOST_REPLICATED,
    REPLICA_SHARE,
    REPLICATED_FROM,
    REPLICATION_PAUSE_NS,
    WORTH_SCALE,
)
from mainspring.scheduler.policies.mainspring.pricing import ExecPrice
from mainspring.scheduler.policies.mainspring.usage import Popularity, Utilisation
from mainspring.scheduler.policies.mainspring.victims import Losses
from mainspring.scheduler.policies.notes import model_note
from mainspring.scheduler.state import SchedulerState


class WorthLoads(DemandLoads):
    """Answers `Policy.next_load` by worth, and evicts the models whose loss is least (`Losses`).

    That requests wait says little by itself: where some have to be dropped, those of the models that are
    worth least wait longest.
    """

    def __init__(self, state: SchedulerState, popularity: Popularity, price: ExecPrice) -> None:
        super().__init__(state)
        self._price = price
        self.losses = Losses(popularity, price, state.cluster.estimates.raised)
        """The losses by evictions."""
        self._worth_again_ns = 0

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
        if now_ns >= self._worth_again_ns:
            # The price falls as time passes, with nothing else to say so.
            self._worth_again_ns = now_ns + PASSED_OVER_NS
            self._state.alarms.set(self._worth_again_ns, Alarm.RETRY)
        return None

    def find_pages(self, placement: Placement) -> LoadPlan | None:
        """Find pages for a model that requests wait for."""
        victims = self.losses.least_first(placement.worker, EVICTED_FOR_NS)
        plan = plan_load(placement, victims=victims)
        victims.close()
        return plan

    def worker_left(self, now_ns: int, worker: Worker) -> None:
        """Forget what could be evicted from a worker, and let the demand for its models go to the others."""
        super().worker_left(now_ns, worker)
        self.losses.worker_left(worker)

    def validate(self) -> None:
        """Check the orders of victims, too."""
        super().validate()
        for worker in self._state.cluster.workers.values():
            self.losses.validate(worker, EVICTED_FOR_NS)


class Replication:
    """Loads further copies of models that are only where others keep EXEC busy.

    The load priority of appendix B asks whether a device can do all that is allocated to it before the
    deadlines. A model with few requests, on a device that a busy model fills, asks for next to nothing: by
    that measure it never needs another device, and yet each of its requests waits for the other's batches,
    and some in vain. While a LOAD executor is idle, such a model is loaded on a device that has less than
    half as much to do, into free pages or over models with much fewer requests (`Losses.unpopular`).

    It is no `ModelQueue`: a model whose copy finds no room leaves and pauses the search instead of going to
    the end, and copies come before missed models, since the policy is asked first.
    """

    def __init__(self, state: SchedulerState, losses: Losses, utilisation: Utilisation) -> None:
        self._state = state
        self._losses = losses
        self._utilisation = utilisation
        self._wanted: dict[int, Model] = {}
        self._paused_until_ns = 0

    def asked(self, now_ns: int, model: Model) -> None:
        """Note that requests wait for a model: if it is on busy devices alone it should have another."""
        usable = model.usable
        if not usable or now_ns < self._paused_until_ns or is_everywhere(self._state.cluster, model):
            return
        if len(self._wanted) >= MOST_REPLICATED:
            return
        for placement in usable.values():
            if self._utilisation.of(now_ns, placement.worker) < REPLICATED_FROM:
                return
        self._wanted[model.number] = model
        self._state.wants_loads()

    def next_load(self, now_ns: int) -> LoadPlan | None:
        """Return how to load the model that was noted first on the least busy device with an idle LOAD."""
        state, wanted = self._state, self._wanted
        while wanted and state.may_load_idly and now_ns >= self._paused_until_ns:
            model = wanted.pop(next(iter(wanted)))
            if not state.cluster.serves(model) or not model.usable:
                continue
            plan = self._plan(now_ns, model)
            if plan is not None:
                plan.idle = True
                plan.reason = LoadReason.REPLICATION
                return plan
            self._paused_until_ns = now_ns + REPLICATION_PAUSE_NS
        return None

    def _least(self, now_ns: int, model: Model) -> float:
        """Return the utilisation of the least busy device that holds a model."""
        least = 2.0
        for placement in model.usable.values():
            least = min(least, self._utilisation.of(now_ns, placement.worker))
        return least

    def _plan(self, now_ns: int, model: Model) -> LoadPlan | None:
        most = REPLICA_SHARE * self._least(now_ns, model)
        best: Worker | None = None
        best_share, best_number = most, 0
        for worker in able(model, self._state.with_room()):
            if len(worker.load) or model.pages_on(worker) > worker.pages.size:
                continue
            share = self._utilisation.of(now_ns, worker)
            if share < best_share or (share == best_share and worker.number < best_number):
                best, best_share, best_number = worker, share, worker.number
        if best is None:
            return None
        placement = at(self._state.cluster, model.base, best)
        return plan_load(placement, victims=self._losses.unpopular(placement))
