"""The search ``exhaustive``: all pools, each played to its end, for tables and comparisons."""

from __future__ import annotations

from mainspring.planner.pools.search import Ending, Task


def exhaustive(task: Task) -> Ending:
    """Try all pools by rising price, those below the floor of capacity too; raise `BudgetSpent`."""
    for pool in task.space.pools():
        task.trials.evaluate(pool, whole=True)
    return Ending("all pools were tried", proven=True)
