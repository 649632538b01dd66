"""Who is next on a worker: its usable models with waiting requests, by a key that the policy gives them.

One heap for each worker (`WorkerNote.strategies`), with one valid entry for each placement
(`Placement.note`); what else is in the heap is dropped when it comes up. A key may be a lower bound
of the true one: who takes an entry out looks at what is true then, and enters it anew if it belongs later.
"""

from __future__ import annotations

import heapq

from mainspring.cluster.placements import Placement, Worker
from mainspring.scheduler.policies.notes import entered_key, worker_note


def enter(placement: Placement, key: int) -> None:
    """Have a placement come up by a key; an entry with a lower one stays."""
    entered = entered_key(placement)
    if entered is None or key < entered:
        placement.note = key
        heapq.heappush(worker_note(placement.worker).strategies, (key, placement.model.number, placement))


def strike(placement: Placement) -> None:
    """Let a placement come up no more."""
    placement.note = None


def peek(worker: Worker) -> tuple[int, Placement] | None:
    """Return the lowest key on a worker, and whose it is; None if there is none."""
    heap = worker_note(worker).strategies
    while heap:
        key, _, placement = heap[0]
        if placement.note == key:
            return key, placement
        heapq.heappop(heap)
    return None


def take(worker: Worker) -> Placement:
    """Take out the entry that `peek` has just returned."""
    placement = heapq.heappop(worker_note(worker).strategies)[2]
    placement.note = None
    return placement
