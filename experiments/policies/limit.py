"""Distance of the bound from the best schedule: ``python -m mainspring.experiments.policies.limit``.

Instances of few models on one device are solved exactly, with all arrivals known. `goodput_bound` is computed
for the same requests, and the policy plays them in virtual time. Where the bound is above the best schedule,
no policy can reach it. Several devices take far longer. With ``--memory`` the device has pages for a part of
the models alone (`short`).

Instants and durations are rounded to whole steps, so that few states differ by next to nothing.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from mainspring.experiments.policies import short
from mainspring.experiments.policies.cell import Job, play_requests
from mainspring.experiments.policies.played import Served, instants, models_of, read_table
from mainspring.experiments.policies.scenarios import USUAL, Group, Scenario
from mainspring.messages.model import Profile
from mainspring.simulator.bound.dual import Fleet, Stream, goodput_bound
from mainspring.simulator.cluster import preload
from mainspring.traces.arrival import Arrival
from mainspring.traces.records import OUTPUTS

STEP_NS = 1_000_000
SLO_MS = 30.0
State = tuple[tuple[int, ...], tuple[int, ...]]
"""Instants at which devices are free, ascending; for each stream, as bits, what is answered or too late."""


class Limit(msgspec.Struct, frozen=True):
    """Answers to an instance's requests: by the bound, by the best schedule and by the policy."""

    offered: int
    bound: float
    best: short.Proven
    """Answers in time of the best schedule, and what it can't exceed."""
    served: int
    """Answers in time of the policy."""


class Lane(msgspec.Struct, frozen=True):
    """The requests of one model, and how long its batches take."""

    arrivals_ns: list[int]
    due_ns: list[int]
    table: list[tuple[int, int]]
    """(batch size, duration), ascending."""


def best(streams: Sequence[Stream], devices: int, known: int = 0) -> int:
    """Return how many requests can be answered in time by a schedule that knows all arrivals.

    ``known`` is what some schedule answers; what loses more is left out.

    The devices are of the kind `USUAL` and hold all models; each stream's deadlines are in the order of its
    arrivals. Dynamic programming over the instants at which a device is free, with a state of (when each is,
    which requests of each stream are answered or too late). Nothing is lost by what is left out: a batch
    takes the oldest requests that it ends in time for, as many as there is room for, and a device waits only
    for an arrival.
    """
    lanes = [
        Lane(each.arrival_ns.tolist(), each.due_ns.tolist(), sorted(each.infer_ns[USUAL].items()))
        for each in streams
    ]
    instants_ns = sorted({at for lane in lanes for at in lane.arrivals_ns})
    reached: dict[int, dict[State, int]] = {
        instants_ns[0]: {((instants_ns[0],) * devices, (0,) * len(lanes)): 0}
    }
    offered = sum(len(lane.due_ns) for lane in lanes)
    pending_ns, most = [instants_ns[0]], known
    while pending_ns:
        states = reached[heapq.heappop(pending_ns)]
        while states:
            state, served = states.popitem()
            most = max(most, served)
            for after, more in _choices(lanes, instants_ns, state):
                at_ns = after[0][0]
                too_late = sum(mask.bit_count() for mask in after[1]) - served - more
                if offered - too_late <= most:
                    continue
                if at_ns not in reached:
                    reached[at_ns] = {}
                    heapq.heappush(pending_ns, at_ns)
                if reached[at_ns].get(after, -1) < served + more:
                    reached[at_ns][after] = served + more
    return most


