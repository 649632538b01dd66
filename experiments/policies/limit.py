"""Distance of the bound from the best schedule: ``python -m mainspring.experiments.policies.limit``.

Instances of few models on one device that holds all of them are solved exactly, with all arrivals known.
`goodput_bound` is computed for the same requests, and the policy plays them in virtual time. Where the
bound is above the best schedule, no policy can reach it. Several devices take far longer.

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

from mainspring.experiments.policies.cell import Job, play_requests
from mainspring.experiments.policies.played import Served, instants, models_of, read_table
from mainspring.experiments.policies.scenarios import USUAL, Group, Scenario
from mainspring.messages.model import Profile
from mainspring.simulator.bound.dual import Fleet, Stream, goodput_bound
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
    best: int
    """Answers in time of the best schedule."""
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


def instance(table: Path, models: int, devices: int, seed: int) -> tuple[Scenario, list[Served]]:
    """Return a scenario with some of the table's varieties, and its models with durations of whole steps."""
    rows = read_table(table)
    chosen = np.random.default_rng(seed).choice(sorted(rows), models, replace=False).tolist()
    group = Group(varieties=tuple(chosen), slo_ms=SLO_MS)
    scenario = Scenario(name="limit", title="", groups=(group,), devices={USUAL: devices}, seed=seed)
    return scenario, [_in_whole_steps(model) for model in models_of(scenario, rows)]


def _in_whole_steps(model: Served) -> Served:
    profile = model.spec.profiles[USUAL]
    infer_ns = {size: max(1, round(ns / STEP_NS)) * STEP_NS for size, ns in profile.infer_ns.items()}
    spec = msgspec.structs.replace(model.spec, profiles={USUAL: Profile(infer_ns, profile.load_ns)})
    return Served(spec, model.group, model.rate)


def limit_of(table: Path, models: int, devices: int, load: float, seconds: float, seed: int) -> Limit:
    """Solve an instance whose requests come within ``seconds``, bound it and play it."""
    scenario, served = instance(table, models, devices, seed)
    drawn = [times // STEP_NS * STEP_NS + STEP_NS for times in instants(served, load, seconds, seed)]
    streams, given = [], []
    slo_ns = round(SLO_MS * 1e6)
    for model, times in zip(served, drawn, strict=True):
        given += [Arrival(time_ns, model.spec.name, 1, slo_ns) for time_ns in times.tolist()]
        if len(times):
            streams.append(Stream(times, times + slo_ns, {USUAL: model.spec.profiles[USUAL].infer_ns}))
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
    bound = goodput_bound(streams, Fleet({USUAL: devices})).requests
    return Limit(len(given), bound, best(streams, devices, in_time), in_time)


def told(limits: Sequence[Limit]) -> list[str]:
    """Return what a row of the table says of instances of one kind."""
    bound, exact = sum(each.bound for each in limits), sum(each.best for each in limits)
    served = sum(each.served for each in limits)
    above = [each.bound / each.best - 1 for each in limits]
    return [
        str(sum(each.offered for each in limits)),
        f"{bound:.1f}",
        str(exact),
        str(served),
        f"{100 * (bound / exact - 1):.1f} ({100 * min(above):.1f} to {100 * max(above):.1f})",
        f"{100 * served / exact:.1f}",
        f"{100 * served / bound:.1f}",
    ]


def main(
    models: Annotated[int, typer.Option(min=1, help="Models of each instance.")] = 3,
    devices: Annotated[str, typer.Option(help="Numbers of devices.")] = "1",
    loads: Annotated[str, typer.Option(help="Multiples of the fluid capacity.")] = "1",
    seconds: Annotated[float, typer.Option(min=0.01, help="Time in which requests arrive.")] = 0.2,
    seeds: Annotated[int, typer.Option(min=1, help="Instances of each number and load.")] = 8,
    profiles: Annotated[Path, typer.Option(help="Table of profiles (Clockwork's appendix A).")] = Path(
        "../shared/profiles/clockwork_table1.csv"
    ),
) -> None:
    """Say how far the bound is above what is possible at all, and what part of that the policy serves."""
    if not profiles.exists():
        raise typer.BadParameter(f"{profiles} is not there: give the table of profiles with --profiles")
    made = Table(title=f"{models} models, {seconds:g} s of requests with {SLO_MS:g} ms, {seeds} instances")
    columns = ("devices", "load", "requests", "bound", "best", "policy", "bound above best, %")
    for name in (*columns, "policy of best, %", "of bound, %"):
        made.add_column(name, justify="right")
    for count in map(int, devices.split(",")):
        for load in map(float, loads.split(",")):
            limits = [limit_of(profiles, models, count, load, seconds, seed) for seed in range(1, seeds + 1)]
            made.add_row(str(count), f"{load:g}", *told(limits))
    Console(width=120).print(made)


if __name__ == "__main__":
    typer.run(main)
