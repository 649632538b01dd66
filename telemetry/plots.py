"""The picture of a run, ``report.png``: one page of panels; see `draw_report`.

Colours are Okabe and Ito's, which people with any common colour blindness can tell apart, and lines that
share a panel also differ in dash or marker.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, MaxNLocator

from mainspring.telemetry.report import Summary, flat, write_json
from mainspring.telemetry.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    finish_axes,
    plain_log_ticks,
    step,
    step_points,
)
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


MAX_POINTS = 20_000
"""A scatter of more points is thinned to every n-th."""
SMALLEST_US = 1.0
"""Errors below a microsecond are drawn as one."""

Errors = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def predicted_against_actual(axes: Axes, analysis: Analysis) -> None:
    """Scatter of predicted against actual durations; the diagonal is a perfect prediction."""
    drawn = []
    kinds = (("INFER", analysis.infer, BLUE, "o", 9), ("LOAD", analysis.load, ORANGE, "^", 30))
    for name, samples, colour, marker, size in kinds:
        if not len(samples):
            continue
        step = -(-len(samples) // MAX_POINTS)
        predicted = np.maximum(samples.predicted_ns()[::step], 1000) / 1e6
        actual = np.maximum(samples.actual_ns()[::step], 1000) / 1e6
        drawn += [predicted, actual]
        axes.scatter(
            predicted, actual, s=size, alpha=0.35, color=colour, marker=marker, linewidths=0, label=name
        )
    if drawn:
        low, high = min(part.min() for part in drawn) * 0.8, max(part.max() for part in drawn) * 1.25
        axes.plot([low, high], [low, high], color=GREY, linestyle="--", linewidth=1.2, label="exact")
        axes.set_xlim(low, high)
        axes.set_ylim(low, high)
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            plain_log_ticks(axis)
    finish_axes(axes, "Predicted against actual durations", "actual, milliseconds", "predicted, milliseconds")
    if drawn:
        legend = axes.legend(loc="upper left")
        for handle in legend.legend_handles:
            if handle is not None:
                handle.set_alpha(1)


def duration_error(axes: Axes, analysis: Analysis) -> None:
    """Tail of the prediction errors of durations (figure 9, top)."""
    _tails(axes, analysis.infer.duration_error_ns(), analysis.load.duration_error_ns())
    finish_axes(axes, "Prediction error of durations", "% of actions with more", "error, microseconds")


def completion_error(axes: Axes, analysis: Analysis) -> None:
    """Tail of the errors of predicted ends (figure 9, bottom)."""
    _tails(axes, analysis.infer.completion_error_ns(), analysis.load.completion_error_ns())
    finish_axes(
        axes,
        "Completion error (actual against predicted end)",
        "% of actions with more",
        "error, microseconds",
    )


def _tails(axes: Axes, infer_ns: Errors, load_ns: Errors) -> None:
    """Draw, for over- and underpredictions, the share of all actions whose error is larger."""
    for name, error_ns, colour in (("INFER", infer_ns, BLUE), ("LOAD", load_ns, ORANGE)):
        for word, part, dash in (("over", -error_ns, "--"), ("under", error_ns, "-")):
            errors = np.maximum(np.sort(part[part > 0]) / 1e3, SMALLEST_US)
            if len(errors):
                p99 = np.percentile(errors, 99, method="inverted_cdf")
                axes.plot(
                    *_tail(errors, len(error_ns)), drawstyle="steps-post", color=colour, linestyle=dash,
                    label=f"{name} {word} (p99 {p99:,.0f} us)",
                )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(top=150)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}%"))
    if axes.get_lines():
        axes.legend(loc="best")


def _tail(errors_us: Floats, total: int) -> tuple[Floats, Floats]:
    """Return ascending errors, thinned, and for each the percentage of all actions with as much or more."""
    more = np.arange(len(errors_us), 0, -1) / total * 100
    step = -(-len(errors_us) // MAX_POINTS)
    keep = np.unique(np.append(np.arange(0, len(errors_us), step), len(errors_us) - 1))
    return errors_us[keep], more[keep]


COLUMNS = 2
PANEL_INCHES = (7.6, 3.3)
DPI = 110
LINE_INCHES = 0.3
"""Height of a line above the panels, in inches."""
TITLE_LETTERS, HEADLINE_LETTERS = 95, 150
"""Number of letters that fit into a line of the picture's width."""
TITLE_LOOK: dict[str, Any] = {"fontsize": 17, "fontweight": "bold", "color": BLACK}
HEADLINE_LOOK: dict[str, Any] = {"fontsize": 12.5, "color": GREY}
CAUTION_LOOK: dict[str, Any] = {"fontsize": 12.5, "color": RED}
MOST_SLO_LINES = 4

