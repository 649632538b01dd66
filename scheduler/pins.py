"""Models that operators want resident: which of them are kept so, and the LOADs that this takes.

Were they all that a worker's memory holds, no other model could be loaded there. So what may be pinned is a
share of all workers' pages, and what is kept the same share of the pages of those that take work; which of
them do may change at any time, and with it who is kept.
"""

from __future__ import annotations

from mainspring.cluster.membership import PINNED_SHARE
from mainspring.cluster.placements import Model
from mainspring.messages.evidence import LoadReason
from mainspring.scheduler.load_queue import LoadQueue
from mainspring.scheduler.placing import LoadPlan, plan_on_freest


class Pins(LoadQueue):
    """Keeps pinned models resident."""

    @property
    def room_now(self) -> int:
        """How many pages they may take of the workers that take work."""
        workers = self._state.cluster.workers.values()
        return int(PINNED_SHARE * sum([each.pages.size for each in workers if each.open]))

    def enforce(self) -> None:
        """Find anew who is kept, those first that were pinned first: pins or workers have changed."""
        room = self.room_now if self._state.cluster.pinned else 0
        for name in self._state.cluster.pinned:
            model = self._state.cluster.models.get(name)
            if model is None:
                continue
            model.pinned = model.pages <= room
            if model.pinned:
                room -= model.pages
                self.keep(model)

    def keep(self, model: Model) -> None:
        """Have a model that is kept loaded if it is resident nowhere."""
        if model.pinned and not model.usable:
            self.add(model)

    def next_load(self, now_ns: int) -> LoadPlan | None:
        """Return how to load a model that is kept and resident nowhere, over the least recently used.

        It waits for no executor to be idle: on a cluster that is busy all the time none ever is.
        """
        plan = self.first_plan(now_ns)
        if plan is not None:
            plan.reason = LoadReason.PINNED
        return plan

    def _needs(self, model: Model) -> bool:
        return model.pinned and not model.usable

    def _plan(self, now_ns: int, model: Model) -> LoadPlan | None:  # noqa: ARG002 - on any worker with room
        return plan_on_freest(model, self._state.load_room)