def _choices(lanes: Sequence[Lane], instants_ns: list[int], state: State) -> Iterator[tuple[State, int]]:
    """Yield what the device that is free first can do: the state after it, and the requests it answers."""
    (now_ns, *others), gone = state
    # Those that are too late are gone, so that states which differ in nothing else are one.
    gone = tuple(
        mask | (1 << bisect_left(lane.due_ns, now_ns + lane.table[0][1])) - 1
        for mask, lane in zip(gone, lanes, strict=True)
    )
    for place, lane in enumerate(lanes):
        arrived, before = bisect_right(lane.arrivals_ns, now_ns), 0
        for size, infer_ns in lane.table:
            first = bisect_left(lane.due_ns, now_ns + infer_ns)
            taken = [each for each in range(first, arrived) if not gone[place] >> each & 1][:size]
            if len(taken) <= before:
                break
            before = len(taken)
            mask = gone[place] | sum(1 << each for each in taken)
            free = tuple(sorted((*others, now_ns + infer_ns)))
            yield (free, (*gone[:place], mask, *gone[place + 1 :])), len(taken)
    following = bisect_right(instants_ns, now_ns)
    if following < len(instants_ns):
        until_ns = instants_ns[following]
        yield (tuple(sorted(max(each, until_ns) if each == now_ns else each for each in state[0])), gone), 0


def instance(
    table: Path, models: int, devices: int, seed: int, memory: float | None = None
) -> tuple[Scenario, list[Served]]:
    """Return a scenario with some of the table's varieties, and its models with durations of whole steps.

    ``memory`` is the part of all models' pages that a device has, though enough for each alone.
    """
    rows = read_table(table)
    chosen = np.random.default_rng(seed).choice(sorted(rows), models, replace=False).tolist()
    group = Group(varieties=tuple(chosen), slo_ms=SLO_MS)
    scenario = Scenario(name="limit", title="", groups=(group,), devices={USUAL: devices}, seed=seed)
    served = [_in_whole_steps(model) for model in models_of(scenario, rows)]
    pages = [model.spec.pages for model in served]
    if memory is not None:
        scenario = msgspec.structs.replace(scenario, pages=max(*pages, int(memory * sum(pages))))
    return scenario, served


def _in_whole_steps(model: Served) -> Served:
    profile = model.spec.profiles[USUAL]
    infer_ns = {size: _in_steps(ns) * STEP_NS for size, ns in profile.infer_ns.items()}
    rounded = Profile(infer_ns, _in_steps(profile.load_ns) * STEP_NS)
    return Served(msgspec.structs.replace(model.spec, profiles={USUAL: rounded}), model.group, model.rate)


def _in_steps(duration_ns: int) -> int:
    return max(1, round(duration_ns / STEP_NS))


def _held(scenario: Scenario, served: Sequence[Served]) -> set[str]:
    """Return the models that the device holds before the first request, as `play_requests` has it."""
    wanted = sorted(range(len(served)), key=lambda index: (-served[index].rate, index))
    worker = ("worker-0", USUAL, scenario.pages)
    found = preload([served[index].spec for index in wanted], [worker], "fill")
    return {spec.name for spec in found[worker[0]].resident}