Panel = Callable[[Axes], None]


def draw_report(path: Path, title: str, summary: Summary, analysis: Analysis | None = None) -> None:
    """Write the picture of a run as PNG: clients' panels, and with an ``analysis`` those of the event log.

    ``title`` says what was run. The file appears whole or not at all.
    """
    panels: list[Panel] = [
        lambda axes: _throughput(axes, summary),
        lambda axes: _latency(axes, summary),
        lambda axes: _unserved(axes, summary),
        lambda axes: _batch_over_time(axes, summary),
    ]
    if analysis is not None:
        panels += [
            lambda axes: _cold_starts(axes, summary, analysis),
            lambda axes: _batch_sizes(axes, analysis),
            lambda axes: _occupancy(axes, analysis, summary),
            lambda axes: predicted_against_actual(axes, analysis),
            lambda axes: duration_error(axes, analysis),
            lambda axes: completion_error(axes, analysis),
        ]
    else:
        panels += [lambda axes: _cold_starts(axes, summary, None)]
    _draw(path, title, _headline(summary), summary.whose_latencies(), panels)


def _draw(path: Path, title: str, headline: str, caution: str, panels: list[Panel]) -> None:
    rows = -(-len(panels) // COLUMNS)
    head = [
        *((line, TITLE_LOOK) for line in textwrap.wrap(title, TITLE_LETTERS)),
        *((line, HEADLINE_LOOK) for line in textwrap.wrap(headline, HEADLINE_LETTERS)),
        *((line, CAUTION_LOOK) for line in textwrap.wrap(caution, HEADLINE_LETTERS)),
    ]
    head_inches = 0.25 + LINE_INCHES * len(head)
    height = PANEL_INCHES[1] * rows + head_inches
    layout = ConstrainedLayoutEngine(
        w_pad=0.12, h_pad=0.12, hspace=0.04, wspace=0.03, rect=(0, 0, 1, 1 - head_inches / height)
    )
    figure = Figure(figsize=(PANEL_INCHES[0] * COLUMNS, height), layout=layout)
    FigureCanvasAgg(figure)
    for number, (line, look) in enumerate(head):
        y = 1 - (0.2 + LINE_INCHES * (number + 0.5)) / height
        figure.text(0.5, y, line, ha="center", va="center", **look)
    grid = figure.add_gridspec(rows, COLUMNS)
    for number, panel in enumerate(panels):
        row, column = divmod(number, COLUMNS)
        last = number == len(panels) - 1
        panel(figure.add_subplot(grid[row, column:] if last else grid[row, column]))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        figure.savefig(temporary, format="png", dpi=DPI, facecolor="white")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _headline(summary: Summary) -> str:
    def milliseconds(value: float | None) -> str:
        return "none" if value is None else f"{value:.1f} ms"

    not_sent = summary.unsent + summary.expired
    unsent = f"  ·  unsent {not_sent:,}" if not_sent else ""
    if summary.unanswered:
        unsent = f"  ·  no answer yet at the end {summary.unanswered:,}{unsent}"
    return (
        f"{summary.offered:,} requests, {summary.offered_rate:,.0f} a second over {summary.duration_s:,.0f} s"
        f"  ·  goodput {summary.goodput_share:.2%}  ·  rejected {summary.rejected_total:,}"
        f"  ·  late {summary.late:,}  ·  lost {summary.lost:,}{unsent}"
        f"  ·  p50 {milliseconds(summary.p50_ms)}  ·  p99 {milliseconds(summary.p99_ms)}"
        f"  ·  max {milliseconds(summary.max_ms)}"
    )


def _throughput(axes: Axes, summary: Summary) -> None:
    series = summary.series
    xs, ys = step_points(series.second, series.goodput)
    axes.fill_between(xs, ys, step="post", color=SKY, alpha=0.45, linewidth=0)
    step(axes, series.second, series.goodput, color=BLUE, label="goodput (in time for the caller)")
    step(axes, series.second, series.offered, color=BLACK, linestyle=":", label="offered")
    axes.set_ylim(bottom=0, top=max([1, *series.offered]) * 1.25)
    finish_axes(axes, "Offered load and goodput", "requests / s")
    _span(axes, summary)
    axes.legend(loc="upper right", ncols=2)


def _latency(axes: Axes, summary: Summary) -> None:
    series = summary.series

    def line(values: list[float | None], **look: Any) -> None:
        _plot(axes, series.second, values, **look)

    line(series.max_ms, color=GREY, linestyle=":", label="maximum")
    line(series.p99_ms, color=ORANGE, linestyle="--", label="p99")
    line(series.p50_ms, color=BLUE, label="median")
    _slo_lines(axes, summary)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(low, max(high, summary.slo_ms or 0) * 2.5)
    plain_log_ticks(axes.yaxis)
    finish_axes(axes, "Latency of answers, as their callers see it", "milliseconds")
    _span(axes, summary)
    axes.legend(loc="upper right", ncols=3)


def _slo_lines(axes: Axes, summary: Summary) -> None:
    """Draw the SLOs that most requests have, each with their share if there are several."""
    requests = summary.with_deadline.offered
    for slo_ms, count in summary.slos[:MOST_SLO_LINES]:
        axes.axhline(slo_ms, color=RED, linewidth=1.4)
        share = f" ({count / requests:.0%} of those with one)" if len(summary.slos) > 1 else ""
        axes.annotate(
            f"SLO {slo_ms:g} ms{share}", (0.01, slo_ms), xycoords=("axes fraction", "data"),
            xytext=(0, 4), textcoords="offset points", color=RED, fontsize=10.5,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 1},
        )  # fmt: skip


