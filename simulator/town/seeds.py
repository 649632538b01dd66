"""Plays many towns on several processors, and tells of those that fail."""

from __future__ import annotations

import importlib
import os
import resource
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

from mainspring.simulator.town.shrink import Failure, failure_of, shrunk, told
from mainspring.simulator.town.workload import Workload


class Played(NamedTuple):
    """The outcome of many seeds."""

    seeds: int
    failed: list[int]
    wall_s: float
    busy_s: float
    """Processor time of those that played."""

    def __str__(self) -> str:
        rate, cost = self.seeds / max(self.wall_s, 1e-9), self.seeds / max(self.busy_s, 1e-9)
        return (
            f"{self.seeds:,} seeds, {len(self.failed)} failed, {rate:.2f} seeds/s, "
            f"{cost:.2f} seeds for a second of one processor"
        )


def workload_of(name: str) -> Workload:
    """Return the workload that ``package.module:Class`` names; raise ValueError if there is none."""
    if not name:
        return Workload()
    module, _, kind = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), kind)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{name!r} names no workload (package.module:Class): {error}") from None
    if not isinstance(found, Workload):
        raise ValueError(f"{name!r} is not a subclass of mainspring.simulator.town.workload.Workload")
    return found


def fails(seed: int, workload: str = "") -> bool:
    """Play one seed; return whether it fails."""
    return failure_of(seed, workload_of(workload)) is not None


def play(
    seeds: Iterable[int], workload: str = "", processes: int | None = None,
    tell: Callable[[str], object] = print, most_told: int = 3, until_s: float | None = None,
) -> Played:  # fmt: skip
    """Play seeds and tell of the first that fail, made small; ``until_s`` ends it early."""
    began_s, count, failed = time.monotonic(), 0, []
    seeds = list(seeds)
    busy_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    with ProcessPoolExecutor(processes or len(os.sched_getaffinity(0))) as pool:
        for seed, wrong in zip(seeds, pool.map(partial(fails, workload=workload), seeds), strict=True):
            count += 1
            if wrong:
                failed.append(seed)
                if len(failed) <= most_told:
                    for line in told(story_of(seed, workload)):
                        tell(line)
                else:
                    tell(f"seed {seed} fails too")
            if until_s is not None and time.monotonic() - began_s > until_s:
                pool.shutdown(wait=True, cancel_futures=True)
                break
    busy_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - busy_s
    return Played(count, failed, time.monotonic() - began_s, busy_s)


def story_of(seed: int, workload: str = "") -> Failure:
    """Return a failing seed's failure, made small."""
    whose = workload_of(workload)
    found = failure_of(seed, whose)
    assert found is not None, f"seed {seed} does not fail any more"
    return shrunk(found, whose)
