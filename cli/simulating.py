"""The parts of `mainspring simulate` beside simulating: recorded runs, what was possible, and the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from mainspring.simulator.cluster import Cluster
    from mainspring.simulator.recorded import Recording
    from mainspring.simulator.run import SimulatedRun
    from mainspring.simulator.spec import SimulationSpec
    from mainspring.simulator.whatif import Happened
    from mainspring.telemetry.report import Summary
    from mainspring.telemetry.summary import Analysis


def decide_again(log: Path, *, as_json: bool) -> None:
    """Compare every command of a log with what a fresh scheduler says; exit with 1 at a difference."""
    import msgspec

    from mainspring.simulator.redecide import redecide

    found = redecide(log)
    if as_json:
        typer.echo(msgspec.json.encode(found).decode())
    elif found.difference is None:
        typer.echo(
            f"{found.commands:,} commands of {found.events:,} events in {found.runs} run(s): all as recorded"
        )
    else:
        typer.echo(f"it differs {found.difference.story()}")
    if found.passed_over and not as_json:
        typer.echo(
            f"mind: {found.passed_over:,} older events were passed over: the start of their run was deleted",
            err=True,
        )
    if found.difference is not None:
        raise typer.Exit(1)


def decide_otherwise(
    log: Path,
    policy: str | None,
    option_texts: Sequence[str],
    seed: int,
    output: Path,
    *,
    bound: bool | None,
    as_json: bool,
) -> None:
    """Simulate a recorded run under another policy, or the recorded one with other options; report both."""
    from rich.console import Console

    from mainspring.cli.configuration.policies import check_policy, parse_options
    from mainspring.cli.launcher.run_dir import OUTPUT_REMEDY, claimed
    from mainspring.cli.verbs.compare import publish_comparison, show
    from mainspring.simulator.recorded import read_recording
    from mainspring.simulator.whatif import hastiness, other_policy, what_happened, what_if
    from mainspring.telemetry.comparison import run_of
    from mainspring.telemetry.plots import publish
    from mainspring.traces.report import ProgressLine

    options = parse_options(option_texts)
    if policy is not None:
        check_policy(policy, options)
    recording = read_recording(log)
    config = other_policy(recording, policy, options)
    check_policy(config.policy, config.policy_options)
    with claimed(output, "another simulation", OUTPUT_REMEDY):
        happened = what_happened(recording)
        with ProgressLine(Console(stderr=True), recording.end_ns / 1e9) as line:
            instead = what_if(recording, config, seed=seed, progress=line)
        happened, instead = _bounded(recording, happened, instead, bound)
        live = f"recorded, {recording.scheduler.policy}"
        publish(output / "recorded", live, happened.summary, happened.analysis)
        heading = f"what if: {config.policy} on {log}"
        report(output, heading, instead.summary, instead.analysis, as_json=as_json)
        runs = [
            run_of(live, happened.summary, happened.analysis),
            run_of(f"simulated, {config.policy}", instead.summary, instead.analysis),
        ]
        publish_comparison(runs, output)
    if not as_json:
        show(runs)
        _mind_stalls(recording)
        if happened.early:
            typer.echo(hastiness(happened, instead).told())


def _mind_stalls(recording: Recording) -> None:
    """Say of a run in which workers stood still that the simulation has no such pause."""
    if recording.stalls:
        times = "once" if recording.stalls == 1 else f"{recording.stalls} times"
        typer.echo(
            f"mind: workers stood still {times} while this was recorded, and do not in the simulation: what "
            "that cost is not the policy's",
            err=True,
        )


def _bounded(
    recording: Recording, happened: Happened, instead: Happened, asked: bool | None
) -> tuple[Happened, Happened]:
    """Return both runs with what was possible for their requests, unless that was left out."""
    from mainspring.simulator.bound.possible import deadlines, is_wanted
    from mainspring.simulator.whatif import bounded

    requests = deadlines(happened.records)
    if not is_wanted(requests, asked):
        if asked is None:
            tell_left_out(requests)
        return happened, instead
    with shown() as progress:
        return bounded(recording, happened, instead, progress)


def check_bound(spec: SimulationSpec, asked: bool | None) -> None:
    """Raise `run.NoBound` if a bound was asked for that there is not."""
    from mainspring.simulator.run import NO_BOUND, NoBound, closed_under_deadlines

    if asked and closed_under_deadlines(spec):
        raise NoBound(NO_BOUND)


def bounded_run(run: SimulatedRun, cluster: Cluster, asked: bool | None) -> SimulatedRun:
    """Return a run that says what was possible; say why if that was left out unasked."""
    from mainspring.simulator.bound.possible import deadlines
    from mainspring.simulator.run import NO_BOUND, bounded, closed_under_deadlines

    with shown() as progress:
        run = bounded(run, cluster, asked=asked, progress=progress)
    if run.summary.possible is None and asked is None:
        if closed_under_deadlines(run.spec):
            typer.echo(NO_BOUND, err=True)
        else:
            tell_left_out(deadlines(run.records))
    return run


@contextmanager
def shown() -> Iterator[Callable[[float], None]]:
    """Show which part of the bound is computed, where there is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("what was possible"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=1.0)
        yield lambda share: progress.update(task, completed=share)


def tell_left_out(requests: int) -> None:
    """Say that the bound was left out because there are too many requests, and how to get it."""
    if requests:
        typer.echo(
            f"what was possible was left out, for {requests:,} requests take a while; --bound computes it",
            err=True,
        )


def report(output: Path, heading: str, summary: Summary, analysis: Analysis | None, *, as_json: bool) -> None:
    """Write ``summary.json`` and ``report.png``; print the summary."""
    import msgspec
    from rich.console import Console

    from mainspring.telemetry.plots import publish
    from mainspring.traces.report import summary_table

    fields = publish(output, heading, summary, analysis)
    if as_json:
        typer.echo(msgspec.json.encode(fields).decode())
    else:
        Console().print(summary_table(heading, summary))
        typer.echo(f"{output / 'summary.json'}  {output / 'report.png'}")
