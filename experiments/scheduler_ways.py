"""The scheduler as it runs in this process, and as Python in a process of its own, for comparison.

A process runs compiled code or none from its start on, so that the other way is measured by another one:
``python -m mainspring.experiments.scheduler_ways`` answers a `Task` on its standard input with a `Done`.
"""

from __future__ import annotations

import gc
import io
import os
import pstats
import subprocess
import sys

import msgspec
import numpy as np

from mainspring.experiments.scheduler_cost import Cost, measure, profile, scheduler_bytes
from mainspring.experiments.scheduler_load import Setting
from mainspring.native import CORE, SWITCH, Use

COMPILED, INTERPRETED = "compiled", "interpreted"
"""The two ways."""
PROFILED_LINES = 16


class Task(msgspec.Struct, frozen=True):
    """What is measured."""

    settings: dict[str, Setting]
    plays: int
    profiled: Setting | None = None
    """What is played under a profiler too, which does not see into compiled code."""


class Done(msgspec.Struct, frozen=True):
    """What was measured."""

    way: str
    costs: dict[str, Cost]
    profile: str = ""
    scheduler_bytes: int = 0
    """By how much the process grew when it made the scheduler of the first setting."""


class CannotMeasure(Exception):
    """What the other process said."""


def way() -> str:
    """Return how the scheduler runs in this process."""
    return COMPILED if CORE.state().use is Use.COMPILED else INTERPRETED


def described() -> str:
    """Say how the scheduler runs in this process, and if it is not compiled, why."""
    state = CORE.state()
    return COMPILED if state.use is Use.COMPILED else f"{INTERPRETED} ({state.use.value}: {state.detail})"


def perform(task: Task) -> Done:
    """Measure in this process."""
    grown = scheduler_bytes(next(iter(task.settings.values())))
    costs = {name: measure(setting, task.plays) for name, setting in task.settings.items()}
    return Done(way(), costs, "" if task.profiled is None else profile_text(task.profiled), grown)


def interpreted(task: Task) -> Done:
    """Measure in a process that runs all as Python; raise CannotMeasure with what it said if it fails."""
    return apart(task, {SWITCH: "0"})


def apart(task: Task, switches: dict[str, str] | None = None) -> Done:
    """Measure in a process of its own; raise CannotMeasure with what it said if it fails."""
    command = [sys.executable, "-m", "mainspring.experiments.scheduler_ways"]
    environment = {**os.environ, **(switches or {})}
    done = subprocess.run(
        command, input=msgspec.json.encode(task), env=environment, capture_output=True, check=False
    )
    if done.returncode:
        raise CannotMeasure(f"{' '.join(command)} failed:\n{done.stderr.decode(errors='replace').strip()}")
    return msgspec.json.decode(done.stdout, type=Done)


def profile_text(setting: Setting) -> str:
    """Return a profile of a setting, by the functions' own time."""
    text = io.StringIO()
    stats = pstats.Stats(profile(setting), stream=text)
    stats.sort_stats("tottime").print_stats("scheduler|heapq", PROFILED_LINES)
    return "\n".join(line for line in text.getvalue().splitlines() if line.strip())


def main() -> None:
    """Answer one task."""
    gc.disable()
    np.seterr(all="raise")
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    sys.stdout.buffer.write(msgspec.json.encode(perform(task)))


if __name__ == "__main__":
    main()
