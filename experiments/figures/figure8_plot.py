"""Draws figure 8: load and goodput, latency, batches, cold requests; a column for each number of devices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.axes import Axes

from mainspring.experiments.figures.canvas import Page, known, look
from mainspring.experiments.figures.options import Options
from mainspring.experiments.figures.paper import AZURE_SLO_MS
from mainspring.telemetry.style import GREY, RED, finish_axes, plain_log_ticks

if TYPE_CHECKING:
    from mainspring.experiments.figures.figure8 import Row

X_LABEL = "hours of the trace"


def draw(path: Path, rows: Sequence[Row], options: Options) -> None:
    """Draw the paper's panels, the policies beside each other."""
    policies = tuple(dict.fromkeys(row.policy for row in rows))
    sizes = list(dict.fromkeys(row.devices for row in rows))
    kind = "live, a sixth of it" if options.live else "simulated"
    page = Page(f"Figure 8: the Azure Functions workload, SLO 100 ms ({kind})", 4, len(sizes))
    for column, devices in enumerate(sizes):
        own = [row for row in rows if row.devices == devices]
        name = f"on {devices} devices"
        _rates(page.panel(0, column), own, policies, name)
        _latency(page.panel(1, column), own, policies)
        _lines(page.panel(2, column), own, policies, "mean_batch", "Batch of the average request", "requests")
        _lines(page.panel(3, column), own, policies, "cold_rate", "Cold requests", "requests / s")
    page.save(path)


def _rates(axes: Axes, rows: Sequence[Row], policies: tuple[str, ...], name: str) -> None:
    axes.plot(rows[0].hour, rows[0].offered, color=GREY, linewidth=4, alpha=0.4, label="offered")
    for row in rows:
        colour, dash, _ = look(row.policy, policies)
        axes.plot(row.hour, row.goodput, color=colour, linestyle=dash, label=row.policy)
    axes.set_ylim(0, max(rows[0].offered) * 1.35)
    finish_axes(axes, f"Goodput {name}", "requests / s", X_LABEL)
    axes.legend(loc="upper right", ncols=3, fontsize=9)


def _latency(axes: Axes, rows: Sequence[Row], policies: tuple[str, ...]) -> None:
    for row in rows:
        colour, _, _ = look(row.policy, policies)
        for name, dash, values in (
            ("p50", "-", row.p50_ms), ("p99", "--", row.p99_ms), ("max", ":", row.max_ms)
        ):  # fmt: skip
            xs, ys = known(row.hour, values)
            axes.plot(xs, ys, color=colour, linestyle=dash, linewidth=1.2, label=f"{row.policy} {name}")
    axes.axhline(AZURE_SLO_MS, color=RED, linewidth=1.2)
    axes.set_yscale("log")
    axes.set_ylim(1, 1500)
    plain_log_ticks(axes.yaxis)
    finish_axes(axes, "Latency of answers (red: SLO)", "milliseconds", X_LABEL)
    axes.legend(loc="upper right", ncols=2, fontsize=8)


def _lines(
    axes: Axes, rows: Sequence[Row], policies: tuple[str, ...], field: str, title: str, unit: str
) -> None:
    highest = 1.0
    for row in rows:
        colour, dash, _ = look(row.policy, policies)
        xs, ys = known(row.hour, getattr(row, field))
        axes.plot(xs, ys, color=colour, linestyle=dash, label=row.policy)
        highest = max([highest, *ys])
    axes.set_ylim(0, highest * 1.35)
    finish_axes(axes, title, unit, X_LABEL)
    axes.legend(loc="upper right", ncols=3, fontsize=9)
