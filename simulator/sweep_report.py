"""A sweep for a person: a table, and a picture of goodput and latencies over what was swept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from rich.table import Table

from mainspring.simulator.sweep import SweepPoint
from mainspring.telemetry.style import BLUE, GREEN, ORANGE, PURPLE, RED, SKY, finish_axes

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED)


def sweep_table(title: str, found: Sequence[SweepPoint]) -> Table:
    """Return a line for each point."""
    table = Table(title=f"sweep of {title}", title_justify="left", title_style="bold")
    table.add_column("setting")
    for column in ("offered/s", "goodput/s", "in time", "p50 ms", "p99 ms", "batch", "cold", "late"):
        table.add_column(column, justify="right")
    for point in found:
        summary = point.summary
        table.add_row(
            " ".join(point.settings),
            f"{summary.offered_rate:,.1f}",
            f"{summary.goodput_rate:,.1f}",
            f"{summary.goodput_share:.2%}",
            _number(summary.p50_ms),
            _number(summary.p99_ms),
            _number(summary.mean_batch),
            f"{summary.cold_start_share:.1%}",
            f"{summary.late:,}",
        )
    return table


def draw_sweep(path: Path, title: str, found: Sequence[SweepPoint]) -> None:
    """Write the picture as PNG: a line over the first key's values for each setting of the others."""
    figure = Figure(figsize=(13.0, 4.4), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12))
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=13)
    left, right = figure.subplots(1, 2)
    labels = list(dict.fromkeys(point.settings[0].partition("=")[2] for point in found))
    lines: dict[str, list[SweepPoint]] = {}
    for point in found:
        lines.setdefault(" ".join(point.settings[1:]), []).append(point)
    for place, (name, line) in enumerate(lines.items()):
        colour = COLOURS[place % len(COLOURS)]
        _line(left, labels, line, [point.summary.goodput_rate for point in line], colour, name or "goodput")
        _line(left, labels, line, [point.summary.offered_rate for point in line], colour, "", ":")
        _line(right, labels, line, [point.summary.p50_ms for point in line], colour, f"{name} p50")
        _line(right, labels, line, [point.summary.p99_ms for point in line], colour, f"{name} p99", "--")
    key = found[0].settings[0].partition("=")[0]
    for axes, heading, unit in (
        (left, "Goodput (dotted: offered)", "requests / s"),
        (right, "Latency", "milliseconds"),
    ):
        axes.set_xticks(range(len(labels)), labels)
        axes.set_ylim(bottom=0)
        finish_axes(axes, heading, unit, key)
        axes.legend(loc="best")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=110, facecolor="white")


def _line(
    axes: Axes,
    labels: Sequence[str],
    line: Sequence[SweepPoint],
    values: Sequence[float | None],
    colour: str,
    name: str,
    dash: str = "-",
) -> None:
    places = [labels.index(point.settings[0].partition("=")[2]) for point in line]
    known = [(x, y) for x, y in zip(places, values, strict=True) if y is not None]
    axes.plot(
        [x for x, _ in known],
        [y for _, y in known],
        color=colour,
        linestyle=dash,
        marker="o",
        label=name.strip() or "_",
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"
