"""What a scheduler's calls cost: recorded events played again, and timed.

Two clocks, as each disturbs what it measures: CPU time, a system call, around slices of 50 ms of virtual
time, for the cost of a request; the monotonic clock, which is cheap, around each call, for the longest ones.
"""

from __future__ import annotations

import cProfile
import gc
import itertools
import resource
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
from mainspring.scheduler.core import Scheduler

SLICE_NS = 50_000_000

Floats = npt.NDArray[np.float64]


class Share(msgspec.Struct, frozen=True):
    """What one kind of event costs."""

    per_request: float
    """How many of them come for each request."""
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
    """What came out of it, by kind."""


class Cost(msgspec.Struct, frozen=True):
    """What it took.

    The same events are played several times. The *least* over the plays is the scheduler's own cost, without
    what the machine did besides.
    """

    setting: Setting
    requests: int
    request_us_p50: float
    """Median over slices of 50 ms of virtual time: CPU in all calls by requests that arrived. Of the plays,
    the median."""
    request_us_least: float
    """Likewise, of the least of each slice."""
    request_us_mean: float
    """CPU in all calls by requests. Of the plays, the median."""
    call_us_p9999: float
    """Of all calls of all plays."""
    call_us_p9999_least: float
    """Of the least of each call."""
    call_us_max_least: float
    in_time: float
    """Share of requests that were dispatched so as to end in time."""
    loads_per_request: float
    budget: dict[str, Share]
    """By kind of event."""
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
    """Return how much memory of this process is resident."""
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
    """Return the CPU time of each slice of virtual time."""
    times_ns = []
    for part in _slices(turns):
        begin_ns = time.thread_time_ns()
        _run(scheduler, part)
        times_ns.append(time.thread_time_ns() - begin_ns)
    return times_ns


def _time_calls(scheduler: Scheduler, turns: list[Turn]) -> list[int]:
    """Return the durations of the calls, of ``handle`` and ``schedule`` in turn."""
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
    """Return what several plays say; one row for each play."""
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
    """Return what each kind of event costs."""
    kinds = np.array([type(event).__name__ for _, event, _ in turns])
    budget = {}
    for kind in sorted(set(kinds.tolist())):
        (indices,) = np.nonzero(kinds == kind)
        handle_us, schedule_us = least_us[2 * indices].mean(), least_us[2 * indices + 1].mean()
        budget[kind] = Share(len(indices) / requests, float(handle_us), float(schedule_us))
    return budget


def _longest(turns: list[Turn], least_us: Floats, count: int = 8) -> tuple[LongCall, ...]:
    """Return the longest calls, the longest first."""
    longest = []
    for index in np.argsort(-least_us)[:count].tolist():
        _, event, commands = turns[index // 2]
        made = dict(Counter(commands)) if index % 2 else {}
        call = "schedule after" if index % 2 else "handle"
        longest.append(LongCall(float(least_us[index]), call, type(event).__name__, made))
    return tuple(longest)
