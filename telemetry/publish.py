"""The two files that every run leaves: ``summary.json`` and ``report.png``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mainspring.telemetry.plots import draw_report
from mainspring.telemetry.report import Summary, flat, write_json
from mainspring.telemetry.summary import Analysis


def publish(
    directory: Path, title: str, summary: Summary, analysis: Analysis | None = None
) -> dict[str, Any]:
    """Write both files into ``directory`` and return what ``summary.json`` holds.

    With an ``analysis`` of the event log (`summary.analyse_log`) its fields stand beside the clients' own.
    """
    fields = {"title": title} | (flat(summary) if analysis is None else flat(summary, analysis.summary))
    write_json(directory / "summary.json", fields)
    draw_report(directory / "report.png", title, summary, analysis)
    return fields
