"""Time and cost of early refusals: ``python -m mainspring.experiments.policies.refusals``.

Each scenario's requests are played without early refusals (``refuse_wrongly = 0``) and with one or more other
values of it, and compared request by request.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Annotated

import msgspec
import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from mainspring.experiments.policies.cell import Job, lengths, play_requests
from mainspring.experiments.policies.played import fluid_rate, instants, models_of, read_table
from mainspring.experiments.policies.scenarios import SCENARIOS, scenarios_of
from mainspring.experiments.policies.sweep import on_all_cores
from mainspring.messages.codes import Reason
from mainspring.traces.arrival import SECOND_NS
from mainspring.traces.records import FIRST_REASON, NO_DEADLINE, OUTPUTS, REASONS

EARLY = FIRST_REASON + REASONS.index(Reason.OVERLOADED)
"""No queue has a bound here, so that nothing else is refused as overloaded."""
TIMES = (0.25, 0.5, 0.75)


class Refusals(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one way to refuse in one scenario at one load, beside none early (``last``)."""

    job: Job
    last: float
    """Share answered in time with ``last``."""
    goodput: float
    """Share answered in time."""
    refused: int
    """Measured requests without an answer."""
    times: list[float]
    """Quantiles (`TIMES`) of when they were refused, in parts of the time that they were given."""
    last_time: float
    """The median of these with ``last``."""
    early: float
    """Share of them that were refused early."""
    answered: float
    """Share of those refused early that ``last`` answers in time: mostly in the place of others."""


Way = tuple[str, float]
"""Policy and load."""
Means = dict[Way, dict[str, tuple[float, ...]]]
"""Median refusal by scenario, points of goodput over none early, and the median without early ones."""


def refusals_of(job: Job) -> Refusals:
    """Play a job, whose policy says how it refuses, and the same with ``last``."""
    scenario = SCENARIOS[job.scenario]
    models = models_of(scenario, read_table(Path(job.table)))
    warm_up, seconds = lengths(job, fluid_rate(models))
    drawn = instants(models, job.load, warm_up + seconds, job.seed + scenario.seed - 1)
    played = []
    for policy in (_with(job.policy, "refuse_wrongly=0"), job.policy):
        each = msgspec.structs.replace(job, policy=policy)
        _, sent, replied = play_requests(each, scenario, models, drawn)
        measured = (sent["slo_ns"] != NO_DEADLINE) & (sent["intended_ns"] >= round(warm_up * SECOND_NS))
        took = (replied["replied_ns"] - sent["intended_ns"])[measured] / sent["slo_ns"][measured]
        outcome = replied["outcome"][measured]
        played.append((took, outcome, (outcome == OUTPUTS) & (took <= 1.0)))
    (last_took, last_outcome, last), (took, outcome, in_time) = played
    refused, early = outcome >= FIRST_REASON, outcome == EARLY
    return Refusals(
        job=job,
        last=float(last.mean()),
        goodput=float(in_time.mean()),
        refused=int(refused.sum()),
        times=[float(value) for value in np.quantile(took[refused], TIMES)] if refused.any() else [],
        last_time=float(np.median(last_took[last_outcome >= FIRST_REASON])) if not last.all() else 0.0,
        early=float(early.sum() / max(1, refused.sum())),
        answered=float(last[early].mean()) if early.any() else 0.0,
    )


def main(
    scenarios: Annotated[
        str, typer.Option(help="Names, or six, study, others, held-out, unlike-requests, erratic or all.")
    ] = "all",
    policies: Annotated[str, typer.Option(help="Names with commas between.")] = "mainspring",
    loads: Annotated[str, typer.Option(help="Multiples of the fluid capacity.")] = "1,1.5",
    wrongly: Annotated[str, typer.Option(help="Values of refuse_wrongly.")] = "0.15",
    seed: Annotated[int, typer.Option(help="Of the arrivals.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, from that on.")] = 1,
    seconds: Annotated[float, typer.Option(help="Measured virtual time.")] = 20.0,
    most_requests: Annotated[int, typer.Option(help="Most requests that are measured.")] = 12_000,
    retry_ms: Annotated[float, typer.Option(help="Clients come back once after this; 0: they do not.")] = 0.0,
    profiles: Annotated[Path, typer.Option(help="Table of profiles.")] = Path(
        "../shared/profiles/clockwork_table1.csv"
    ),
    processes: Annotated[int, typer.Option(help="Cells played side by side; 0 for one a core.")] = 0,
    output: Annotated[Path, typer.Option(help="Folder for refusals.json.")] = Path("out/policies"),
) -> None:
    """Play policies with early refusals beside late ones, and say what they cost."""
    if not profiles.exists():
        raise typer.BadParameter(f"{profiles} is not there: give the table of profiles with --profiles")
    jobs = [
        Job(
            scenario=scenario,
            policy=_with(policy, f"refuse_wrongly={value}"),
            load=float(load),
            seed=seed + number,
            seconds=seconds,
            warm_up=3.0,
            most_requests=most_requests,
            table=str(profiles),
            bounds=None,
            retry_ms=retry_ms,
        )
        for scenario in scenarios_of(scenarios)
        for load in loads.split(",")
        for policy in policies.split(",")
        for value in wrongly.split(",")
        for number in range(seeds)
    ]
    played = on_all_cores(refusals_of, jobs, processes or os.cpu_count() or 1)
    found = list(track(played, description="cells", total=len(jobs)))
    output.mkdir(parents=True, exist_ok=True)
    (output / "refusals.json").write_bytes(msgspec.json.format(msgspec.json.encode(found)))
    Console(width=160).print(table(found), curve(found))


