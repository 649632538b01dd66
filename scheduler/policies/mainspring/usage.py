"""The number of requests that each model had lately, and how busy EXEC executors were."""

from __future__ import annotations

import math

from mainspring.cluster.models import Model
from mainspring.cluster.workers import Worker
from mainspring.scheduler.policies.mainspring.constants import (
    LEAST_SEEN_NS,
    POPULARITY_DECAY_NS,
    RENEWED_AFTER,
    UTILISATION_WINDOW_NS,
)
from mainspring.scheduler.policies.notes import model_note
from mainspring.scheduler.state import SchedulerState


class Popularity:
    """Keeps `ModelNote.popularity`, each model's decaying count of requests.

    Counts are kept as they would stand in the future: they grow with each request's time instead of shrinking
    with every other's, so that nothing has to be touched as time passes and two counts can be compared as
    they are.
    """

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._epoch_ns: int | None = None
        self._first_ns = self._last_ns = 0
        self.renewals = 0
        """Number of times that all counts were scaled down."""

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
            self.renewals += 1
        model_note(model.base).popularity += math.exp(age)

    def expected(self, within_ns: int) -> float:
        """Return the factor from `ModelNote.popularity` to the requests to expect within a time."""
        if self._epoch_ns is None:
            return 0.0
        seen_ns = max(LEAST_SEEN_NS, self._last_ns - self._first_ns)
        whole = POPULARITY_DECAY_NS * (1.0 - math.exp(-seen_ns / POPULARITY_DECAY_NS))
        return within_ns / whole * math.exp((self._epoch_ns - self._last_ns) / POPULARITY_DECAY_NS)


class Decaying:
    """EXEC time that was given to batches, forgotten with the window's time constant."""

    __slots__ = ("_at_ns", "_given_ns")

    def __init__(self) -> None:
        self._given_ns = 0.0
        self._at_ns = 0

    def add(self, now_ns: int, duration_ns: int) -> None:
        """Enter the time of a batch."""
        self._decay(now_ns)
        self._given_ns += duration_ns

    def share(self, now_ns: int) -> float:
        """Return the part of the window that batches were given."""
        self._decay(now_ns)
        return self._given_ns / UTILISATION_WINDOW_NS

    def _decay(self, now_ns: int) -> None:
        if now_ns > self._at_ns:
            self._given_ns *= math.exp((self._at_ns - now_ns) / UTILISATION_WINDOW_NS)
            self._at_ns = now_ns


class Utilisation:
    """The shares of EXEC executors' time that batches were given."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._all = Decaying()
        self._own: dict[str, Decaying] = {}

    def gave(self, now_ns: int, worker: Worker, duration_ns: int) -> None:
        """Enter a batch that was sent to a worker."""
        self._all.add(now_ns, duration_ns)
        own = self._own.get(worker.name)
        if own is None:
            own = self._own[worker.name] = Decaying()
        own.add(now_ns, duration_ns)

    def share(self, now_ns: int) -> float:
        """Return the share of the time of all workers that take work, from 0 to a little more than 1."""
        return self._all.share(now_ns) / max(1, self._state.cluster.open_workers)

    def of(self, now_ns: int, worker: Worker) -> float:
        """Return the share of one worker's time."""
        own = self._own.get(worker.name)
        return 0.0 if own is None else own.share(now_ns)

    def worker_left(self, worker: Worker) -> None:
        """Forget a worker."""
        self._own.pop(worker.name, None)
