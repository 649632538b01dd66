"""How early refusals come, and what that costs: ``python -m mainspring.experiments.policies.refusals``.

Each scenario's requests are played without early refusals (``refuse_wrongly = 0``) and with one or more other
values of it, and compared request by request.
"""

from __future__ import annotations

import os
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
from mainspring.experiments.policies.scenarios import ERRATIC, OTHERS, SCENARIOS, STUDY, UNLIKE
from mainspring.experiments.policies.sweep import on_all_cores
from mainspring.messages.codes import Reason
from mainspring.traces.arrival import SECOND_NS
from mainspring.traces.records import FIRST_REASON, NO_DEADLINE, OUTPUTS, REASONS

EARLY = FIRST_REASON + REASONS.index(Reason.OVERLOADED)
"""No queue has a bound here, so that nothing else is refused as overloaded."""
TIMES = (0.25, 0.5, 0.75)
SIX = ("A", "D", "G", "H", "slos", "mixed-slos")
"""The scenarios by which the default was chosen."""


class Refusals(msgspec.Struct, frozen=True, kw_only=True):
    """What one way to refuse came to in one scenario at one load, beside none early (``last``)."""

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

    @property
    def lost(self) -> float:
        """Requests lost in all for each that was refused early."""
        early = self.early * self.refused
        offered = self.refused / (1.0 - self.goodput) if self.goodput < 1.0 else 0.0
        return (self.last - self.goodput) * offered / early if early else 0.0


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
        str, typer.Option(help="Names, or six, study, others, unlike-requests, erratic or all.")
    ] = "all",
    policies: Annotated[str, typer.Option(help="Names with commas between.")] = "mainspring",
    loads: Annotated[str, typer.Option(help="Multiples of the fluid capacity.")] = "1,1.5",
    wrongly: Annotated[str, typer.Option(help="Values of refuse_wrongly.")] = "0.15",
    seed: Annotated[int, typer.Option(help="Of the arrivals.")] = 0,
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
            seed=seed,
            seconds=seconds,
            warm_up=3.0,
            most_requests=most_requests,
            table=str(profiles),
            bounds=None,
            retry_ms=retry_ms,
        )
        for scenario in _scenarios(scenarios)
        for load in loads.split(",")
        for policy in policies.split(",")
        for value in wrongly.split(",")
    ]
    found = list(
        track(
            on_all_cores(refusals_of, jobs, processes or os.cpu_count() or 1),
            description="cells",
            total=len(jobs),
        )
    )
    output.mkdir(parents=True, exist_ok=True)
    (output / "refusals.json").write_bytes(msgspec.json.format(msgspec.json.encode(found)))
    console = Console(width=160)
    console.print(table(found))
    console.print(curve(found))


def table(found: list[Refusals]) -> Table:
    """Return one row for each cell."""
    shown = Table(title="early refusals: quartiles of refusal time / SLO, goodput in % of what was offered")
    for column in ("scenario", "load", "policy", "last", "early", "points", "median of last", "quartiles"):
        shown.add_column(column)
    for column in ("refused early", "of these answered by last", "lost for each"):
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
            *(f"{100 * each.early:.0f} %", f"{100 * each.answered:.0f} %", f"{100 * each.lost:.1f} %"),
        )
    return shown


def curve(found: list[Refusals]) -> Table:
    """Return what refusals cost by how early they come, over all scenarios: one row for each way to refuse
    and load."""
    shown = Table(title="the curve: points of goodput by the median refusal time / SLO, over the scenarios")
    for column in ("policy", "load", "median, mean", "median, worst", "points, mean", "points, worst"):
        shown.add_column(column, justify="right")
    of_way: dict[tuple[str, float], list[Refusals]] = {}
    for each in found:
        if each.times:
            of_way.setdefault((each.job.policy, each.job.load), []).append(each)
    for (policy, load), cells in of_way.items():
        medians = [each.times[TIMES.index(0.5)] for each in cells]
        points = [100 * (each.goodput - each.last) for each in cells]
        told = fmean(medians), max(medians), fmean(points), min(points)
        shown.add_row(policy, f"{load:g}", *(f"{value:+.2f}" for value in told))
    return shown


def _with(policy: str, options: str) -> str:
    """Return a policy with options beside, or in the place of, those that it has."""
    if "refuse_wrongly=" in policy:
        policy = policy.partition("refuse_wrongly=")[0].rstrip(",@")
    return f"{policy}{',' if '@' in policy else '@'}{options}"


def _scenarios(text: str) -> list[str]:
    sets = {
        "study": STUDY,
        "others": OTHERS,
        "unlike-requests": UNLIKE,
        "erratic": ERRATIC,
        "all": (*STUDY, *OTHERS),
    }
    names = [scenario.name for scenario in sets[text]] if text in sets else text.split(",")
    if text == "six":
        names = list(SIX)
    for name in names:
        if name not in SCENARIOS:
            raise typer.BadParameter(f"there is no scenario {name!r}: choose among {', '.join(SCENARIOS)}")
    return names


if __name__ == "__main__":
    typer.run(main)
