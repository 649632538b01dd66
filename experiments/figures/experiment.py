"""The shape that all experiments have, and how one is run: cases, rows, comparison, plot, files."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import msgspec
import typer
from rich.console import Console

from mainspring.experiments.bench.report import this_machine, wide_console
from mainspring.experiments.figures import options as choices
from mainspring.experiments.figures.case import Case, Observed
from mainspring.experiments.figures.execution import execute
from mainspring.experiments.figures.options import OUTPUT, PROFILES, TRACES, Options
from mainspring.experiments.figures.report import Line, Report
from mainspring.telemetry.report import write_json

Row = TypeVar("Row", bound=msgspec.Struct)


@dataclass(frozen=True)
class Experiment(Generic[Row]):
    """One figure or table of the paper."""

    name: str
    title: str
    cases: Callable[[Options], list[Case]]
    measure: Callable[[Case, Observed], Row]
    compare: Callable[[Sequence[Row], Options], list[Line]]
    draw: Callable[[Path, Sequence[Row], Options], None]
    notes: Callable[[Options], list[str]]
    extra: Callable[[Options], Sequence[Row]] = lambda _options: ()
    """More rows, that no case makes."""


class FigureReport(Report, frozen=True, kw_only=True):
    """Contents of ``out/experiments/NAME.json``."""

    rows: list[Any]


def run(experiment: Experiment[Row], options: Options, console: Console) -> FigureReport:
    """Run all cases, write JSON and plot, and print the comparison.

    Raises ValueError for a policy that there is not and for files that are missing.
    """
    began_s = time.monotonic()
    cases = experiment.cases(options)
    form = f"{'live' if options.live else 'simulated'}, {'full' if options.full else 'short'}"
    console.print(f"[bold]{experiment.title}[/] ({form}): {len(cases)} runs", highlight=False)

    def told(case: Case) -> None:
        at_s = time.monotonic() - began_s
        console.print(f"  {at_s:6.1f} s  {case.policy}: {case.label}", highlight=False)

    rows = execute(cases, experiment.measure, live=options.live, at_once=options.at_once, told=told)
    rows += experiment.extra(options)
    report = FigureReport(
        name=experiment.name,
        title=experiment.title,
        form=form,
        notes=experiment.notes(options),
        machine=this_machine(),
        took_s=round(time.monotonic() - began_s, 1),
        lines=experiment.compare(rows, options),
        rows=list(rows),
    )
    stem = f"{experiment.name}_live" if options.live else experiment.name
    write_json(options.output / f"{stem}.json", report)
    experiment.draw(options.output / f"{stem}.png", rows, options)
    report.show(options.output / stem, console)
    return report


def main(experiment: Experiment[Row]) -> None:
    """Run one experiment as the command line says."""

    def command(
        policy: choices.Policies = None,
        live: choices.Live = False,
        full: choices.Full = False,
        length: choices.Length = 1.0,
        profiles: choices.Profiles = PROFILES,
        traces: choices.Traces = TRACES,
        log: Annotated[Path | None, typer.Option(help="figure9: event log of a live run.")] = None,
        output: choices.Output = OUTPUT,
        seed: choices.Seed = 0,
        processes: choices.Processes = 0,
    ) -> None:
        options = Options(
            policies=tuple(policy or ()), live=live, full=full, length=length, profiles=profiles,
            traces=traces, output=output, seed=seed, processes=processes, log=log,
        )  # fmt: skip
        try:
            run(experiment, options, wide_console())
        except ValueError as error:
            raise SystemExit(f"{experiment.name}: {error}") from None

    command.__doc__ = f"{experiment.title}."
    typer.run(command)
