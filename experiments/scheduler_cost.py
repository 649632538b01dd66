"""Cost of a scheduler's calls: recorded events played again, and timed.

Two clocks, as each disturbs what it measures: CPU time, a system call, around slices of 50 ms of virtual
time, for the cost of a request; the monotonic clock, which is cheap, around each call, for the longest ones.
"""

from __future__ import annotations

import cProfile
import gc
import io
import itertools
import os
import pstats
import resource
import subprocess
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from mainspring.experiments.scheduler_load import (
    VARIETIES,
    Recording,
    Setting,
    Turn,
    backlog,
    loaded_scheduler,
    record,
    varieties,
)
from mainspring.messages.actions import Load
from mainspring.messages.events import RequestArrived
from mainspring.native import CORE, SWITCH, Use
from mainspring.scheduler.core import Scheduler

SLICE_NS = 50_000_000

Floats = npt.NDArray[np.float64]


class Share(msgspec.Struct, frozen=True):
    """Cost of one kind of event."""

    per_request: float
    handle_us: float
    """Mean CPU of `Scheduler.handle` with one."""
    schedule_us: float
    """Mean CPU of the `Scheduler.schedule` after it."""


class LongCall(msgspec.Struct, frozen=True):
    """One of the longest calls."""

    us: float
    call: str
    event: str
    commands: dict[str, int]


class Cost(msgspec.Struct, frozen=True):
    """Cost of a play.

    The same events are played several times. The *least* over the plays is the scheduler's own cost, without
    what the machine did besides.
    """

    setting: Setting
    requests: int
    request_us_p50: float
    """Median over slices of 50 ms of virtual time: CPU in all calls by requests that arrived. Of the plays,
    the median."""
    request_us_least: float
    request_us_mean: float
    """CPU in all calls by requests. Of the plays, the median."""
    call_us_p9999: float
    call_us_p9999_least: float
    call_us_max_least: float
    in_time: float
    """Share of requests that were dispatched so as to end in time."""
    loads_per_request: float
    budget: dict[str, Share]
    longest: tuple[LongCall, ...]


def measure(setting: Setting, plays: int = 5) -> Cost:
    """Record a setting, and play it ``plays`` times with each clock."""
    recording = record(setting)
    slices_ns = [play(recording, _time_slices) for _ in range(plays)]
    calls_ns = [play(recording, _time_calls) for _ in range(plays)]
    return _cost(recording, np.array(slices_ns) / 1e3, np.array(calls_ns) / 1e3)


def profile(setting: Setting) -> cProfile.Profile:
    """Play a setting under a profiler."""
    profiler = cProfile.Profile()

    def run(scheduler: Scheduler, turns: list[Turn]) -> list[int]:
        profiler.enable()
        _run(scheduler, turns)
        profiler.disable()
        return []

    play(record(setting), run)
    return profiler


def play(recording: Recording, run: Callable[[Scheduler, list[Turn]], list[int]]) -> list[int]:
    """Bring a new scheduler through the warm-up, and hand it over with the turns that follow."""
    demand = Counter(recording.demand)
    scheduler = loaded_scheduler(recording.setting, demand)
    for event in itertools.islice(backlog(demand), recording.setting.backlog):
        scheduler.handle(0, event)
    _run(scheduler, recording.turns[: recording.warm_up_turns])
    gc.collect()
    gc.freeze()
    try:
        return run(scheduler, recording.turns[recording.warm_up_turns :])
    finally:
        gc.unfreeze()


def memory_per_model(setting: Setting) -> float:
    """Return the bytes that the scheduler holds for each model when every device has prepared it."""
    tracemalloc.start()
    few = msgspec.structs.replace(setting, models=VARIETIES)
    many = msgspec.structs.replace(setting, models=VARIETIES + 500)
    sizes = []
    for each in (few, many):
        before = tracemalloc.get_traced_memory()[0]
        scheduler = loaded_scheduler(each, Counter())
        sizes.append(tracemalloc.get_traced_memory()[0] - before)
        del scheduler
        gc.collect()
    tracemalloc.stop()
    return (sizes[1] - sizes[0]) / 500


