"""The picture of runs side by side: goodput over time, latencies, rejections, batches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from mainspring.telemetry.comparison import PERCENTILES, Run
from mainspring.telemetry.plots import MOST_SLO_LINES
from mainspring.telemetry.style import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    finish_axes,
    plain_log_ticks,
    step,
)

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED)
DASHES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "x")
LATENCIES = (*PERCENTILES, ("p99.99", "p99_99_ms"), ("max", "max_ms"))


def draw_comparison(path: Path, runs: Sequence[Run]) -> None:
    """Write the picture as PNG; it appears whole or not at all."""
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12)
    figure = Figure(figsize=(15.2, 8.4), layout=layout)
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2)
    _goodput(axes[0][0], runs)
    _latencies(axes[0][1], runs)
    _rejections(axes[1][0], runs)
    _batches(axes[1][1], runs)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        figure.savefig(temporary, format="png", dpi=110, facecolor="white")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _goodput(axes: Axes, runs: Sequence[Run]) -> None:
    offered = runs[0].summary.series
    step(axes, offered.second, offered.offered, color=BLACK, linewidth=0.8, label="offered (first)")
    highest = max([1, *offered.offered])
    for place, run in enumerate(runs):
        series = run.summary.series
        colour, dash = COLOURS[place % len(COLOURS)], DASHES[place % len(DASHES)]
        line = series.goodput
        step(axes, series.second, line, label=run.name, color=colour, linestyle=dash)
        highest = max([highest, *series.goodput])
    axes.set_ylim(bottom=0, top=highest * 1.25)
    finish_axes(axes, "Goodput", "requests / s")
    axes.legend(loc="lower right")


def _latencies(axes: Axes, runs: Sequence[Run]) -> None:
    names = [name for name, _ in LATENCIES]
    for place, run in enumerate(runs):
        values = [getattr(run.summary, field) for _, field in LATENCIES]
        points = [(index, value) for index, value in enumerate(values) if value is not None]
        axes.plot(
            [index for index, _ in points],
            [value for _, value in points],
            color=COLOURS[place % len(COLOURS)],
            linestyle=DASHES[place % len(DASHES)],
            marker=MARKERS[place % len(MARKERS)],
            label=run.name,
        )
    for slo_ms, _ in runs[0].summary.slos[:MOST_SLO_LINES]:
        axes.axhline(slo_ms, color=RED, linewidth=1.0)
    axes.set_yscale("log")
    plain_log_ticks(axes.yaxis)
    axes.set_xticks(range(len(names)), names)
    finish_axes(axes, "Latency of answers", "milliseconds", "percentile")
    axes.margins(x=0.05)
    axes.legend(loc="upper left")


def _rejections(axes: Axes, runs: Sequence[Run]) -> None:
    reasons = sorted({reason for run in runs for reason in run.summary.rejected})
    labels = [*(reason.replace("_", " ") for reason in reasons), "late", "lost"]
    with_rest = any(run.summary.missing > run.summary.lost for run in runs)
    labels += ["no answer yet", "unsent"] if with_rest else []

    def shares(run: Run) -> list[float]:
        summary = run.summary
        counts = [*(summary.rejected.get(reason, 0) for reason in reasons), summary.late, summary.lost]
        counts += [summary.unanswered, summary.unsent + summary.expired] if with_rest else []
        return [count / max(summary.offered, 1) * 100 for count in counts]

    _bars(axes, labels, [(run.name, shares(run)) for run in runs])
    finish_axes(axes, "Not answered in time", "% of requests", "why")


def _batches(axes: Axes, runs: Sequence[Run]) -> None:
    sizes = sorted({size for run in runs for size in run.batch_sizes})
    if sizes:

        def shares(run: Run) -> list[float]:
            total = max(sum(run.batch_sizes.values()), 1)
            return [run.batch_sizes.get(size, 0) / total * 100 for size in sizes]

        _bars(axes, [str(size) for size in sizes], [(run.name, shares(run)) for run in runs])
        finish_axes(axes, "Batch sizes of INFER actions", "% of actions", "batch size")
    else:
        _bars(axes, ["average request"], [(run.name, [run.summary.mean_batch or 0.0]) for run in runs])
        finish_axes(axes, "Batch size", "requests", "")


def _bars(axes: Axes, labels: Sequence[str], groups: Sequence[tuple[str, list[float]]]) -> None:
    width = 0.8 / len(groups)
    for place, (name, values) in enumerate(groups):
        xs = [index + (place - (len(groups) - 1) / 2) * width for index in range(len(labels))]
        axes.bar(xs, values, width * 0.92, color=COLOURS[place % len(COLOURS)], label=name)
    axes.set_xticks(range(len(labels)), labels)
    axes.set_ylim(bottom=0)
    axes.legend(loc="best")
