"""``mainspring demo``: real models served under deadlines on this machine, and a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mainspring.cli.options import STORE, AsJson, ReportFolder, Seed, SendFor, TraceFile, duration_ns, seconds

if TYPE_CHECKING:
    from mainspring.cli.demonstration import DemoOptions
    from mainspring.cli.graph_demo.demonstration import GraphDemoReport
    from mainspring.cli.learning_demo.demonstration import LearningDemoReport


def demo(
    duration: SendFor = "120s",
    load: Annotated[float, typer.Option(min=0.001, help="Share of the device's capacity.")] = 0.5,
    slo: Annotated[str, typer.Option(help="Deadline of each request.")] = "100ms",
    trace: TraceFile = None,
    output: ReportFolder = Path("out/demo"),
    store: Annotated[Path | None, STORE] = None,
    seed: Seed = 0,
    kill_worker_at: Annotated[
        str | None, typer.Option(help="Kill the worker this long after the start.")
    ] = None,
    graphs: Annotated[
        bool, typer.Option("--graphs", help="Serve graphs, beside a client that calls step after step.")
    ] = False,
    learning: Annotated[
        bool,
        typer.Option(
            "--learning", help="Serve an application that learns, whose best model breaks and heals."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compile a small zoo, serve it, replay an Azure-like mix with deadlines, and report.

    The exit code is 1 if a request was left without an answer. With --graphs two graphs are served
    instead: one reads the text of pages, with models out of a package of PyPI, the other is a cascade. With
    --learning the answers of an application are compared with those of the same models without learning.
    """
    special = trace is not None or store is not None or kill_worker_at is not None
    if (graphs or learning) and (special or (graphs and learning)):
        raise typer.BadParameter("--trace, --store and --kill-worker-at are not for --graphs or --learning")
    if learning:
        _demo_learning(duration, slo, output, seed, as_json=as_json)
        return
    if graphs:
        _demo_graphs(seconds(duration, "--duration", least_s=1), load, output, seed, as_json=as_json)
        return
    from mainspring.cli.demonstration import DemoOptions

    options = DemoOptions(
        duration_s=seconds(duration, "--duration", least_s=1),
        load=load,
        slo_ms=duration_ns(slo, "--slo", least_ns=100_000, unit="ms") / 1e6,
        trace=trace,
        output=output,
        store=store or output / "store",
        seed=seed,
        kill_worker_at_s=None if kill_worker_at is None else seconds(kill_worker_at, "--kill-worker-at"),
    )
    _demo(options, output, as_json=as_json)


def _demo(options: DemoOptions, output: Path, *, as_json: bool) -> None:
    import msgspec
    from rich.console import Console

    from mainspring.cli.demonstration import run_demo

    report = run_demo(options, Console(stderr=as_json))
    if as_json:
        typer.echo(msgspec.json.encode(report.fields).decode())
    else:
        console = Console()
        console.print(report.table)
        console.print(f"{output / 'summary.json'}  {output / 'report.png'}", highlight=False)
    if not report.all_answered:
        raise typer.Exit(1)


def _demo_graphs(duration_s: float, load: float, output: Path, seed: int, *, as_json: bool) -> None:
    from rich.console import Console

    from mainspring.cli.graph_demo.demonstration import GraphDemoOptions, run_graph_demo

    options = GraphDemoOptions(duration_s=duration_s, load=load, output=output, seed=seed)
    report = run_graph_demo(options, Console(stderr=as_json))
    _tell(report, output / "graphs.json", as_json=as_json)


def _demo_learning(duration: str, slo: str, output: Path, seed: int, *, as_json: bool) -> None:
    from rich.console import Console

    from mainspring.cli.learning_demo.demonstration import LearningDemoOptions, run_learning_demo

    options = LearningDemoOptions(
        duration_s=seconds(duration, "--duration", least_s=1),
        slo_ms=duration_ns(slo, "--slo", least_ns=100_000, unit="ms") / 1e6,
        output=output,
        seed=seed,
    )
    report = run_learning_demo(options, Console(stderr=as_json))
    _tell(report, output / "learning.json", as_json=as_json)


def _tell(report: GraphDemoReport | LearningDemoReport, file: Path, *, as_json: bool) -> None:
    """Print a report: as JSON, or as a table with the file that has it, too."""
    import msgspec
    from rich.console import Console

    if as_json:
        typer.echo(msgspec.json.encode(report).decode())
    else:
        console = Console()
        console.print(report.table())
        console.print(f"{file}", highlight=False)
