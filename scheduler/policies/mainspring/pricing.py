"""The price of EXEC's time while there is too little of it, and what requests are worth then."""

from __future__ import annotations

import math

from mainspring.cluster.models import Model
from mainspring.scheduler.policies.mainspring.constants import (
    EXEC_SCARCE_FROM,
    EXPECTED_ROWS,
    MOST_BOOST,
    REPRICED_FROM,
    SERVED_WEIGHT,
)
from mainspring.scheduler.policies.mainspring.usage import Utilisation
from mainspring.scheduler.policies.notes import model_note


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
