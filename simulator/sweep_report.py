"""A sweep for a person: a table, and a picture of goodput and latencies over what was swept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from rich.cells import cell_len
from rich.table import Table

from mainspring.simulator.sweep import SweepPoint
from mainspring.telemetry.report import Summary
from mainspring.telemetry.style import BLUE, GREEN, ORANGE, PURPLE, RED, SKY, finish_axes

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED)


def sweep_table(title: str, found: Sequence[SweepPoint], width: int) -> Table:
    """Return a line for each point, with a column for each swept key.

    What does not fit into ``width`` characters is left out, column by column, and named below.
    """
    swept, told = _swept(found), _told(found)
    left_out = []
    for name in _DROPPED_FIRST:
        if _width([*swept, *told.items()]) > width:
            del told[name]
            left_out.append(name)
    table = Table(title=f"sweep of {title}", title_justify="left", title_style="bold")
    if left_out:
        table.caption = f"not shown for want of width: {', '.join(left_out)}"
        table.caption_justify = "left"
    for key, _ in swept:
        table.add_column(key, no_wrap=True)
    for name in told:
        table.add_column(name, justify="right", no_wrap=True)
    for row in zip(*(cells for _, cells in swept), *told.values(), strict=True):
        table.add_row(*row)
    return table


Column = tuple[str, list[str]]
"""Heading and cells."""
_DROPPED_FIRST = ("late", "batch", "cold", "offered/s", "p50 ms", "goodput/s")


def _swept(found: Sequence[SweepPoint]) -> list[Column]:
    """Return each swept key's values, a part of the key on each line."""
    columns = []
    for settings in zip(*(point.settings for point in found), strict=True):
        pairs = [setting.partition("=") for setting in settings]
        columns.append((pairs[0][0].replace(".", ".\n"), [value for _, _, value in pairs]))
    return columns


def _told(found: Sequence[SweepPoint]) -> dict[str, list[str]]:
    summaries = [point.summary for point in found]
    return {
        "offered/s": [f"{each.offered_rate:,.1f}" for each in summaries],
        "goodput/s": [f"{each.goodput_rate:,.1f}" for each in summaries],
        "in time": [f"{each.goodput_share:.2%}" for each in summaries],
        **_of_possible(summaries),
        "p50 ms": [_number(each.p50_ms) for each in summaries],
        "p99 ms": [_number(each.p99_ms) for each in summaries],
        "batch": [_number(each.mean_batch) for each in summaries],
        "cold": [f"{each.cold_start_share:.1%}" for each in summaries],
        "late": [f"{each.late:,}" for each in summaries],
    }


def _of_possible(summaries: Sequence[Summary]) -> dict[str, list[str]]:
    """Return a column of what was reached of what was possible, if any point knows."""
    shares = [None if each.possible is None else each.possible.share for each in summaries]
    cells = ["-" if share is None else f"{share:.2%}" for share in shares]
    return {} if set(cells) <= {"-"} else {"of possible": cells}


def _width(columns: Sequence[Column]) -> int:
    """Return how many characters a table takes: a line and a blank before each column, a blank behind."""
    texts = [(*heading.split("\n"), *cells) for heading, cells in columns]
    return sum(max(cell_len(text) for text in column) + 3 for column in texts) + 1


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
