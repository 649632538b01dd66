"""All experiments, one after the other: ``make experiments``.

Writes ``out/experiments/NAME.json`` and ``NAME.png`` for each, and ends with what took how long.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mainspring.experiments.figures import (
    figure5,
    figure6,
    figure7_left,
    figure7_right,
    figure8,
    figure9,
    scalability,
    table65,
)
from mainspring.experiments.figures.experiment import Experiment, make_console, run
from mainspring.experiments.figures.options import OUTPUT, PROFILES, TRACES, Options
from mainspring.experiments.figures.profiles import ProfilesMissing

EXPERIMENTS: tuple[Experiment[Any], ...] = (
    figure5.FIGURE,
    figure6.FIGURE,
    figure7_left.FIGURE,
    figure7_right.FIGURE,
    figure8.FIGURE,
    table65.FIGURE,
    figure9.FIGURE,
    scalability.FIGURE,
)


def main(
    policy: Annotated[list[str] | None, typer.Option(help="Policy to run; may be given again.")] = None,
    live: Annotated[bool, typer.Option("--live", help="Real sockets, emulated devices.")] = False,
    full: Annotated[bool, typer.Option("--full/--short", help="The paper's own lengths.")] = False,
    length: Annotated[float, typer.Option(min=1e-3, help="Factor on every length of time.")] = 1.0,
    profiles: Annotated[Path, typer.Option(help="Table of profiles.")] = PROFILES,
    traces: Annotated[Path, typer.Option(help="Folder of the Azure Functions files.")] = TRACES,
    output: Annotated[Path, typer.Option(help="Folder for JSON and plots.")] = OUTPUT,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same figures.")] = 0,
    processes: Annotated[int, typer.Option(min=0, help="Simulations at a time; 0: each core.")] = 0,
) -> None:
    """Run every figure and table of the paper's evaluation."""
    options = Options(
        policies=tuple(policy or ()), live=live, full=full, length=length, profiles=profiles, traces=traces,
        output=output, seed=seed, processes=processes,
    )  # fmt: skip
    console = make_console()
    took = []
    for experiment in EXPERIMENTS:
        try:
            report = run(experiment, options, console)
        except ProfilesMissing as error:
            console.print(f"[yellow]{experiment.name} was left out: {error}[/]", highlight=False)
            continue
        except ValueError as error:
            raise SystemExit(f"{experiment.name}: {error}") from None
        took.append((experiment.name, report.took_s))
    for name, seconds in took:
        console.print(f"{name:16}{seconds:8.1f} s", highlight=False)
    console.print(f"{'all':16}{sum(seconds for _, seconds in took):8.1f} s; {output}", highlight=False)


if __name__ == "__main__":
    typer.run(main)
