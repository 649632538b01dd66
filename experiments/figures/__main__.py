"""All experiments, one after the other: ``make experiments``.

Writes ``out/experiments/NAME.json`` and ``NAME.png`` for each, and ends with what took how long.
"""

from __future__ import annotations

from typing import Any

import typer

from mainspring.experiments.bench.report import wide_console
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
from mainspring.experiments.figures import options as choices
from mainspring.experiments.figures.experiment import Experiment, run
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
    policy: choices.Policies = None,
    live: choices.Live = False,
    full: choices.Full = False,
    length: choices.Length = 1.0,
    profiles: choices.Profiles = PROFILES,
    traces: choices.Traces = TRACES,
    output: choices.Output = OUTPUT,
    seed: choices.Seed = 0,
    processes: choices.Processes = 0,
) -> None:
    """Run every figure and table of the paper's evaluation."""
    options = Options(
        policies=tuple(policy or ()), live=live, full=full, length=length, profiles=profiles, traces=traces,
        output=output, seed=seed, processes=processes,
    )  # fmt: skip
    console = wide_console()
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
