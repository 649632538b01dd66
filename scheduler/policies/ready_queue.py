"""The ready queue of a worker: its usable models with waiting requests, by a key that the policy gives them.

Each worker has one heap (`WorkerNote.strategies`) with one valid entry for each placement, whose key is
`Placement.note`; the heap's other entries are dropped when they come up. A key may be a lower bound of the
true one: the policy looks at the placement when its entry comes up, and enters it again if it belongs later.
"""

from __future__ import annotations

import heapq
from typing import cast

from mainspring.cluster.placements import Placement, Worker
from mainspring.scheduler.policies.notes import worker_note


def enter(placement: Placement, key: int) -> bool:
    """Enter a placement by a key; return False, and do nothing, if an entry with a lower key stands."""
    entered = cast("int | None", placement.note)
    if entered is not None and key >= entered:
        return False
    placement.note = key
    heapq.heappush(worker_note(placement.worker).strategies, (key, placement.model.number, placement))
    return True


def strike(placement: Placement) -> None:
    """Make a placement's entry void."""
    placement.note = None


def peek(worker: Worker) -> tuple[int, Placement] | None:
    """Return the lowest valid key on a worker and its placement, None if there is none."""
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
