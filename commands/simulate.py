"""``mainspring simulate``: a cluster in virtual time, from a spec or from a recorded run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.simulator.spec import SimulationSpec
    from mainspring.telemetry.report import Summary
    from mainspring.telemetry.summary import Analysis

Spec = Annotated[Path | None, typer.Argument(metavar="[SPEC]", help="TOML or JSON; see docs/simulation.md.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Such as workload.rate=500; repeatable."),
]
Sweeps = Annotated[
    list[str] | None,
    typer.Option("--sweep", metavar="KEY=V1,V2", help="Simulate with each value, on every core; repeatable."),
]
Log = Annotated[Path | None, typer.Option(help="Decide a recorded event log again; with --policy: what if?")]
VALIDATE_EVERY = 100
"""Turns of the controller between two checks of all invariants."""
_OVER_SPEC = {"spec", "seed", "policy", "settings", "trace"}
_TAKEN = {
    "--scenario": {"scenario", "policy"},
    "--log without --policy": {"log", "as_json"},
    "--log with --policy": {"log", "policy", "seed", "output", "as_json"},
    "--sweep": {*_OVER_SPEC, "sweep", "ray", "processes", "output", "as_json"},
    "--calibrate": {*_OVER_SPEC, "calibrate"},
    "a SPEC without --sweep": {*_OVER_SPEC, "validate", "output", "as_json"},
}
"""Parameters that each way to simulate heeds."""


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("simulate")(simulate)


def simulate(
    context: typer.Context,
    spec: Spec = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Instead of the spec's.")] = None,
    policy: Annotated[str | None, typer.Option(help="Instead of the spec's, or of the log's.")] = None,
    settings: Settings = None,
    trace: Annotated[Path | None, typer.Option(help="Azure file of the workloads that need one.")] = None,
    log: Log = None,
    sweep: Sweeps = None,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Sweep over this Ray cluster; local starts one.")
    ] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Of a sweep. Default: every core.")] = None,
    validate: Annotated[bool, typer.Option("--validate", help="Check invariants as it runs (slow).")] = False,
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate", help="Only measure what the scheduler costs here: a \\[cost] table."),
    ] = False,
    scenario: Annotated[
        int | None, typer.Option(min=0, metavar="SEED", help="Only run one random scenario of the tests.")
    ] = None,
    output: Annotated[
        Path, typer.Option(readable=False, help="Folder for summary.json and report.png.")
    ] = Path("out/simulate"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Simulate a cluster: the real scheduler and worker cores, in virtual time."""
    if sum(each is not None for each in (spec, log, scenario)) != 1:
        raise typer.BadParameter("give a SPEC, or --log DIR, or --scenario SEED", param_hint="SPEC")
    _refuse_what_is_not_heeded(context)
    if scenario is not None:
        _scenario(scenario, policy)
    elif log is not None:
        _from_log(log, policy, seed or 0, output, as_json=as_json)
    elif spec is not None:
        over = [*(settings or [])]
        over += [] if seed is None else [f"seed={seed}"]
        over += [] if policy is None else [f'scheduler.policy="{policy}"']
        over += [] if trace is None else [f'workload.trace="{trace.absolute()}"']
        if sweep:
            _sweep(spec, over, sweep, ray, processes, output, as_json=as_json)
        elif calibrate:
            _calibrate(_read(spec, over))
        else:
            _simulate(_read(spec, over), output, validate=validate, as_json=as_json)


def _refuse_what_is_not_heeded(context: typer.Context) -> None:
    """Raise BadParameter for an option that was typed and would change nothing."""
    given = context.params
    if given["scenario"] is not None:
        way = "--scenario"
    elif given["log"] is not None:
        way = "--log without --policy" if given["policy"] is None else "--log with --policy"
    elif given["sweep"]:
        way = "--sweep"
    else:
        way = "--calibrate" if given["calibrate"] else "a SPEC without --sweep"
    typed = [each for each in context.command.params if _typed(context, str(each.name))]
    idle = [each.opts[0] for each in typed if each.name not in _TAKEN[way]]
    if idle:
        takes = [each.opts[0] for each in context.command.params if each.name in _TAKEN[way]]
        options = ", ".join(each for each in takes if each.startswith("--") and each not in way)
        raise typer.BadParameter(f"{', '.join(idle)} would change nothing: {way} takes only {options}")


def _typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _read(path: Path, settings: Sequence[str]) -> SimulationSpec:
    from mainspring.launch.policies import check_policy
    from mainspring.simulator.spec_file import read_spec

    spec = read_spec(path, settings)
    check_policy(spec.scheduler.policy, spec.scheduler.policy_options)
    return spec


