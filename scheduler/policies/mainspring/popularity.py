"""How often each model was asked for lately, and so who goes first when pages are needed.

Counts decay with a time constant of 30 s. They are kept as they would stand in the future, growing with each
request's time instead of shrinking with every other's, so that nothing has to be touched as time passes
and two counts can be compared as they are.
"""

from __future__ import annotations

import math

from mainspring.cluster.placements import Model, Placement, Worker
from mainspring.scheduler.policies.mainspring.constants import (
    IDLE_VICTIMS_SHARE,
    LEAST_SEEN_NS,
    POPULARITY_DECAY_NS,
    RENEWED_AFTER,
)
from mainspring.scheduler.policies.notes import model_note
from mainspring.scheduler.state import SchedulerState


class Popularity:
    """Keeps `ModelNote.popularity`."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._epoch_ns: int | None = None
        self._first_ns = self._last_ns = 0

    def asked(self, now_ns: int, model: Model) -> None:
        """Count a request."""
        if self._epoch_ns is None:
            self._epoch_ns = self._first_ns = now_ns
        self._last_ns = now_ns
        age = (now_ns - self._epoch_ns) / POPULARITY_DECAY_NS
        if age > RENEWED_AFTER:
            factor = math.exp(-age)
            for each in self._state.cluster.models.values():
                model_note(each).popularity *= factor
            self._epoch_ns, age = now_ns, 0.0
        model_note(model).popularity += math.exp(age)

    def expected(self, within_ns: int) -> float:
        """Return the factor from `ModelNote.popularity` to the requests to expect within a time."""
        if self._epoch_ns is None:
            return 0.0
        seen_ns = max(LEAST_SEEN_NS, self._last_ns - self._first_ns)
        whole = POPULARITY_DECAY_NS * (1.0 - math.exp(-seen_ns / POPULARITY_DECAY_NS))
        return within_ns / whole * math.exp((self._epoch_ns - self._last_ns) / POPULARITY_DECAY_NS)

    def victims(self, worker: Worker) -> list[Placement]:
        """Return who may be evicted, in order: none with work in flight, and those waited for last.

        Before that the least asked for go first; one that another worker holds too counts half.
        """
        free = [placement for placement in worker.lru.values() if not placement.infers]
        return sorted(free, key=_order)

    def unpopular(self, placement: Placement) -> list[Placement]:
        """Return who may be evicted for a model that nobody needs at once: the less wanted, and few."""
        left = IDLE_VICTIMS_SHARE * model_note(placement.model).popularity
        chosen = []
        for victim in self.victims(placement.worker):
            left -= _worth(victim)
            if left < 0 or victim.model.waiting:
                break
            chosen.append(victim)
        return chosen


def _worth(placement: Placement) -> float:
    asked = model_note(placement.model).popularity
    return asked / 2 if len(placement.model.usable) > 1 else asked


def _order(placement: Placement) -> tuple[bool, float, int]:
    return placement.model.waiting > 0, _worth(placement), placement.model.number
