"""The highest load at which a policy still answers nearly all in time."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence

import msgspec
from rich.table import Table

from mainspring.experiments.policies.cell import Job, play_cell

GOAL = 0.99
LOWEST, HIGHEST = 0.05, 1.2
PROBES = 7
"""Halvings of the range: the load is found to within a hundredth."""


class Highest(msgspec.Struct, frozen=True, kw_only=True):
    """The highest load with `GOAL` in time; 0 if it is not reached at `LOWEST`."""

    scenario: str
    policy: str
    load: float


def find_all(jobs: Sequence[Job], processes: int) -> list[Highest]:
    """Find the highest load for each job's scenario and policy; its own load is ignored."""
    if processes == 1 or len(jobs) == 1:
        return [find(job) for job in jobs]
    with multiprocessing.get_context("spawn").Pool(min(processes, len(jobs))) as pool:
        return pool.map(find, jobs, chunksize=1)


def find(job: Job) -> Highest:
    """Find a job's highest load by bisection."""
    low, high = 0.0, HIGHEST
    for probe in range(PROBES):
        load = LOWEST if probe == 0 else (low + high) / 2
        cell = play_cell(msgspec.structs.replace(job, load=load, bounds=None))
        if cell.in_time >= GOAL:
            low = load
        else:
            high = load
            if probe == 0:
                break
    return Highest(scenario=job.scenario, policy=job.policy, load=low)


def table(found: Sequence[Highest]) -> Table:
    """Return the loads as a table."""
    policies = list(dict.fromkeys(each.policy for each in found))
    loads = {(each.scenario, each.policy): each.load for each in found}
    drawn = Table(title=f"highest load with {GOAL:.0%} in time, in multiples of the fluid capacity")
    drawn.add_column("scenario")
    for policy in policies:
        drawn.add_column(policy, justify="right")
    for scenario in dict.fromkeys(each.scenario for each in found):
        drawn.add_row(scenario, *(f"{loads[scenario, policy]:.3f}" for policy in policies))
    return drawn