def _unserved(axes: Axes, summary: Summary) -> None:
    series = summary.series
    looks = [
        ("rejected", series.rejected, ORANGE, "-"),
        ("late", series.late, PURPLE, "--"),
        ("lost", series.lost, RED, ":"),
        ("no answer yet", series.unanswered, GREY, "-."),
        ("unsent", series.not_sent, BLUE, (0, (1, 3))),
    ]
    highest = 1
    for name, values, colour, dash in looks:
        if name in {"rejected", "late", "lost"} or any(values):
            step(axes, series.second, values, color=colour, linestyle=dash, label=f"{name} ({sum(values):,})")
            highest = max(highest, *values) if values else highest
    axes.set_ylim(bottom=0, top=highest * 1.3)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    reasons = sorted(summary.rejected.items(), key=lambda item: -item[1])[:4]
    text = "\n".join(f"{count:,}  {reason.replace('_', ' ')}" for reason, count in reasons)
    axes.text(0.015, 0.94, text, transform=axes.transAxes, va="top", fontsize=10, color=GREY)
    finish_axes(axes, "Rejected, late and lost", "requests / s")
    _span(axes, summary)
    axes.legend(loc="upper right", ncols=3)


def _batch_over_time(axes: Axes, summary: Summary) -> None:
    series = summary.series
    _plot(axes, series.second, series.mean_batch, color=GREEN)
    axes.set_ylim(bottom=0, top=max([1.0, *(y for y in series.mean_batch if y is not None)]) * 1.25)
    finish_axes(axes, "Batch size that the average request ran in", "requests")
    _span(axes, summary)


