"""Share of requests without a deadline beside others, and what it costs these:
``python -m mainspring.experiments.policies.shares``, or ``make shares``.

The scenario *effort* is played with several values of ``best_effort_share``, in virtual time. With ``--lost``
it is played without a share as well, on devices that lose as much of their time: what a policy pays for a
share beyond that is the share's fault, what it pays there is its own.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from mainspring.experiments.policies.cell import Cell, Job
from mainspring.experiments.policies.sweep import play_all

SCENARIO = "effort"


def main(
    policies: Annotated[str, typer.Option(help="Names with commas between.")] = "mainspring,clockwork,edf",
    loads: Annotated[str, typer.Option(help="Multiples of the fluid capacity.")] = "0.5,0.7,1.0,1.5",
    shares: Annotated[str, typer.Option(help="Values of best_effort_share; the first is compared with.")] = (
        "0,0.02,0.05,0.1"
    ),
    most_requests: Annotated[int, typer.Option(help="Measured requests of a cell, at most.")] = 12_000,
    seed: Annotated[int, typer.Option(help="Of the arrivals.")] = 0,
    lost: Annotated[
        bool, typer.Option("--lost", help="Also play devices that lose such shares of their time instead.")
    ] = False,
    profiles: Annotated[Path, typer.Option(help="Table of profiles (Clockwork's appendix A).")] = Path(
        "../shared/profiles/clockwork_table1.csv"
    ),
    output: Annotated[Path, typer.Option(help="Folder for the JSON.")] = Path("out/policies"),
) -> None:
    """Say, for each policy, load and share, the goodput of requests with a deadline and answers without."""
    if not profiles.exists():
        raise typer.BadParameter(f"{profiles} is not there: give the table of profiles with --profiles")
    jobs = [
        Job(
            scenario=SCENARIO,
            policy=f"{policy}@best_effort_share={0 if slower else share}",
            load=float(load),
            lost=float(share) if slower else 0.0,
            seed=seed,
            seconds=20.0,
            warm_up=3.0,
            most_requests=most_requests,
            table=str(profiles),
            bounds=None,
        )
        for policy in policies.split(",")
        for load in loads.split(",")
        for slower in ([False, True] if lost else [False])
        for share in shares.split(",")
    ]
    cells = list(play_all(jobs, os.cpu_count() or 1))
    output.mkdir(parents=True, exist_ok=True)
    (output / "shares.json").write_bytes(msgspec.json.format(msgspec.json.encode(cells)))
    Console(width=120).print(table(cells, len(shares.split(","))))


def table(cells: list[Cell], shares: int) -> Table:
    """Return a row for each cell; of ``shares`` that follow one another the first is compared with."""
    made = Table(title=f"{SCENARIO}: requests without a deadline beside others")
    for name in ("policy", "load", "share, %", "in time, %", "cost, points", "of goodput, %", "answered/s"):
        made.add_column(name, justify="left" if name == "policy" else "right")
    for first in range(0, len(cells), shares):
        without = cells[first]
        for cell in cells[first : first + shares]:
            policy, _, share = cell.job.policy.partition("@best_effort_share=")
            lost = cell.job.lost
            cost = without.in_time - cell.in_time
            made.add_row(
                policy,
                f"{cell.job.load:g}",
                f"{100 * lost:g} lost" if lost else f"{100 * float(share):g}",
                f"{100 * cell.in_time:.1f}",
                f"{100 * cost:.1f}",
                f"{100 * cost / without.in_time:.1f}",
                f"{cell.best_effort:.1f}",
            )
    return made


if __name__ == "__main__":
    typer.run(main)