def table(found: list[Refusals]) -> Table:
    """Return one row for each cell."""
    shown = Table(title="early refusals: quartiles of refusal time / SLO, goodput in % of what was offered")
    for column in ("scenario", "load", "policy", "last", "early", "points", "median of last", "quartiles"):
        shown.add_column(column)
    for column in ("refused early", "of these answered by last"):
        shown.add_column(column, justify="right")
    for each in found:
        policy = each.job.policy.replace("refuse_wrongly=", "")
        shown.add_row(
            *(each.job.scenario, f"{each.job.load:g}", policy, f"{100 * each.last:.1f}"),
            *(
                f"{100 * each.goodput:.1f}",
                f"{100 * (each.goodput - each.last):+.2f}",
                f"{each.last_time:.2f}",
            ),
            " / ".join(f"{value:.2f}" for value in each.times),
            *(f"{100 * each.early:.0f} %", f"{100 * each.answered:.0f} %"),
        )
    return shown


def curve(found: list[Refusals]) -> Table:
    """Return what each way to refuse costs by how early it does; the least of `distances` is the knee."""
    shown = Table(title="the curve: points of goodput by the median refusal time / SLO, over the scenarios")
    columns = "policy", "load", "median, mean", "median, worst", "points, mean", "points, worst", "distance"
    for column in columns:
        shown.add_column(column, justify="right")
    means = means_of(found)
    away = distances(means)
    for (policy, load), far in away.items():
        medians, points, _ = zip(*means[policy, load].values(), strict=True)
        told = fmean(medians), max(medians), fmean(points), min(points)
        shown.add_row(policy, f"{load:g}", *(f"{value:+.2f}" for value in told), f"{far:.2f}")
    knees = [
        min((way for way in away if way[1] == load), key=away.__getitem__)
        for load in {way[1] for way in away}
    ]
    shown.caption = "; ".join(f"knee at load {load:g}: {policy}" for policy, load in sorted(knees))
    return shown


def means_of(found: list[Refusals]) -> Means:
    """Return the means of each way to refuse in each scenario in which it refused some."""
    cells: dict[Way, dict[str, list[Refusals]]] = defaultdict(lambda: defaultdict(list))
    for each in found:
        if each.times:
            cells[each.job.policy, each.job.load][each.job.scenario].append(each)
    of_each = [
        lambda each: each.times[1],
        lambda each: 100 * (each.goodput - each.last),
        lambda each: each.last_time,
    ]
    return {
        way: {name: tuple(fmean(map(of, own)) for of in of_each) for name, own in scenarios.items()}
        for way, scenarios in cells.items()
    }


def distances(means: Means) -> dict[Way, float]:
    """Return how far each way to refuse is from no cost at the earliest refusals, in the mean of scenarios.

    In each of them medians are scaled so that 0 is the least of the load's ways and 1 that without early
    refusals, and costs so that 1 is the highest.
    """
    far: dict[Way, float] = {}
    for (policy, load), scenarios in means.items():
        parts = []
        for name, (median, points, last) in scenarios.items():
            same = [each[name] for (_, other), each in means.items() if other == load and name in each]
            least, cost = min(each[0] for each in same), max(-each[1] for each in same)
            later = (median - least) / (last - least) if last > least else 0.0
            parts.append(math.hypot(later, max(0.0, -points) / cost if cost > 0 else 0.0))
        far[policy, load] = fmean(parts)
    return far


def _with(policy: str, options: str) -> str:
    """Return a policy with options beside, or in the place of, those that it has."""
    if "refuse_wrongly=" in policy:
        policy = policy.partition("refuse_wrongly=")[0].rstrip(",@")
    return f"{policy}{',' if '@' in policy else '@'}{options}"


if __name__ == "__main__":
    typer.run(main)