def _simulate(spec: SimulationSpec, output: Path, *, validate: bool, as_json: bool) -> None:
    from rich.console import Console

    from mainspring.launch.run_dir import claimed
    from mainspring.simulator.cluster import build_cluster
    from mainspring.simulator.run import simulate as run_spec
    from mainspring.simulator.workloads import title
    from mainspring.traces.display import ProgressLine

    cluster = build_cluster(spec)
    heading = title(spec, len(cluster.models))
    length_s = spec.warm_up_s + spec.duration_s
    with claimed(output, "another simulation", "choose another folder with --output"):
        with ProgressLine(Console(stderr=True), length_s) as line:
            run = run_spec(
                spec, cluster=cluster, progress=line, validate_every=VALIDATE_EVERY if validate else 0
            )
        _report(output, heading, run.summary, run.analysis, as_json=as_json)
    if not run.summary.offered:
        typer.echo("mind: no request came after the warm-up, so its shares and rates say nothing", err=True)
    if not as_json:
        speed = length_s / run.wall_s
        typer.echo(
            f"{length_s:g} s of virtual time in {run.wall_s:.1f} s, {speed:.1f} times real time; "
            f"fingerprint {run.fingerprint}"
        )


def _report(
    output: Path, heading: str, summary: Summary, analysis: Analysis | None, *, as_json: bool
) -> None:
    import msgspec
    from rich.console import Console

    from mainspring.telemetry.publish import publish
    from mainspring.traces.display import summary_table

    fields = publish(output, heading, summary, analysis)
    if as_json:
        typer.echo(msgspec.json.encode(fields).decode())
    else:
        Console().print(summary_table(heading, summary))
        typer.echo(f"{output / 'summary.json'}  {output / 'report.png'}")


def _from_log(log: Path, policy: str | None, seed: int, output: Path, *, as_json: bool) -> None:
    if policy is None:
        _decide_again(log, as_json=as_json)
        return
    from rich.console import Console

    from mainspring.commands.compare import publish_comparison, show
    from mainspring.launch.policies import check_policy
    from mainspring.launch.run_dir import claimed
    from mainspring.simulator.recorded import read_recording
    from mainspring.simulator.whatif import other_policy, what_happened, what_if
    from mainspring.telemetry.comparison import run_of
    from mainspring.telemetry.publish import publish
    from mainspring.traces.display import ProgressLine

    check_policy(policy)
    recording = read_recording(log)
    with claimed(output, "another simulation", "choose another folder with --output"):
        happened = what_happened(recording)
        with ProgressLine(Console(stderr=True), recording.end_ns / 1e9) as line:
            instead = what_if(recording, other_policy(recording, policy), seed=seed, progress=line)
        live = f"recorded, {recording.scheduler.policy}"
        publish(output / "recorded", live, happened.summary, happened.analysis)
        heading = f"what if: {policy} on {log}"
        _report(output, heading, instead.summary, instead.analysis, as_json=as_json)
        runs = [
            run_of(live, happened.summary, happened.analysis),
            run_of(f"simulated, {policy}", instead.summary, instead.analysis),
        ]
        publish_comparison(runs, output)
    if not as_json:
        show(runs)


def _decide_again(log: Path, *, as_json: bool) -> None:
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
    if found.difference is not None:
        raise typer.Exit(1)


def _sweep(
    path: Path,
    settings: Sequence[str],
    sweeps: Sequence[str],
    ray: str | None,
    processes: int | None,
    output: Path,
    *,
    as_json: bool,
) -> None:
    import msgspec
    from rich.console import Console

    from mainspring.launch.run_dir import claimed
    from mainspring.simulator.spec_file import read_table
    from mainspring.simulator.sweep import SweepPoint, run_sweep
    from mainspring.simulator.sweep_report import draw_sweep, sweep_table
    from mainspring.telemetry.report import write_json

    def told(point: SweepPoint, done: int, of: int) -> None:
        share = f"{point.summary.goodput_share:.2%} in time"
        typer.echo(f"{done}/{of}  {' '.join(point.settings)}: {share}, {point.wall_s:.1f} s", err=True)

    table = read_table(path, settings)
    with claimed(output, "another simulation", "choose another folder with --output"):
        found = run_sweep(table, path.name, sweeps, processes=processes, ray_address=ray, on_done=told)
        write_json(output / "sweep.json", found)
        draw_sweep(output / "sweep.png", f"{path.name}: {' '.join(sweeps)}", found)
    if as_json:
        typer.echo(msgspec.json.encode(found).decode())
    else:
        console = Console()
        console.print(sweep_table(path.name, found, console.width))
        typer.echo(f"{output / 'sweep.json'}  {output / 'sweep.png'}")


def _calibrate(spec: SimulationSpec) -> None:
    from mainspring.simulator.calibrate import calibrate, cost_toml

    typer.echo(cost_toml(calibrate(spec)))


def _scenario(seed: int, policy: str | None) -> None:
    from mainspring.launch.policies import check_policy
    from mainspring.scheduler.config import SchedulerConfig
    from mainspring.simulator.scenario import check_scenario

    policy = policy or SchedulerConfig().policy
    check_policy(policy)
    story = check_scenario(seed, policy)
    typer.echo(story.text)
    if story.wrong:
        raise typer.Exit(1)
