"""Further devices for models that are only where others keep EXEC busy.

The load priority of appendix B asks whether a device can do all that is allocated to it before the deadlines.
A model that is rarely asked for, on a device that a busy model fills, asks for next to nothing: by that
measure it never needs another device, and yet each of its requests waits for the other's batches, and some
in vain. So while a LOAD executor is idle, such a model is loaded on a device that has less than half as much
to do, into free pages or over models that are asked for much less (`Popularity.unpopular`).
"""

from __future__ import annotations

from mainspring.cluster.placements import Model, Placement
from mainspring.messages.evidence import LoadReason
from mainspring.scheduler.placing import LoadPlan, plan_load
from mainspring.scheduler.policies.mainspring.constants import (
    MOST_REPLICATED,
    REPLICA_SHARE,
    REPLICATED_FROM,
    REPLICATION_PAUSE_NS,
)
from mainspring.scheduler.policies.mainspring.popularity import Popularity
from mainspring.scheduler.policies.mainspring.utilisation import Utilisation
from mainspring.scheduler.state import SchedulerState


class Replication:
    """Remembers who should have another device, and finds it."""

    def __init__(self, state: SchedulerState, popularity: Popularity, utilisation: Utilisation) -> None:
        self._state = state
        self._popularity = popularity
        self._utilisation = utilisation
        self._wanted: dict[int, Model] = {}
        self._paused_until_ns = 0

    def asked(self, now_ns: int, model: Model) -> None:
        """Note that requests wait for a model: if it is on busy devices alone it should have another."""
        usable = model.usable
        if not usable or len(usable) >= len(model.placements) or now_ns < self._paused_until_ns:
            return
        if self._least(now_ns, model) < REPLICATED_FROM or len(self._wanted) >= MOST_REPLICATED:
            return
        self._wanted[model.number] = model
        self._state.loads_dirty = True

    def next_load(self, now_ns: int) -> LoadPlan | None:
        """Return how to load the model that was noted first on the least busy device with an idle LOAD."""
        state, wanted = self._state, self._wanted
        while wanted and state.may_load_idly and now_ns >= self._paused_until_ns:
            model = wanted.pop(next(iter(wanted)))
            if state.cluster.models.get(model.name) is not model or not model.usable:
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
        best: Placement | None = None
        best_share, best_number = most, 0
        for placement in model.placements.values():
            worker = placement.worker
            if not placement.loadable or len(worker.load) or model.pages > worker.pages.size:
                continue
            share = self._utilisation.of(now_ns, worker)
            if share < best_share or (share == best_share and worker.number < best_number):
                best, best_share, best_number = placement, share, worker.number
        return None if best is None else plan_load(best, victims=self._popularity.unpopular(best))
