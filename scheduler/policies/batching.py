"""Batches of a model's waiting requests: the largest that is in time, the densest, or the soonest.

``begin_ns`` is when EXEC and the weights are there, ``inputs_ns`` when inputs that take no time would be.
"""

from __future__ import annotations

import math
from typing import Final

from mainspring.cluster.estimates import InferTimes
from mainspring.cluster.models import Model
from mainspring.cluster.requests import DeadlineQueue, Request

PARTS_TOLERANCE: Final = 0.1
"""Part of a batch's time by which its parts have to take less, so that they run in its place."""


def largest_index(model: Model) -> int:
    """Return the index of the largest size that the model's waiting requests could need."""
    rows = model.queue.rows
    return model.index_of[rows if rows < model.max_rows else model.max_rows]


def fitting(
    queue: DeadlineQueue, times: InferTimes, index: int, begin_ns: int, inputs_ns: int, head: int = -1
) -> tuple[int, int]:
    """Return (index of the first request, rows) of a batch of a size, as many rows as it has room for.

    Requests at the front that the batch would make late are passed over, unless it is to begin at the request
    of the index ``head``. No rows if it is in time for none, or if the next smaller size holds the same ones.
    """
    size = times.sizes[index]
    end_ns = max(begin_ns, inputs_ns + times.transfer_ns[index]) + times.ns[index]
    first = queue.first_feasible(end_ns, size) if head < 0 else head
    if first == len(queue.dues):
        return first, 0
    if head >= 0 and (queue.dues[head] < end_ns or queue.rows_at(head) > size):
        return first, 0
    rows = queue.rows_from(first, size)
    return first, 0 if index and rows <= times.sizes[index - 1] else rows


def largest_batch(
    queue: DeadlineQueue,
    times: InferTimes,
    top: int,
    begin_ns: int,
    inputs_ns: int,
    pads: bool,
    head: int = -1,
) -> tuple[int, int, int] | None:
    """Return (size index, index of the first request, rows up to the size) of the largest batch, or None.

    Sizes up to the index ``top`` are tried, the largest first: one is taken if it is filled, if its first
    request needs it, or with ``pads`` if it ends sooner than the next smaller size and another batch for the
    rest. ``head`` as of `fitting`.
    """
    sizes, durations_ns = times.sizes, times.ns
    for index in range(top, -1, -1):
        first, rows = fitting(queue, times, index, begin_ns, inputs_ns, head)
        if not rows:
            continue
        if index and rows < sizes[index] and queue.rows_at(first) <= sizes[index - 1]:
            rest = rows - sizes[index - 1]
            if not pads or durations_ns[index] >= durations_ns[index - 1] + times.for_rows(rest):
                continue
        return index, first, rows
    return None


def densest_batch(
    queue: DeadlineQueue, times: InferTimes, top: int, begin_ns: int, inputs_ns: int, pads: bool
) -> tuple[int, int, int] | None:
    """Return (size index, index of the first request, requests) of the batch with the most requests for its
    time, or None; of those that are as dense the largest.
    """
    sizes, durations_ns, singles = times.sizes, times.ns, queue.rows == len(queue.dues)
    best_count, best_ns, best_index, best_first = 0, 1, 0, 0
    for index in range(top, -1, -1):
        first, rows = fitting(queue, times, index, begin_ns, inputs_ns)
        if not rows or (
            not pads and index and rows < sizes[index] and queue.rows_at(first) <= sizes[index - 1]
        ):
            continue
        count = rows if singles else len(queue.fill(first, sizes[index]))
        if count * best_ns > best_count * durations_ns[index]:
            best_count, best_ns, best_index, best_first = count, durations_ns[index], index, first
    return (best_index, best_first, best_count) if best_count else None


def soonest_batch(
    queue: DeadlineQueue,
    times: InferTimes,
    top: int,
    begin_ns: int,
    inputs_ns: int,
    pads: bool,
    scale_ns: float,
) -> tuple[int, int, int] | None:
    """Return the batch, as `densest_batch`, of the lowest rank: of ``n`` requests, the first due at ``D``,
    that take ``t``, ``D - t - scale_ns * ln(n / t)``; of equal ones the largest.

    For queues whose requests are unlike: by density alone large requests, and those with little time, wait
    for batches of others until they are lost. A batch that takes longer than its parts is left out: its long
    time would only have it begin sooner than they must.
    """
    sizes, durations_ns = times.sizes, times.ns
    best_rank, best_index, best_first, best_count = 0.0, 0, 0, 0
    for index in range(top, -1, -1):
        first, rows = fitting(queue, times, index, begin_ns, inputs_ns)
        if not rows or (
            not pads and index and rows < sizes[index] and queue.rows_at(first) <= sizes[index - 1]
        ):
            continue
        filled, duration_ns = queue.fill(first, sizes[index]), durations_ns[index]
        count = len(filled)
        rank = queue.dues[first] - duration_ns - scale_ns * math.log(count / duration_ns)
        if (not best_count or rank < best_rank) and not _longer_than_parts(filled, times, index):
            best_rank, best_index, best_first, best_count = rank, index, first, count
    return (best_index, best_first, best_count) if best_count else None


def _longer_than_parts(requests: list[Request], times: InferTimes, index: int) -> bool:
    """Return whether a batch takes longer than its requests would in batches of a smaller size, one after the
    other.

    By more than `PARTS_TOLERANCE`, that is: each batch costs some time that no estimate holds.
    """
    sizes, durations_ns = times.sizes, times.ns
    most_rows, count = max([request.rows for request in requests]), len(requests)
    least_ns = durations_ns[index] * (1.0 - PARTS_TOLERANCE)
    for smaller in range(times.index_of[most_rows], index):
        batches = -(-count // (sizes[smaller] // most_rows))
        if batches * durations_ns[smaller] < least_ns:
            return True
    return False


def not_lost(
    queue: DeadlineQueue,
    times: InferTimes,
    top: int,
    begin_ns: int,
    inputs_ns: int,
    found: tuple[int, int, int],
    calm: bool,
) -> tuple[int, int, int]:
    """Return the batch to run in the place of the densest one, ``found``: mostly that.

    By density alone requests of many rows would always be passed over, since batches without them hold more
    requests, until they are lost. The first that is passed over and would be too late behind the densest
    batch goes first if that can wait for it, and while it is ``calm`` in any case: what hardly any request is
    dropped from can be served whole.
    """
    index, first, _ = found
    durations_ns, rows_of_first = times.ns, queue.rows_at(first)
    for head in range(first):
        if queue.rows_at(head) <= rows_of_first:
            # It was passed over because a large batch would make it late; it keeps its place for a small one.
            continue
        own = times.index_for(queue.rows_at(head))
        due_ns = queue.dues[head]
        alone_ns = durations_ns[own]
        if due_ns < max(begin_ns, inputs_ns + times.transfer_ns[own]) + alone_ns:
            continue
        if due_ns >= begin_ns + durations_ns[index] + alone_ns:
            return found
        best_count, best_ns, best_index = 0, 1, 0
        for larger in range(max(own, top), own - 1, -1):
            _, rows = fitting(queue, times, larger, begin_ns, inputs_ns, head)
            waits = calm or begin_ns + durations_ns[larger] + durations_ns[index] <= queue.dues[first]
            if not rows or not waits:
                continue
            count = len(queue.fill(head, times.sizes[larger]))
            if count * best_ns > best_count * durations_ns[larger]:
                best_count, best_ns, best_index = count, durations_ns[larger], larger
        return (best_index, head, best_count) if best_count else found
    return found