def scheduler_bytes(setting: Setting) -> int:
    """Return by how much this process's memory grows with the setting's scheduler, whose devices have
    prepared every model."""
    specs = varieties(setting.models)
    before = _resident_bytes()
    scheduler = loaded_scheduler(setting, Counter(), specs)
    grown = _resident_bytes() - before
    del scheduler
    gc.collect()
    return grown


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def _run(scheduler: Scheduler, turns: list[Turn]) -> None:
    handle, schedule = scheduler.handle, scheduler.schedule
    for now_ns, event, _ in turns:
        handle(now_ns, event)
        schedule(now_ns)


def _slices(turns: list[Turn]) -> list[list[Turn]]:
    return [list(group) for _, group in itertools.groupby(turns, key=lambda turn: turn[0] // SLICE_NS)]


def _time_slices(scheduler: Scheduler, turns: list[Turn]) -> list[int]:
    times_ns = []
    for part in _slices(turns):
        begin_ns = time.thread_time_ns()
        _run(scheduler, part)
        times_ns.append(time.thread_time_ns() - begin_ns)
    return times_ns


def _time_calls(scheduler: Scheduler, turns: list[Turn]) -> list[int]:
    times_ns: list[int] = []
    now = time.perf_counter_ns
    for now_ns, event, kinds in turns:
        begin_ns = now()
        scheduler.handle(now_ns, event)
        between_ns = now()
        commands = scheduler.schedule(now_ns)
        end_ns = now()
        times_ns += (between_ns - begin_ns, end_ns - between_ns)
        if len(commands) != len(kinds):
            raise RuntimeError(f"at {now_ns} {len(commands)} commands came out, not {len(kinds)} as before")
    return times_ns


def _cost(recording: Recording, slices_us: Floats, calls_us: Floats) -> Cost:
    turns = recording.turns[recording.warm_up_turns :]
    counts = [sum(isinstance(turn[1], RequestArrived) for turn in part) for part in _slices(turns)]
    in_slice = np.array(counts, np.float64)
    some = in_slice > 0
    least_us = calls_us.min(axis=0)
    loads = sum(kinds.count(Load.__name__) for _, _, kinds in turns)
    return Cost(
        setting=recording.setting,
        requests=recording.requests,
        request_us_p50=float(np.median(np.median(slices_us[:, some] / in_slice[some], axis=1))),
        request_us_least=float(np.median(slices_us.min(axis=0)[some] / in_slice[some])),
        request_us_mean=float(np.median(slices_us.sum(axis=1))) / recording.requests,
        call_us_p9999=float(np.percentile(calls_us, 99.99)),
        call_us_p9999_least=float(np.percentile(least_us, 99.99)),
        call_us_max_least=float(least_us.max()),
        in_time=recording.in_time,
        loads_per_request=loads / recording.requests,
        budget=_budget(turns, least_us, recording.requests),
        longest=_longest(turns, least_us),
    )


def _budget(turns: list[Turn], least_us: Floats, requests: int) -> dict[str, Share]:
    kinds = np.array([type(event).__name__ for _, event, _ in turns])
    budget = {}
    for kind in sorted(set(kinds.tolist())):
        (indices,) = np.nonzero(kinds == kind)
        handle_us, schedule_us = least_us[2 * indices].mean(), least_us[2 * indices + 1].mean()
        budget[kind] = Share(len(indices) / requests, float(handle_us), float(schedule_us))
    return budget


def _longest(turns: list[Turn], least_us: Floats, count: int = 8) -> tuple[LongCall, ...]:
    longest = []
    for index in np.argsort(-least_us)[:count].tolist():
        _, event, commands = turns[index // 2]
        made = dict(Counter(commands)) if index % 2 else {}
        call = "schedule after" if index % 2 else "handle"
        longest.append(LongCall(float(least_us[index]), call, type(event).__name__, made))
    return tuple(longest)


COMPILED, INTERPRETED = "compiled", "interpreted"
"""The two ways."""
PROFILED_LINES = 16


class Task(msgspec.Struct, frozen=True):
    """The measurement to make."""

    settings: dict[str, Setting]
    plays: int
    profiled: Setting | None = None


class Done(msgspec.Struct, frozen=True):
    """Results of the measurement."""

    way: str
    costs: dict[str, Cost]
    profile: str = ""
    scheduler_bytes: int = 0


class CannotMeasure(Exception):
    """The other process's report."""


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
    command = [sys.executable, "-m", "mainspring.experiments.scheduler_cost"]
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
