"""``mainspring simulate --log``: a recorded run decided again, or under other decisions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mainspring.cli.configuration.policies import Option
    from mainspring.simulator.recorded import Recording
    from mainspring.simulator.whatif import Happened


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
    options: Mapping[str, Option],
    seed: int,
    output: Path,
    *,
    bound: bool | None,
    as_json: bool,
) -> None:
    """Simulate a recorded run under another policy, or the recorded one with other options; report both."""
    from rich.console import Console

    from mainspring.cli.configuration.policies import check_policy
    from mainspring.cli.launcher.run_dir import claimed
    from mainspring.cli.verbs.compare import publish_comparison, show
    from mainspring.cli.verbs.simulating.report import report
    from mainspring.simulator.recorded import read_recording
    from mainspring.simulator.whatif import other_policy, what_happened, what_if
    from mainspring.telemetry.comparison import run_of
    from mainspring.telemetry.publish import publish
    from mainspring.traces.display import ProgressLine

    if policy is not None:
        check_policy(policy, options)
    recording = read_recording(log)
    config = other_policy(recording, policy, options)
    check_policy(config.policy, config.policy_options)
    with claimed(output, "another simulation", "choose another folder with --output"):
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


def _bounded(
    recording: Recording, happened: Happened, instead: Happened, asked: bool | None
) -> tuple[Happened, Happened]:
    """Return both runs with what was possible for their requests, unless that was left out."""
    from mainspring.cli.verbs.simulating.bounding import shown, tell_left_out
    from mainspring.simulator.bound.possible import deadlines, is_wanted
    from mainspring.simulator.whatif import bounded

    requests = deadlines(happened.records)
    if not is_wanted(requests, asked):
        if asked is None:
            tell_left_out(requests)
        return happened, instead
    with shown() as progress:
        return bounded(recording, happened, instead, progress)
