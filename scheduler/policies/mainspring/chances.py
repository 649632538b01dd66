"""Batches of models whose durations no shape explains: chosen by how the durations are distributed.

A batch that begins at an instant serves each of its requests with the chance that its duration leaves it in
time; what it is worth is the sum of these chances, what it costs is the mean duration (Orloj, arXiv
2209.00159, scores batches by their distribution). A batch takes as long as its slowest request, so larger
ones have distributions of their own: they are measured by batch size (`cluster.estimates.Spreads`).

Only erratic models (`cluster.estimates.Spreads`) are planned so; a batch size of which too few durations are
known counts as its estimate.
"""

from __future__ import annotations

import math

from mainspring.cluster.estimates import LONG, TYPICAL, InferTimes
from mainspring.cluster.requests import DeadlineQueue
from mainspring.scheduler.policies.mainspring.constants import CHANCE_SCALES

HEADS = (TYPICAL, (3, 4), (9, 10), LONG)
"""Batches are tried whose first request is in time with at least these chances."""


def least_ns(times: InferTimes, index: int) -> int:
    """Return the time that a request must have left to be worth beginning for: with less it is more likely
    late than in time."""
    return _quantile_ns(times, index, TYPICAL)


def held_ns(times: InferTimes, index: int) -> int:
    """Return how long EXEC is expected to be busy with a batch: what is planned behind it for longer would
    turn away requests that are nearly always in time."""
    return _quantile_ns(times, index, TYPICAL)


def long_ns(times: InferTimes, index: int) -> int:
    """Return the long quantile of a batch's duration."""
    return _quantile_ns(times, index, LONG)


def likeliest_batch(
    queue: DeadlineQueue, times: InferTimes, top: int, begin_ns: int, inputs_ns: int, scale_ns: float
) -> tuple[int, int, int] | None:
    """Return (rank, size index, index of the first request) of the batch that most is to be expected of, None
    if no request has a chance; instants as in `policies.batching`.

    ``scale_ns`` is that of `Ranking`. Within a model it counts `CHANCE_SCALES` times: which of its requests
    are passed over is decided more by what can still be served than by who has waited longest.
    """
    best_key, best_rank, best_index, best_first = 0.0, 0, -1, 0
    for index in range(top, -1, -1):
        chances = times.spreads.chances(index)
        mean_ns = times.ns[index] if chances is None else chances.mean_ns
        start_ns = max(begin_ns, inputs_ns + times.transfer_ns[index])
        for first, last in _heads(queue, times, index, start_ns):
            useful = 0.0
            for due_ns in queue.dues[first:last]:
                useful += 1.0 if chances is None else chances.within(due_ns - start_ns)
            worth_ns = scale_ns * math.log(useful / mean_ns)
            key = queue.dues[first] - CHANCE_SCALES * worth_ns
            if best_index < 0 or key < best_key:
                best_key, best_rank = key, queue.dues[first] - int(worth_ns)
                best_index, best_first = index, first
    return None if best_index < 0 else (best_rank, best_index, best_first)


def _heads(queue: DeadlineQueue, times: InferTimes, index: int, start_ns: int) -> list[tuple[int, int]]:
    """Return the batches of a size to try, each as (index of its first request, index behind its last)."""
    size, found = times.sizes[index], []
    before = -1
    for chance in HEADS:
        first = queue.first_feasible(start_ns + _quantile_ns(times, index, chance), size)
        if first == before or first == len(queue.dues):
            continue
        before = first
        if not index or queue.rows_from(first, size) > times.sizes[index - 1]:
            found.append((first, first + len(queue.fill(first, size))))
    return found


def _quantile_ns(times: InferTimes, index: int, share: tuple[int, int]) -> int:
    chances = times.spreads.chances(index)
    return times.ns[index] if chances is None else chances.quantile_ns(share)
