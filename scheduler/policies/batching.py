"""Which of a model's waiting requests make the largest batch that is in time."""

from __future__ import annotations

from mainspring.cluster.estimates import InferTimes
from mainspring.cluster.requests import DeadlineQueue


def largest_batch(
    queue: DeadlineQueue, times: InferTimes, top: int, begin_ns: int, inputs_ns: int, pads: bool
) -> tuple[int, int, int] | None:
    """Return (size index, index of the first request, rows up to the size) of the largest batch, or None.

    Requests at the head that a batch would make late are passed over. Sizes up to the index ``top`` are
    tried, the largest first: one is taken if it is filled, if its first request needs it, or with ``pads``
    if it ends sooner than the next smaller size and another batch for the rest. ``begin_ns`` is when EXEC
    and the weights are there, ``inputs_ns`` when inputs that take no time would be.
    """
    sizes, durations_ns, transfers_ns = times.sizes, times.ns, times.transfer_ns
    for index in range(top, -1, -1):
        size = sizes[index]
        start_ns = max(begin_ns, inputs_ns + transfers_ns[index])
        first = queue.first_feasible(start_ns + durations_ns[index], size)
        if first == len(queue.dues):
            continue
        rows = queue.rows_from(first, size)
        if index and rows < size and queue.rows_at(first) <= sizes[index - 1]:
            rest = rows - sizes[index - 1]
            if not pads or rest <= 0:
                continue
            if durations_ns[index] >= durations_ns[index - 1] + times.for_rows(rest):
                continue
        return index, first, rows
    return None
