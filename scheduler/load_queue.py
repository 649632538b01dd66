"""Models that should be loaded for one reason, in the order in which the reason came up.

`Pins` and `MissedModels` are such queues; the policy's own LOADs go between them (`Scheduler`): pinned before
demand, demand before missed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from itertools import islice
from typing import Final

from mainspring.cluster.placements import Model
from mainspring.scheduler.placing import LoadPlan
from mainspring.scheduler.state import SchedulerState

LOOKED_AT: Final = 8
"""Models that are looked at each time for one that can be loaded."""


class LoadQueue(ABC):
    """A queue of models, each in it once."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._queued: OrderedDict[str, None] = OrderedDict()

    def __bool__(self) -> bool:
        """Whether any model is to be loaded."""
        return bool(self._queued)

    def add(self, model: Model) -> None:
        """Have a model loaded; one that is queued keeps its place."""
        self._queued[model.name] = None
        self._state.loads_dirty = True

    def first_plan(self, now_ns: int) -> LoadPlan | None:
        """Return the LOAD of the first model that a worker can take now, and take the model out.

        Models that need no LOAD any more leave; those that no worker can take now go to the end.
        """
        for name in list(islice(self._queued, LOOKED_AT)):
            model = self._state.cluster.models.get(name)
            if model is None or model.hopeless or not self._needs(model):
                self._forget(name)
                continue
            plan = self._plan(now_ns, model)
            if plan is not None:
                self._forget(name)
                return plan
            self._queued.move_to_end(name)
        return None

    def _forget(self, name: str) -> None:
        del self._queued[name]

    @abstractmethod
    def _needs(self, model: Model) -> bool:
        """Return whether a model should still be loaded."""

    @abstractmethod
    def _plan(self, now_ns: int, model: Model) -> LoadPlan | None:
        """Return how a model could be loaded now, None if no worker can take it."""
