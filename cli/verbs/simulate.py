"""``mainspring simulate``: a cluster in virtual time, from a spec or from a recorded run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mainspring import native
from mainspring.cli.launcher.foreground import PolicyName, PolicyOptions
from mainspring.cli.options import RAY, SEED, AsJson, ReportFolder, Settings, TraceFile, typed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.simulator.spec import SimulationSpec
    from mainspring.simulator.spec_file import Table

Spec = Annotated[Path | None, typer.Argument(metavar="[SPEC]", help="TOML or JSON; see docs/simulation.md.")]
Sweeps = Annotated[
    list[str] | None,
    typer.Option("--sweep", metavar="KEY=V1,V2", help="Simulate with each value, on every core; repeatable."),
]
Log = Annotated[
    Path | None,
    typer.Option(help="Decide a recorded event log again; with another --policy: what if?"),
]
Processes = Annotated[
    int | None, typer.Option(min=1, help="Processes of a sweep. Default: one on each core.")
]
Calibrate = Annotated[
    bool, typer.Option("--calibrate", help="Only measure what the scheduler costs here: a [cost] table.")
]
Scenario = Annotated[
    int | None, typer.Option(min=0, metavar="SEED", help="Only run one random scenario of the tests.")
]
TownSeed = Annotated[
    int | None,
    typer.Option(
        "--town", min=0, metavar="SEED", help="Play a whole cluster with faults, all processes in one."
    ),
]
TownWorkload = Annotated[
    str,
    typer.Option(
        metavar="CLASS", help="package.module:Class of what a town's clients ask for, and what is to hold."
    ),
]
Bound = Annotated[
    bool | None,
    typer.Option(
        "--bound/--no-bound",
        help="Say what share was reached of what was possible. By default if that takes seconds.",
    ),
]
VALIDATE_EVERY = 100
"""Turns of the controller between two checks of all invariants."""
_OVER_SPEC = {"spec", "seed", "policy", "policy_option", "settings", "trace"}
_REPORTED = {"bound", "output", "as_json"}
_TAKEN = {
    "--scenario": {"scenario", "policy"},
    "--town": {"town", "town_workload"},
    "--log without --policy": {"log", "as_json"},
    "--log with --policy": {"log", "policy", "policy_option", "seed", *_REPORTED},
    "--sweep": {*_OVER_SPEC, "sweep", "ray", "processes", *_REPORTED},
    "--calibrate": {*_OVER_SPEC, "calibrate"},
    "a SPEC without --sweep": {*_OVER_SPEC, "validate", *_REPORTED},
}
"""Parameters that each way to simulate heeds."""


def simulate(
    context: typer.Context,
    spec: Spec = None,
    seed: Annotated[int | None, SEED] = None,
    policy: PolicyName = None,
    policy_option: PolicyOptions = None,
    settings: Settings = None,
    trace: TraceFile = None,
    log: Log = None,
    sweep: Sweeps = None,
    ray: Annotated[str | None, RAY] = None,
    processes: Processes = None,
    validate: Annotated[bool, typer.Option("--validate", help="Check invariants as it runs (slow).")] = False,
    calibrate: Calibrate = False,
    scenario: Scenario = None,
    town: TownSeed = None,
    town_workload: TownWorkload = "",
    bound: Bound = None,
    output: ReportFolder = Path("out/simulate"),
    as_json: AsJson = False,
) -> None:
    """Simulate a cluster: the real scheduler and worker cores, in virtual time."""
    if sum(each is not None for each in (spec, log, scenario, town)) != 1:
        raise typer.BadParameter(
            "give a SPEC, or --log DIR, or --scenario SEED, or --town SEED", param_hint="SPEC"
        )
    way = _refuse_what_is_not_heeded(context)
    if scenario is not None:
        _scenario(scenario, policy)
    elif town is not None:
        _town(town, town_workload)
    elif log is not None:
        from mainspring.cli.simulating import decide_again, decide_otherwise

        if way == "--log without --policy":
            decide_again(log, as_json=as_json)
        else:
            options = policy_option or []
            decide_otherwise(log, policy, options, seed or 0, output, bound=bound, as_json=as_json)
    elif spec is not None:
        over = [*(settings or [])]
        over += [] if seed is None else [f"seed={seed}"]
        table = _table(spec, over, trace, policy, policy_option or [])
        if sweep:
            _sweep(table, spec.name, sweep, ray, processes, output, bound=bound, as_json=as_json)
        elif calibrate:
            _calibrate(_checked(table, spec.name))
        else:
            _simulate(_checked(table, spec.name), output, validate=validate, bound=bound, as_json=as_json)


def _refuse_what_is_not_heeded(context: typer.Context) -> str:
    """Return the way to simulate; raise BadParameter for an option typed that would change nothing."""
    given = context.params
    if given["scenario"] is not None:
        way = "--scenario"
    elif given["town"] is not None:
        way = "--town"
    elif given["log"] is not None:
        other = any(given[name] for name in ("policy", "policy_option"))
        way = "--log with --policy" if other else "--log without --policy"
    elif given["sweep"]:
        way = "--sweep"
    else:
        way = "--calibrate" if given["calibrate"] else "a SPEC without --sweep"
    chosen = [each for each in context.command.params if typed(context, str(each.name))]
    idle = [each.opts[0] for each in chosen if each.name not in _TAKEN[way]]
    if idle:
        takes = [each.opts[0] for each in context.command.params if each.name in _TAKEN[way]]
        options = ", ".join(each for each in takes if each.startswith("--") and each not in way)
        raise typer.BadParameter(f"{', '.join(idle)} would change nothing: {way} takes only {options}")
    return way


def _table(
    path: Path, settings: Sequence[str], trace: Path | None, policy: str | None, options: Sequence[str]
) -> Table:
    """Return a spec's table with what was typed put over it."""
    from mainspring.cli.configuration.policies import parse_options
    from mainspring.simulator.spec_file import put_policy, put_trace, read_table

    table = read_table(path, settings)
    if trace is not None:
        put_trace(table, trace)
    put_policy(table, policy, parse_options(options))
    return table


