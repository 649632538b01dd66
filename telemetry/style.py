"""The look that all panels share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

BLACK, GREY = "#222222", "#666666"
BLUE, SKY, GREEN = "#0072B2", "#56B4E9", "#009E73"
ORANGE, RED, PURPLE = "#E69F00", "#D55E00", "#CC79A7"
"""Okabe and Ito's palette (2008)."""


def finish_axes(axes: Axes, title: str, y_label: str, x_label: str = "seconds from the start") -> None:
    """Give a panel its title, units and grid."""
    axes.set_title(title, loc="left", fontsize=13, fontweight="bold", color=BLACK)
    axes.set_ylabel(y_label, fontsize=11.5)
    axes.set_xlabel(x_label, fontsize=11.5)
    axes.tick_params(labelsize=10.5)
    axes.grid(True, which="major", color="#DDDDDD", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.margins(x=0.01)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for line in axes.get_lines():
        line.set_solid_capstyle("round")


def step_points(seconds: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the points of a step line over whole seconds, with the end of the last one."""
    if not seconds:
        return [], []
    return [*seconds, seconds[-1] + 1], [*values, values[-1]]


def step(axes: Axes, seconds: Sequence[float], values: Sequence[float], **look: Any) -> None:
    """Draw a value for each whole second, from its beginning to its end."""
    axes.step(*step_points(seconds, values), where="post", **look)


def plain_log_ticks(axis: Axis) -> None:
    """Mark a logarithmic axis at 1, 2 and 5 of each decade, in plain numbers."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
