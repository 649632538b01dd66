"""The picture of a graph's plan: each step's devices, what was tried, the sample's envelope."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mainspring.planner.graph_queues import GraphQueues
from mainspring.planner.inferline import GraphPlan
from mainspring.planner.tuner import SECOND_NS
from mainspring.planner.writing import BEST, HOLDS, VIOLATES


def draw_plan(found: GraphPlan, estimator: GraphQueues, file: Path) -> None:
    """Write a plan's picture as PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (steps, tried, envelope) = pyplot.subplots(3, 1, figsize=(8, 9), layout="constrained")
    _steps(steps, found)
    _tried(tried, found, estimator)
    _envelope(envelope, found)
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def _steps(axes: Any, found: GraphPlan) -> None:
    """Draw the replicas of each step, with kind and largest batch."""
    stations = found.best.stations
    bars = axes.barh(found.steps, [each.replicas for each in stations], color=BEST)
    texts = [f"{each.replicas} {found.kinds[each.kind]}, batches of {each.batch}" for each in stations]
    axes.bar_label(bars, texts, padding=4)
    axes.set_xlim(0, 1.5 * max(each.replicas for each in stations))
    axes.invert_yaxis()
    axes.set_xlabel("replicas")
    axes.set_title(f"{found.graph}: {found.best.price:.4g} an hour, p99 {found.best.p99_ms:.4g} ms")


def _tried(axes: Any, found: GraphPlan, estimator: GraphQueues) -> None:
    """Draw price and share in time of all configurations that were played to their end."""
    whole = [each for each in estimator.estimates if each.complete]
    for label, colour, holds in (("holds", HOLDS, True), ("violates", VIOLATES, False)):
        mine = [each for each in whole if each.holds(found.objective) == holds]
        shares = [100 * each.attainment for each in mine]
        axes.scatter([each.price for each in mine], shares, s=16, color=colour, label=label)
    axes.axvline(found.best.price, color=BEST, linewidth=0.8, label="the plan")
    axes.axhline(100 * found.objective, color="black", linewidth=0.8)
    axes.set_xlabel("price an hour")
    axes.set_ylabel("queries in time, %")
    axes.legend(loc="lower right")


def _envelope(axes: Any, found: GraphPlan) -> None:
    """Draw the highest rate of the sample in windows of each length."""
    if found.sample is None:
        return
    windows = [each / SECOND_NS for each in found.sample.windows]
    rates = [count / each for count, each in zip(found.sample.counts, windows, strict=True)]
    axes.plot(windows, rates, marker="o", color=BEST)
    axes.axhline(found.rate, color="grey", linestyle=":", label="mean rate")
    axes.set_xscale("log")
    axes.set_xlabel("window, s")
    axes.set_ylabel("most queries a second")
    axes.legend(loc="upper right")
