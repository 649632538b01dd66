"""Draws figure 6: goodput, latency, cold starts and the executors' use while the models grow in number."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.axes import Axes

from mainspring.experiments.figures.canvas import Page, known, look
from mainspring.experiments.figures.options import Options
from mainspring.experiments.figures.paper import FIGURE6_SLO_MS
from mainspring.telemetry.style import GREY, RED, finish_axes, plain_log_ticks

if TYPE_CHECKING:
    from mainspring.experiments.figures.figure6 import Row

X_LABEL = "minutes of the paper since the major workload began"


def draw(path: Path, rows: Sequence[Row], options: Options) -> None:
    """Draw the paper's panels (a) to (e), the policies beside each other."""
    policies = tuple(row.policy for row in rows)
    kind = "live" if options.live else "simulated"
    page = Page(f"Figure 6: one device, one more model each second ({kind})", 3, 2)
    _goodput(page.panel(0, 0), rows, policies)
    _latency(page.panel(0, 1), rows, policies)
    _percent(
        page.panel(1, 0), rows, policies, "unready_share", "Cold or unserved, major workload", "% of requests"
    )
    _percent(page.panel(1, 1), rows, policies, "pages_used", "Pages that hold weights", "%")
    _percent(page.panel(2, 0), rows, policies, "load_busy", "LOAD executor (PCIe)", "% busy")
    _percent(page.panel(2, 1), rows, policies, "exec_busy", "EXEC executor (GPU)", "% busy")
    page.share_x(rows[0].minute[0], rows[0].minute[-1])
    page.save(path)


def _goodput(axes: Axes, rows: Sequence[Row], policies: tuple[str, ...]) -> None:
    for row in rows:
        colour, _, _ = look(row.policy, policies)
        axes.plot(row.minute, row.goodput, color=colour, label=f"{row.policy}, both")
        axes.plot(row.minute, row.minor_goodput, color=colour, linestyle=":", label=f"{row.policy}, minor")
    axes.set_ylim(0, max(max(row.goodput) for row in rows) * 1.45)
    finish_axes(axes, "Goodput", "requests / s", X_LABEL)
    axes.legend(loc="upper right", ncols=2, fontsize=9)


def _latency(axes: Axes, rows: Sequence[Row], policies: tuple[str, ...]) -> None:
    for row in rows:
        colour, _, _ = look(row.policy, policies)
        for values, dash, name in (
            (row.minor_mean_ms, ":", "minor, mean"),
            (row.major_mean_ms, "-", "major, mean"),
            (row.max_ms, "--", "longest"),
        ):
            axes.plot(*known(row.minute, values), color=colour, linestyle=dash, label=f"{row.policy}: {name}")
    axes.axhline(FIGURE6_SLO_MS, color=RED, linewidth=1.2)
    axes.annotate("SLO", (0.005, FIGURE6_SLO_MS), xycoords=("axes fraction", "data"), xytext=(0, 3),
                  textcoords="offset points", color=RED)  # fmt: skip
    axes.set_yscale("log")
    axes.set_ylim(1, 900)
    plain_log_ticks(axes.yaxis)
    finish_axes(axes, "Latency of answers", "milliseconds", X_LABEL)
    axes.legend(loc="upper right", ncols=2, fontsize=8)


def _percent(
    axes: Axes, rows: Sequence[Row], policies: tuple[str, ...], field: str, title: str, unit: str
) -> None:
    for row in rows:
        colour, dash, _ = look(row.policy, policies)
        xs, ys = known(row.minute, getattr(row, field))
        axes.plot(xs, [100 * y for y in ys], color=colour, linestyle=dash, label=row.policy)
    axes.axhline(100, color=GREY, linewidth=0.8)
    axes.set_ylim(0, 135)
    axes.set_yticks([0, 25, 50, 75, 100])
    finish_axes(axes, title, unit, X_LABEL)
    axes.legend(loc="upper right", ncols=2, fontsize=9)