def _cold_starts(axes: Axes, summary: Summary, analysis: Analysis | None) -> None:
    series = summary.series
    label = f"cold starts ({summary.cold_starts:,}, {summary.cold_start_share:.1%} of answers)"
    step(axes, series.second, series.cold_starts, color=BLUE, label=label)
    highest = max([1, *series.cold_starts])
    if analysis is not None:
        log = analysis.summary.log_series
        seconds = _aligned(log.second, log.start_ns, summary.start_ns)
        label = f"LOAD actions ({analysis.summary.loads:,})"
        step(axes, seconds, log.loads, color=ORANGE, linestyle="--", label=label)
        highest = max([highest, *log.loads])
    axes.set_ylim(bottom=0, top=highest * 1.3)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    finish_axes(axes, "Cold starts", "per second")
    _span(axes, summary)
    axes.legend(loc="upper right", ncols=2)


def _batch_sizes(axes: Axes, analysis: Analysis) -> None:
    sizes = analysis.summary.batch_sizes
    total = max(sum(sizes.values()), 1)
    shares = [count / total * 100 for count in sizes.values()]
    bars = axes.bar([str(size) for size in sizes], shares, color=GREEN, width=0.6)
    axes.bar_label(bars, [f"{count:,}" for count in sizes.values()], fontsize=10, color=GREY, padding=2)
    axes.set_ylim(0, max([1.0, *shares]) * 1.2)
    mean = analysis.summary.mean_action_batch
    told = "" if mean is None else f" (mean {mean:.2f} rows)"
    finish_axes(axes, f"Batch sizes of INFER actions{told}", "% of actions", "batch size")
    axes.margins(x=0.08)


def _occupancy(axes: Axes, analysis: Analysis, summary: Summary) -> None:
    series = analysis.summary.log_series
    seconds = _aligned(series.second, series.start_ns, summary.start_ns)

    def line(values: list[float | None], **look: Any) -> None:
        _plot(axes, seconds, [None if value is None else value * 100 for value in values], **look)

    line(series.page_occupancy, color=BLACK, linestyle="--", label="pages holding weights")
    line(series.exec_utilisation, color=BLUE, label="EXEC busy")
    line(series.load_utilisation, color=ORANGE, linestyle=":", label="LOAD busy")
    axes.set_ylim(0, 128)
    axes.set_yticks([0, 25, 50, 75, 100])
    finish_axes(axes, "Page cache and executors", "%")
    _span(axes, summary)
    axes.legend(loc="upper right", ncols=3)


def _span(axes: Axes, summary: Summary) -> None:
    """Show the run's own time, and all of it: a log may begin before it and go on after."""
    last = max(len(summary.series.second), 1)
    axes.set_xlim(-0.01 * last, 1.01 * last)


def _plot(axes: Axes, seconds: Sequence[float], values: Sequence[float | None], **look: Any) -> None:
    """Draw values of whole seconds in their middle, to both ends; None is left out."""
    points = [(x + 0.5, y) for x, y in zip(seconds, values, strict=True) if y is not None]
    if points:
        (first, begin), (last, end) = points[0], points[-1]
        points = [(first - 0.5, begin), *points, (last + 0.5, end)]
    axes.plot([x for x, _ in points], [y for _, y in points], **look)


def _aligned(seconds: list[int], log_start_ns: int, run_start_ns: int) -> list[float]:
    """Return the log's seconds on the run's axis; both clocks are one machine's monotonic clock."""
    shift = (log_start_ns - run_start_ns) / 1e9
    return [second + shift for second in seconds]
