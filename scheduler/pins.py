"""Models that operators want resident: which of them are kept so, and the LOADs that this takes.

Were they all that a worker's memory holds, no other model could be loaded there. So what may be pinned is a
share of all workers' pages, and what is kept the same share of the pages of those that take work; which of
them do may change at any time, and with it who is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import Final

from mainspring.cluster.membership import PINNED_SHARE
from mainspring.cluster.placements import Model
from mainspring.scheduler.books import Books
from mainspring.scheduler.placing import LoadPlan, plan_on_freest

LOOKED_AT: Final = 8
"""Models that are looked at each time for one that can be loaded."""


class Pins:
    """Keeps pinned models resident."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._missing: OrderedDict[str, None] = OrderedDict()
        """Models that are to be loaded because they are pinned."""

    def __bool__(self) -> bool:
        """Whether any model is to be loaded."""
        return bool(self._missing)

    @property
    def room_now(self) -> int:
        """How many pages they may take of the workers that take work."""
        workers = self._books.cluster.workers.values()
        return int(PINNED_SHARE * sum([each.pages.size for each in workers if each.open]))

    def enforce(self) -> None:
        """Find anew who is kept, those first that were pinned first: pins or workers have changed."""
        room = self.room_now if self._books.cluster.pinned else 0
        for name in self._books.cluster.pinned:
            model = self._books.cluster.models.get(name)
            if model is None:
                continue
            model.pinned = model.pages <= room
            if model.pinned:
                room -= model.pages
                self.keep(model)

    def keep(self, model: Model) -> None:
        """Have a model that is kept loaded if it is resident nowhere."""
        if model.pinned and not model.usable:
            self._missing[model.name] = None
            self._books.loads_dirty = True

    def next_load(self) -> LoadPlan | None:
        """Return how to load a model that is kept and resident nowhere, over whoever was used least recently.

        It waits for no executor to be idle: on a cluster that is busy all the time none ever is.
        """
        for name in list(islice(self._missing, LOOKED_AT)):
            model = self._books.cluster.models.get(name)
            if model is None or not model.pinned or model.usable or _given_up(model):
                del self._missing[name]
                continue
            plan = plan_on_freest(model, self._books.load_room)
            if plan is not None:
                del self._missing[name]
                return plan
            self._missing.move_to_end(name)
        return None


def _given_up(model: Model) -> bool:
    """Return whether no worker will ever run a model; one that just replaced another has no placement yet."""
    return bool(model.placements) and all(p.hopeless for p in model.placements.values())
