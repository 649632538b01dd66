"""The cost of the scheduler's calls on this machine, as a table that a simulation charges (`costs`).

The events of a short simulation are played to a fresh scheduler several times and every call is timed; the
least of a call's times is its own cost, without what the machine did besides.
"""

from __future__ import annotations

import gc
from collections import Counter
from time import perf_counter_ns

import msgspec
import numpy as np
import numpy.typing as npt

from mainspring.messages.actions import Command
from mainspring.messages.events import Event, Wakeup
from mainspring.scheduler.core import Scheduler
from mainspring.simulator.controller import kind_of
from mainspring.simulator.costs import COMMANDS, EVENTS, ControllerCost, CostSpec
from mainspring.simulator.run import simulate
from mainspring.simulator.spec import SimulationSpec

PLAYS = 3
LONGEST_S = 3.0
"""Virtual time that is played at most."""

Entries = list[tuple[int, Event | Command]]
Floats = npt.NDArray[np.float64]


def calibrate(spec: SimulationSpec) -> ControllerCost:
    """Return the scheduler's costs under a spec's load; what is beside the scheduler stays as in the spec."""
    entries: Entries = []
    short = msgspec.structs.replace(
        spec,
        warm_up_s=min(spec.warm_up_s, LONGEST_S / 2),
        duration_s=min(spec.duration_s, LONGEST_S),
        cost=CostSpec(),
    )
    simulate(short, analyse=False, record=lambda now_ns, message: entries.append((now_ns, message)))
    calls_us = np.array([_time_calls(spec, entries) for _ in range(PLAYS)]).min(axis=0) / 1e3
    return _fit(entries, calls_us, spec.cost.controller)


def _time_calls(spec: SimulationSpec, entries: Entries) -> list[int]:
    """Return how long each ``handle``, and each ``schedule`` after a wake-up, took, in order."""
    scheduler = Scheduler(spec.scheduler)
    times_ns = []
    collected = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for now_ns, message in entries:
            if isinstance(message, Wakeup):
                began_ns = perf_counter_ns()
                scheduler.schedule(now_ns)
                times_ns.append(perf_counter_ns() - began_ns)
            elif isinstance(message, Event):
                began_ns = perf_counter_ns()
                scheduler.handle(now_ns, message)
                times_ns.append(perf_counter_ns() - began_ns)
    finally:
        if collected:
            gc.enable()
    return times_ns


def _fit(entries: Entries, calls_us: Floats, beside: ControllerCost) -> ControllerCost:
    """Return means for each kind of event, and least squares over the commands of each ``schedule``."""
    handled: dict[str, list[float]] = {}
    schedules_us: list[float] = []
    commands: list[Counter[str]] = []
    place = 0
    for _, message in entries:
        if isinstance(message, Wakeup):
            schedules_us.append(float(calls_us[place]))
            commands.append(Counter())
            place += 1
        elif isinstance(message, Event):
            handled.setdefault(kind_of(message), []).append(float(calls_us[place]))
            place += 1
        elif commands:
            commands[-1][kind_of(message)] += 1
    kinds = sorted({kind for counts in commands for kind in counts})
    matrix = np.array([[1.0, *(counts[kind] for kind in kinds)] for counts in commands])
    solution, *_ = np.linalg.lstsq(matrix, np.array(schedules_us), rcond=None)
    return msgspec.structs.replace(
        beside,
        handle_us={kind: round(float(np.mean(times)), 3) for kind, times in sorted(handled.items())},
        schedule_us=round(max(0.0, float(solution[0])), 3),
        command_us={
            kind: round(max(0.0, float(value)), 3) for kind, value in zip(kinds, solution[1:], strict=True)
        },
    )


def cost_toml(cost: ControllerCost) -> str:
    """Return the tables of a spec that charge these costs."""

    def inline(table: dict[str, float]) -> str:
        return "{ " + ", ".join(f"{kind} = {value:g}" for kind, value in table.items()) + " }"

    lines = ["[cost]", 'mode = "table"', "", "[cost.controller]"]
    for name in ControllerCost.__struct_fields__:
        value = getattr(cost, name)
        lines.append(f"{name} = {inline(value) if isinstance(value, dict) else f'{value:g}'}")
    unseen = [kind for kind in EVENTS if kind not in cost.handle_us]
    unseen += [kind for kind in COMMANDS if kind not in cost.command_us]
    if unseen:
        lines.append(f"# Free, since this load has none: {', '.join(unseen)}")
    return "\n".join(lines)
