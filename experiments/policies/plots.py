"""The comparison as pictures."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from mainspring.experiments.policies.sweep import Results


def plot_policies(results: Results, file: Path) -> None:
    """Draw goodput in % of the bound: a panel for each load, a group of bars for each scenario."""
    figure, panels = plt.subplots(
        len(results.loads), 1, figsize=(11, 2.8 * len(results.loads)), squeeze=False
    )
    width = 0.8 / len(results.policies)
    for load, panel in zip(results.loads, panels[:, 0], strict=True):
        for place, policy in enumerate(results.policies):
            heights = [100 * (results.of_bound(policy, each, load) or 0.0) for each in results.scenarios]
            at = [index + (place + 0.5) * width - 0.4 for index in range(len(heights))]
            panel.bar(at, heights, width, label=policy)
        panel.set_xticks(range(len(results.scenarios)), results.scenarios)
        panel.set_ylabel(f"% of {results.whole}")
        panel.set_title(f"{load:g} x the fluid capacity", fontsize=10)
        panel.grid(axis="y", alpha=0.3)
    panels[0, 0].legend(ncols=min(8, len(results.policies)), fontsize=8, loc="lower left")
    _save(figure, file)


def plot_frontier(results: Results, fairness: dict[str, float], load: float, file: Path) -> None:
    """Draw the mean goodput against the worst-served tenth's share, for policies of different fairness."""
    figure, panel = plt.subplots(figsize=(7, 5))
    for scenario in results.scenarios:
        points = [
            (results.worst_tenth(policy, scenario, load), results.of_bound(policy, scenario, load))
            for policy in fairness
        ]
        xs = [100 * (worst or 0.0) for worst, _ in points]
        ys = [100 * (good or 0.0) for _, good in points]
        panel.plot(xs, ys, marker="o", label=scenario)
        for (x, y), value in zip(zip(xs, ys, strict=True), fairness.values(), strict=True):
            panel.annotate(f"{value:g}", (x, y), textcoords="offset points", xytext=(4, 4), fontsize=7)
    panel.set_xlabel("share served of the worst-served tenth of models, %")
    panel.set_ylabel(f"goodput in % of {results.whole}")
    panel.set_title(f"fairness at {load:g} x the fluid capacity", fontsize=10)
    panel.grid(alpha=0.3)
    panel.legend(fontsize=8)
    _save(figure, file)


def _save(figure: Figure, file: Path) -> None:
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    plt.close(figure)
