"""How the cost of a request grows with something: a fit, and a plot that says it."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import msgspec
import numpy as np
from matplotlib.axes import Axes

from mainspring.experiments.scheduler_cost import Cost

FLAT = 0.05
"""An exponent below this is called flat: less than 1.13 times the cost for ten times as much."""
LOGARITHMIC = 0.2
"""Below this growth is called logarithmic at most: log2(n) itself grows as n^0.11 from 1,000 to 64,000."""
FIELDS = {"models": "models", "devices": "devices", "queued": "backlog", "wide": "devices"}
NOUNS = {
    "models": "models",
    "devices": "devices and requests",
    "queued": "queue",
    "wide": "devices and requests, every model wherever there is room",
}
LABELS = {
    "models": "models",
    "devices": "devices (200 requests/s each)",
    "queued": "requests in the queue of the busiest model",
    "wide": "devices that hold all they can (200 requests/s each)",
}


class Growth(msgspec.Struct, frozen=True):
    """Costs of one sweep, and the exponent of the power of n that fits the least cost of a request best."""

    name: str
    xs: tuple[int, ...]
    costs: tuple[Cost, ...]
    exponent: float

    def text(self) -> str:
        """Say how the cost grows."""
        more = self.xs[-1] / self.xs[0]
        factor = self.costs[-1].request_us_least / self.costs[0].request_us_least
        kind = f"n^{self.exponent:.2f}, {self.verdict()}"
        return f"{more:,.0f} x the {NOUNS[self.name]}: {factor:.2f} x the cost ({kind})"

    def verdict(self) -> str:
        """Name the kind of growth."""
        if abs(self.exponent) < FLAT:
            return "flat"
        if self.exponent < 0:
            return "falling"
        return "at most logarithmic" if self.exponent < LOGARITHMIC else "more than logarithmic"


def growth_of(name: str, costs: list[Cost]) -> Growth:
    """Fit a sweep's costs."""
    xs = tuple(int(getattr(cost.setting, FIELDS[name])) for cost in costs)
    logs = [math.log(cost.request_us_least) for cost in costs]
    exponent = float(np.polyfit(np.log(xs), logs, 1)[0])
    return Growth(name, xs, tuple(costs), exponent)


def plot(sweeps: list[Growth], what: str, path: Path) -> None:
    """Draw each sweep with its fit; ``what`` says of which scheduler."""
    mpl.use("Agg")
    figure, axes = plt.subplots(
        1, len(sweeps), figsize=(4.6 * len(sweeps), 4.4), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, growth in zip(axes[0], sweeps, strict=True):
        _draw(axis, growth)
    axes[0][0].set_ylabel("CPU us for each request")
    axes[0][0].set_ylim(0)
    axes[0][0].legend(loc="lower right", fontsize=8)
    figure.suptitle(
        f"Cost of Scheduler.handle and Scheduler.schedule: {what}; logarithmic x axes, target 25 us"
    )
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _draw(axis: Axes, growth: Growth) -> None:
    xs = np.array(growth.xs, np.float64)
    least = np.array([cost.request_us_least for cost in growth.costs])
    fit = np.exp(np.log(least).mean() + growth.exponent * (np.log(xs) - np.log(xs).mean()))
    axis.semilogx(xs, least, "o-", color="#0072B2", label="median request, least of the plays")
    means = [cost.request_us_mean for cost in growth.costs]
    axis.semilogx(xs, means, "s--", color="#E69F00", label="mean request, median of the plays")
    axis.semilogx(xs, fit, ":", color="#555555", label="fitted power of n")
    axis.axhline(25, color="#999999", linewidth=0.8)
    for x, cost in zip(xs, growth.costs, strict=True):
        axis.annotate(
            f"{cost.request_us_least:.0f}",
            (x, cost.request_us_least),
            xytext=(0, -12),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color="#0072B2",
        )
    axis.set_title(growth.text(), fontsize=9)
    axis.set_xlabel(LABELS[growth.name])
    axis.set_xticks(xs, [f"{x:,}" for x in growth.xs])
    axis.minorticks_off()
    axis.grid(alpha=0.3)
