"""In which order models are evicted: those of the least loss first, of which a LOAD mostly takes one or two.

So nothing is sorted: the first few are each found by a pass over numbers, and only a LOAD that takes more of
them has the rest ordered by a heap. An order that is kept would have to be put right at each request, each
change of the price of EXEC's time, and each copy that comes or goes, for every device that holds the model.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final

from mainspring.cluster.placements import Placement

_LOOKED_FOR: Final = 4
"""Placements that are found by a pass each."""


def least_first(losses: list[float], placements: list[Placement]) -> Iterator[Placement]:
    """Yield placements by their losses, of equal ones those of the model that came first; both lists are used
    up."""
    for _ in range(_LOOKED_FOR):
        last = len(losses) - 1
        if last < 0:
            return
        least = 0
        for index in range(1, last + 1):
            if losses[index] <= losses[least] and _precedes(losses, placements, index, least):
                least = index
        chosen = placements[least]
        losses[least], placements[least] = losses[last], placements[last]
        del losses[last], placements[last]
        yield chosen
    heap = [(loss, placements[index].model.number, placements[index]) for index, loss in enumerate(losses)]
    heapq.heapify(heap)
    while heap:
        yield heapq.heappop(heap)[2]


def _precedes(losses: list[float], placements: list[Placement], one: int, other: int) -> bool:
    return losses[one] < losses[other] or placements[one].model.number < placements[other].model.number
