"""The search ``exact``: pools by rising price until one holds. What it finds is the cheapest, with its proof.

Pools below the floor of capacity are skipped: no scheduler keeps the promise on them.
"""

from __future__ import annotations

import numpy as np

from mainspring.planner.pools.search import Ending, Task


def exact(task: Task) -> Ending:
    """Try pools by rising price; raise `BudgetSpent`."""
    counts = task.space.counts[np.flatnonzero(task.possible)]
    for row in counts.tolist():
        if task.trials.evaluate(tuple(row)).holds(task.trials.attainment):
            return Ending("every cheaper pool was tried or has not the capacity", proven=True)
    if not len(counts):
        return Ending("no pool within the bounds has the capacity", proven=True)
    return Ending("every pool was tried or has not the capacity", proven=True)