def _short(streams: Sequence[Stream], pages: int, known: int) -> short.Proven:
    """Solve an instance on one device of so many pages."""
    return short.best_short(
        [
            short.Lane(
                (each.arrival_ns // STEP_NS).tolist(),
                (each.due_ns // STEP_NS).tolist(),
                sorted((size, ns // STEP_NS) for size, ns in each.infer_ns[USUAL].items()),
                each.load_ns[USUAL] // STEP_NS,
                each.pages,
                each.resident,
            )
            for each in streams
        ],
        pages,
        known,
    )


def limit_of(
    table: Path,
    models: int,
    devices: int,
    load: float,
    seconds: float,
    seed: int,
    memory: float | None = None,
) -> Limit:
    """Solve an instance whose requests come within ``seconds``, bound it and play it; ``memory`` as of
    `instance`, and only for one device."""
    scenario, served = instance(table, models, devices, seed, memory)
    held = _held(scenario, served)
    drawn = [times // STEP_NS * STEP_NS + STEP_NS for times in instants(served, load, seconds, seed)]
    streams, given = [], []
    slo_ns = round(SLO_MS * 1e6)
    for model, times in zip(served, drawn, strict=True):
        given += [Arrival(time_ns, model.spec.name, 1, slo_ns) for time_ns in times.tolist()]
        if len(times):
            profile, name = model.spec.profiles[USUAL], model.spec.name
            load_ns, resident = {USUAL: profile.load_ns}, name in held
            due_ns = times + slo_ns
            streams.append(
                Stream(times, due_ns, {USUAL: profile.infer_ns}, load_ns, model.spec.pages, resident)
            )
    given.sort(key=lambda each: each.time_ns)
    job = Job(
        scenario=scenario.name,
        policy="mainspring@fairness=0",
        load=load,
        seed=seed,
        seconds=seconds,
        warm_up=0.0,
        most_requests=len(given),
        table=str(table),
        bounds=None,
    )
    _, sent, replied = play_requests(job, scenario, served, drawn, given)
    took_ns = replied["replied_ns"] - sent["intended_ns"]
    in_time = int(((replied["outcome"] == OUTPUTS) & (took_ns <= slo_ns)).sum())
    pages = None if memory is None else scenario.pages
    bound = goodput_bound(streams, Fleet({USUAL: devices}, pages)).requests
    if pages is None:
        answered = best(streams, devices, in_time)
        return Limit(len(given), bound, short.Proven(answered, answered), in_time)
    return Limit(len(given), bound, _short(streams, pages, in_time), in_time)


def told(limits: Sequence[Limit]) -> list[str]:
    """Return what a row of the table says of instances of one kind.

    Where a best schedule is not known exactly, the most that it can have counts: the bound is above it by at
    least what is told, and the policy has at least that part of it.
    """
    bound, most = sum(each.bound for each in limits), sum(each.best.most for each in limits)
    found, served = sum(each.best.found for each in limits), sum(each.served for each in limits)
    above = [each.bound / each.best.most - 1 for each in limits]
    return [
        str(sum(each.offered for each in limits)),
        f"{bound:.1f}",
        str(most) if found == most else f"{found} to {most}",
        str(served),
        f"{100 * (bound / most - 1):.1f} ({100 * min(above):.1f} to {100 * max(above):.1f})",
        f"{100 * served / most:.1f}",
        f"{100 * served / bound:.1f}",
    ]


def main(
    models: Annotated[int, typer.Option(min=1, help="Models of each instance.")] = 3,
    devices: Annotated[str, typer.Option(help="Numbers of devices.")] = "1",
    loads: Annotated[str, typer.Option(help="Multiples of the fluid capacity.")] = "1",
    seconds: Annotated[float, typer.Option(min=0.01, help="Time in which requests arrive.")] = 0.2,
    seeds: Annotated[int, typer.Option(min=1, help="Instances of each number and load.")] = 8,
    memory: Annotated[
        float | None,
        typer.Option(min=0.01, max=1, help="Part of all models' pages that the device has; without it, all."),
    ] = None,
    profiles: Annotated[Path, typer.Option(help="Table of profiles (Clockwork's appendix A).")] = Path(
        "../shared/profiles/clockwork_table1.csv"
    ),
) -> None:
    """Say how far the bound is above what is possible at all, and what part of that the policy serves."""
    if not profiles.exists():
        raise typer.BadParameter(f"{profiles} is not there: give the table of profiles with --profiles")
    if memory is not None and devices != "1":
        raise typer.BadParameter("with --memory there is one device: leave --devices out")
    room = "" if memory is None else f", memory for {memory:g} of all"
    title = f"{models} models, {seconds:g} s of requests with {SLO_MS:g} ms, {seeds} instances{room}"
    made = Table(title=title)
    columns = ("devices", "load", "requests", "bound", "best", "policy", "bound above best, %")
    for name in (*columns, "policy of best, %", "of bound, %"):
        made.add_column(name, justify="right")
    for count in map(int, devices.split(",")):
        for load in map(float, loads.split(",")):
            limits = [
                limit_of(profiles, models, count, load, seconds, seed, memory) for seed in range(1, seeds + 1)
            ]
            made.add_row(str(count), f"{load:g}", *told(limits))
    Console(width=120).print(made)


if __name__ == "__main__":
    typer.run(main)
