"""The report of a simulated run: files, and a table on the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from mainspring.telemetry.report import Summary
    from mainspring.telemetry.summary import Analysis


def report(output: Path, heading: str, summary: Summary, analysis: Analysis | None, *, as_json: bool) -> None:
    """Write ``summary.json`` and ``report.png``; print the summary."""
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
