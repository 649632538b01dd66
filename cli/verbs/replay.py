"""``mainspring replay``: send a workload to a running cluster and report what became of it."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mainspring.cli.options import (
    DEFAULT_GATEWAY,
    EVENT_LOG,
    MODELS,
    AsJson,
    GatewayAddress,
    ReportFolder,
    Rows,
    Seed,
    SendFor,
    SloOrNone,
    Token,
    TraceFile,
    duration_ns,
    duration_or_none_ns,
)
from mainspring.traces.arrival import Kind

if TYPE_CHECKING:
    from mainspring.traces.recipe import Recipe
    from mainspring.traces.replayer import ReplayConfig


ChosenKind = Annotated[
    Kind | None,
    typer.Option(
        metavar="KIND",
        help=f"What to send: {', '.join(Kind)}. Default: what --trace holds, or else synthetic.",
    ),
]
Rate = Annotated[
    float | None,
    typer.Option(
        min=1e-6, max=1e7, help="Requests/s on average. Default: the trace's own; 100 for generators."
    ),
]
TimeScale = Annotated[
    float, typer.Option(min=1e-9, max=1e6, help="Factor on the trace's time: 0.1 plays ten times as fast.")
]
Retry = Annotated[
    str,
    typer.Option(
        help="How long after a refusal for lack of time a client asks once more, with the time that is left; "
        "or none."
    ),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option(
        help="Sizes of an open dimension: seq=128, seq=12,30,64, seq=1-128, seq=26~0.7 (median, deviation of "
        "the logarithm), or seq=@FILE of numbers. Default: the largest."
    ),
]


def replay(
    workload: ChosenKind = None,
    trace: TraceFile = None,
    rate: Rate = None,
    duration: SendFor = "60s",
    slo: SloOrNone = "100ms",
    models: Annotated[str, MODELS] = "*",
    seed: Seed = 0,
    time_scale: TimeScale = 1.0,
    rows: Rows = 1,
    shapes: Shapes = None,
    concurrency: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="closed: requests in flight per model.")
    ] = 4,
    retry: Retry = "none",
    address: GatewayAddress = DEFAULT_GATEWAY,
    token: Token = None,
    event_log: Annotated[Path | None, EVENT_LOG] = None,
    output: ReportFolder = Path("out/replay"),
    as_json: AsJson = False,
) -> None:
    """Send a workload to a running cluster, on schedule whatever the cluster does."""
    from mainspring.traces.recipe import Recipe
    from mainspring.traces.replayer import ReplayConfig
    from mainspring.traces.shapes import parse_shapes

    recipe = Recipe(
        kind=_kind(workload, trace),
        trace=trace,
        rate=rate,
        duration_ns=duration_ns(duration, "--duration"),
        slo_ns=duration_or_none_ns(slo, "--slo"),
        seed=seed,
        time_scale=time_scale,
        rows=rows,
        shapes=parse_shapes(shapes or []),
        concurrency=concurrency,
    )
    retry_ns = duration_or_none_ns(retry, "--retry") or 0
    config = ReplayConfig(address=address, seed=seed, token=token, retry_ns=retry_ns)
    _run(recipe, config, models, output, event_log, as_json=as_json)


def _kind(workload: Kind | None, trace: Path | None) -> Kind:
    """Return what to play; raise BadParameter for a file too many or none at all."""
    from mainspring.traces.arrival import WorkloadError
    from mainspring.traces.recipe import check_trace, chosen_kind

    kind = chosen_kind(workload, trace)
    try:
        check_trace(kind, trace)
    except WorkloadError as error:
        raise typer.BadParameter(str(error), param_hint="--trace") from None
    return kind


def _run(
    recipe: Recipe,
    config: ReplayConfig,
    glob: str,
    output: Path,
    event_log: Path | None,
    *,
    as_json: bool,
) -> None:  # fmt: skip
    from rich.console import Console

    from mainspring.cli.launcher.run_dir import OUTPUT_REMEDY, claimed
    from mainspring.cli.launcher.signals import stopping
    from mainspring.cli.simulating import report
    from mainspring.telemetry.summary import analyse_log
    from mainspring.traces.recipe import build
    from mainspring.traces.replayer import Replayer
    from mainspring.traces.report import ProgressLine
    from mainspring.traces.shapes import with_shapes

    replayer = Replayer(config)
    try:
        names = matching([spec.name for spec in replayer.specs], glob)
        title, workload = recipe.title(len(names)), build(recipe, names)
        chosen = [spec for spec in replayer.specs if spec.name in workload.models]
        workload = with_shapes(workload, chosen, recipe.shapes)
        with claimed(output, "another replay", OUTPUT_REMEDY):
            with stopping() as stop, ProgressLine(Console(stderr=True), recipe.duration_ns / 1e9) as line:
                summary, _ = replayer.play(
                    workload,
                    progress=line,
                    stop=stop,
                    rows=(recipe.rows,),
                    duration_ns=recipe.duration_ns,
                    notes={"workload": title},
                )
            analysis = None if event_log is None else analyse_log(event_log, start_ns=summary.start_ns)
            report(output, title, summary, analysis, as_json=as_json)
    finally:
        replayer.close()


def matching(names: Sequence[str], glob: str) -> list[str]:
    """Return the names that match, sorted; raise `WorkloadError` if none does."""
    from mainspring.traces.arrival import WorkloadError

    chosen = sorted(name for name in names if fnmatch.fnmatchcase(name, glob))
    if not chosen:
        served = ", ".join(sorted(names)[:5]) or "no model at all"
        raise WorkloadError(f"no model matches {glob!r}; the gateway serves {served}")
    return chosen
