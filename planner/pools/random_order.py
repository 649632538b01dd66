"""The search ``random``: pools at random, less what others rule out (Ribbon, section 5.3)."""

from __future__ import annotations

import numpy as np

from mainspring.planner.pools.objective import Pruned
from mainspring.planner.pools.search import Ending, Task


def random_order(task: Task) -> Ending:
    """Try pools at random.

    Left out are those within one that violates, and those that have one within them that holds; raise
    `BudgetSpent`.
    """
    rng, pruned = np.random.default_rng(task.seed), Pruned(task)
    for pool in task.starts:
        pruned.note_order(task.trials.evaluate(pool))
    while len(left := pruned.left):
        pool = tuple(task.space.counts[int(rng.choice(left))].tolist())
        pruned.note_order(task.trials.evaluate(pool))
    return Ending("every pool was tried or ruled out")
