"""The requests that each model had lately, the busy part of EXEC's time, and the price of that time."""

from __future__ import annotations

import math

from mainspring.cluster.models import Model
from mainspring.cluster.workers import Worker
from mainspring.scheduler.policies.mainspring.constants import (
    EXEC_SCARCE_FROM,
    EXPECTED_ROWS,
    LEAST_SEEN_NS,
    MOST_BOOST,
    POPULARITY_DECAY_NS,
    RENEWED_AFTER,
    REPRICED_FROM,
    SERVED_WEIGHT,
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


class ExecPrice:
    """The price of EXEC's time while there is too little of it, in rows for each nanosecond.

    A request that is served takes time from others. While a part of all requests is dropped and EXEC is busy,
    a nanosecond costs that part of what one serves on average; otherwise it costs nothing. A LOAD that serves
    requests which take longer than they are worth serves fewer in all, however short the LOAD is, and a model
    that only has such requests may be evicted before one whose requests are quick.
    """

    def __init__(self, utilisation: Utilisation) -> None:
        self._utilisation = utilisation
        self._rows = self._time_ns = 0.0
        self.per_ns = 0.0

    def ran(self, rows: float, duration_ns: int) -> None:
        """Enter a batch that was sent; its rows count as their model's weight says."""
        self._rows += rows - SERVED_WEIGHT * self._rows
        self._time_ns += duration_ns - SERVED_WEIGHT * self._time_ns

    def look(self, now_ns: int, dropped: float) -> None:
        """Update the price; ``dropped`` is the share of requests that were dropped lately."""
        price = 0.0
        if self._time_ns:
            busy = min(1.0, self._utilisation.share(now_ns))
            scarcity = max(0.0, (busy - EXEC_SCARCE_FROM) / (1.0 - EXEC_SCARCE_FROM))
            price = scarcity * dropped * self._rows / self._time_ns
        if abs(price - self.per_ns) > REPRICED_FROM * self.per_ns:
            self.per_ns = price

    def worth(self, model: Model, rows: float) -> float:
        """Return what it is worth to serve rows of a model that wait, in the batches that are best for that.

        In rows; 0 if they cost more than they are worth. Those of a model that was dropped too often count
        for more (`ModelNote.boost`), and each as the model's weight says.
        """
        note = model_note(model)
        each = math.exp(min(note.boost, note.weight_nats + MOST_BOOST)) if note.boost else 1.0
        return _worth(model, rows, each, self.per_ns, highest=False)

    def worth_waiting(self, model: Model) -> float:
        """Return what the requests are worth that wait for a model, or a bucket of one."""
        rows = model.queue.rows
        worth = self.worth(model, float(rows)) if rows else 0.0
        return worth + len(model.backlog)

    def worth_each(self, model: Model, weight: float) -> float:
        """Return what a row of a model is worth that comes some time, from 0 to the model's weight."""
        return _worth_each(model, weight, self.per_ns, highest=False) if self.per_ns else weight


def least_worth_each(model: Model, weight: float, per_ns: float) -> float:
    """Return what `ExecPrice.worth_each` is at least, at no higher price than one, while no estimate rises
    beyond its ceiling (`Raised.count`)."""
    return _worth_each(model, weight, per_ns, highest=True) if per_ns else weight


def least_worth_waiting(model: Model, per_ns: float) -> float:
    """Return what `ExecPrice.worth_waiting` is at least, on the same conditions, until a request leaves."""
    if not model.buckets:
        rows = model.queue.rows
        return _worth(model, float(rows), model_note(model).weight, per_ns, highest=True) if rows else 0.0
    worth = 0.0
    for bucket in model.buckets.values():
        worth += least_worth_waiting(bucket, per_ns)
    return worth


def _worth(model: Model, rows: float, each: float, per_ns: float, *, highest: bool) -> float:
    if not per_ns:
        return rows * each
    best = 0.0
    for times in model.infer_times.values():
        sizes, durations_ns = times.sizes, times.ceilings_ns if highest else times.ns
        for index in range(len(sizes)):
            filled = min(rows, float(sizes[index]))
            batches = rows / filled if index == len(sizes) - 1 and filled else 1.0
            best = max(best, batches * (filled * each - per_ns * durations_ns[index]))
            if sizes[index] >= rows:
                break
    return best


def _worth_each(model: Model, weight: float, per_ns: float, *, highest: bool) -> float:
    best = 0.0
    for times in model.infer_times.values():
        sizes, durations_ns = times.sizes, times.ceilings_ns if highest else times.ns
        for index in range(len(sizes)):
            if index and sizes[index] > EXPECTED_ROWS:
                break
            best = max(best, weight - per_ns * durations_ns[index] / min(sizes[index], EXPECTED_ROWS))
    return best
