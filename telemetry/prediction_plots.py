"""Panels for how well durations and ends were predicted, after figure 9 of the Clockwork paper."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from mainspring.telemetry.style import BLUE, GREY, ORANGE, finish_axes, plain_log_ticks
from mainspring.telemetry.summary import Analysis

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