def _checked(table: Table, source: str) -> SimulationSpec:
    from mainspring.cli.configuration.policies import check_policy
    from mainspring.simulator.spec_file import parse_spec

    spec = parse_spec(table, source)
    check_policy(spec.scheduler.policy, spec.scheduler.policy_options)
    return spec


def _simulate(
    spec: SimulationSpec, output: Path, *, validate: bool, bound: bool | None, as_json: bool
) -> None:
    from rich.console import Console

    from mainspring.cli.launcher.run_dir import OUTPUT_REMEDY, claimed
    from mainspring.cli.simulating import bounded_run, check_bound, report
    from mainspring.simulator.cluster import build_cluster
    from mainspring.simulator.estimate import expected_requests, hopeless, told_first
    from mainspring.simulator.graph_groups import with_families
    from mainspring.simulator.graphs import as_models
    from mainspring.simulator.run import simulate as run_spec
    from mainspring.simulator.workloads import title
    from mainspring.traces.report import ProgressLine

    check_bound(spec, bound)
    cluster = build_cluster(spec)
    heading = title(spec, len(cluster.models))
    graphs = with_families(spec.graphs, spec.families)
    known = [*cluster.models, *as_models(graphs, cluster.models)]
    for mind in (told_first(expected_requests(spec, known)), hopeless(spec, known)):
        if mind:
            typer.echo(mind, err=True)
    length_s = spec.warm_up_s + spec.duration_s
    with claimed(output, "another simulation", OUTPUT_REMEDY):
        with ProgressLine(Console(stderr=True), length_s) as line:
            run = run_spec(
                spec, cluster=cluster, progress=line, validate_every=VALIDATE_EVERY if validate else 0
            )
        run = bounded_run(run, cluster, bound)
        report(output, heading, run.summary, run.analysis, as_json=as_json)
    if not run.summary.offered:
        typer.echo("mind: no request came after the warm-up, so its shares and rates say nothing", err=True)
    if not as_json:
        speed = length_s / run.wall_s
        typer.echo(
            f"{length_s:g} s of virtual time in {run.wall_s:.1f} s, {speed:.1f} times real time; "
            f"fingerprint {run.fingerprint}"
        )


def _sweep(
    table: Table,
    source: str,
    sweeps: Sequence[str],
    ray: str | None,
    processes: int | None,
    output: Path,
    *,
    bound: bool | None,
    as_json: bool,
) -> None:
    import msgspec
    from rich.console import Console

    from mainspring.cli.launcher.run_dir import OUTPUT_REMEDY, claimed
    from mainspring.simulator.sweep import SweepPoint, run_sweep
    from mainspring.simulator.sweep_report import draw_sweep, sweep_table
    from mainspring.telemetry.report import write_json

    def told(point: SweepPoint, done: int, of: int) -> None:
        share = f"{point.summary.goodput_share:.2%} in time"
        typer.echo(f"{done}/{of}  {' '.join(point.settings)}: {share}, {point.wall_s:.1f} s", err=True)

    with claimed(output, "another simulation", OUTPUT_REMEDY):
        found = run_sweep(
            table, source, sweeps, processes=processes, ray_address=ray, bound=bool(bound), on_done=told
        )
        write_json(output / "sweep.json", found)
        draw_sweep(output / "sweep.png", f"{source}: {' '.join(sweeps)}", found)
    if as_json:
        typer.echo(msgspec.json.encode(found).decode())
    else:
        console = Console()
        console.print(sweep_table(source, found, console.width))
        typer.echo(f"{output / 'sweep.json'}  {output / 'sweep.png'}")
    if bound is None:
        typer.echo("--bound adds what share each point reached of what was possible", err=True)


def _calibrate(spec: SimulationSpec) -> None:
    from mainspring.simulator.calibrate import calibrate, cost_toml

    typer.echo(cost_toml(calibrate(spec)))


def _town(seed: int, workload: str) -> None:
    if not native.switched_off():
        # A town has a hub and links of its own, and compiled classes take none but theirs.
        command = [sys.executable, "-m", "mainspring", "simulate", "--town", str(seed)]
        command += ["--town-workload", workload] if workload else []
        as_python = {**os.environ, native.SWITCH: "0"}
        done = subprocess.run(command, env=as_python, stdout=subprocess.PIPE, text=True, check=False)
        typer.echo(done.stdout, nl=False)
        raise typer.Exit(done.returncode)
    from mainspring.simulator.town.seeds import workload_of
    from mainspring.simulator.town.shrink import failure_of, shrunk, told

    try:
        whose = workload_of(workload)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--town-workload") from None
    found = failure_of(seed, whose)
    if found is None:
        typer.echo(f"seed {seed}: nothing is wrong")
        return
    for line in told(shrunk(found, whose)):
        typer.echo(line)
    raise typer.Exit(1)


def _scenario(seed: int, policy: str | None) -> None:
    from mainspring.cli.configuration.policies import check_policy
    from mainspring.scheduler.config import SchedulerConfig
    from mainspring.simulator.scenario import check_scenario

    policy = policy or SchedulerConfig().policy
    check_policy(policy)
    story = check_scenario(seed, policy)
    typer.echo(story.text)
    if story.wrong:
        raise typer.Exit(1)
