"""``mainspring compare``: the reports of live or simulated runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mainspring.cli.options import AsJson, ReportFolder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.telemetry.comparison import Run

HOW_TO_BOUND = (
    "simulate computes it (--bound for long runs), for a live run from its event log: "
    "simulate --log DIR --policy P"
)


def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN RUN...", help="Folders of reports, or their summary.json.")
    ],
    output: ReportFolder = Path("out/compare"),
    as_json: AsJson = False,
) -> None:
    """Compare runs that `replay`, `demo` or `simulate` reported: a table, a plot, and what to be wary of."""
    import msgspec

    from mainspring.cli.launcher.run_dir import OUTPUT_REMEDY, claimed
    from mainspring.messages.tables import ConfigError
    from mainspring.telemetry.comparison import comparison, read_run, short_names

    if len(runs) < 2:
        raise typer.BadParameter("give at least two runs to compare", param_hint="RUN")
    try:
        read = [read_run(path, name) for path, name in zip(runs, short_names(runs), strict=True)]
    except FileNotFoundError as error:
        raise ConfigError(
            f"{error.filename} does not exist; a run is the folder that replay or simulate wrote (--output)"
        ) from None
    except ValueError as error:
        raise ConfigError(str(error)) from None
    with claimed(output, "another comparison", OUTPUT_REMEDY):
        publish_comparison(read, output)
    if as_json:
        typer.echo(msgspec.json.encode(comparison(read)).decode())
    else:
        show(read)
        typer.echo(f"{output / 'comparison.json'}  {output / 'comparison.png'}")


def publish_comparison(runs: Sequence[Run], output: Path) -> None:
    """Write ``comparison.json`` and ``comparison.png``."""
    from mainspring.telemetry.comparison import comparison
    from mainspring.telemetry.comparison_plots import draw_comparison
    from mainspring.telemetry.report import write_json

    write_json(output / "comparison.json", comparison(runs))
    draw_comparison(output / "comparison.png", runs)


def show(runs: Sequence[Run]) -> None:
    """Print the table, and warnings on stderr."""
    from rich.console import Console
    from rich.table import Table

    from mainspring.telemetry.comparison import of_possible, rows, warnings

    table = Table(title="runs side by side", title_justify="left", title_style="bold")
    table.add_column("", style="dim")
    for run in runs:
        table.add_column(run.name, justify="right")
    for row in rows(runs):
        table.add_row(row.what, *row.cells)
    Console().print(table)
    for warning in warnings(runs):
        typer.echo(f"mind: {warning}", err=True)
    if None in of_possible(runs):
        typer.echo(f"what was possible is not known of every run: {HOW_TO_BOUND}", err=True)
