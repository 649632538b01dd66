"""The paper's figures 3 to 5 and 7 to 16 from what was computed, each with the paper's text beside ours."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mainspring.experiments.ribbon.convergence import SAVINGS
from mainspring.experiments.ribbon.data import GAUSSIAN, ROWS
from mainspring.experiments.ribbon.instances import PAIR_MS, Instances
from mainspring.experiments.ribbon.optima import Optimum
from mainspring.experiments.ribbon.report import Report
from mainspring.planner.estimate import Estimate
from mainspring.planner.pools.gaussian import Surrogate

PAPER = {
    3: "At 32 rows most kinds perform alike, at 128 g4dn is best by far. It is the least cost-effective, "
    "r5 and r5n are the most.",
    4: "5 g4dn hold, 4 do not, nor do 12 t3; 3 g4dn + 4 t3 hold for less, 2 + 4 violate, 4 + 4 cost more.",
    5: "Pools of like prices may end very different shares in time, and pools of unlike prices like shares.",
    7: "Without rounding the process is continuous between whole devices; with it, it has steps, too.",
    8: "Pools that beat the best of one kind, and what is saved, hardly grow beyond three kinds.",
    9: "Savings from 9 % (VGG19) to 16 % (ResNet50).",
    10: "Fewer than 40 evaluations, about 20 on MT-WND and DIEN; others need 2 to 10 times as many.",
    11: "Significant savings under Gaussian rows, too.",
    12: "3 g4dn + 4 t3 in 8 evaluations; hill climbing 13, RSM 18.",
    13: "Ribbon's exploration costs less than 3 % of the exhaustive one, others' 10 to 20 %.",
    14: "Ribbon samples the fewest violating pools but on ResNet50, where RSM is near.",
    15: "More is saved at p98 than at p99.",
    16: "The new optimum takes less than 60 % of the evaluations that the first one took.",
}
NEAR = 0.1
"""Prices that differ by less are alike."""
Draw = Callable[[Any, Report], str]


def draw_figures(report: Report, folder: Path) -> list[Path]:
    """Write the figures whose data the report has into a folder; return their files."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    needed: dict[int, tuple[object, Draw]] = {
        3: (report.instances, _instances),
        4: (report.instances, _pair),
        5: (report.instances, _unlike),
        7: (report.instances, _rounding),
        8: (report.instances, _kinds),
        9: (report.optima, lambda figure, each: _savings(figure, each, 9)),
        10: (report.searches, _convergence),
        11: (report.optima, lambda figure, each: _savings(figure, each, 11)),
        12: (report.instances, _grid),
        13: (
            report.searches,
            _explored,
        ),
        14: (report.searches, _violating),
        15: (report.optima, lambda figure, each: _savings(figure, each, 15)),
        16: (report.load, _load),
    }
    found = []
    for number, (data, draw) in needed.items():
        if not data:
            continue
        figure = pyplot.figure(figsize=(8, 5), layout="constrained")
        ours = draw(figure, report)
        text = "\n".join(textwrap.wrap(f"Paper: {PAPER[number]}", 110) + textwrap.wrap(f"Here: {ours}", 110))
        figure.suptitle(f"Figure {number}", x=0.01, ha="left", fontweight="bold")
        figure.supxlabel(text, x=0.01, ha="left", fontsize=8)
        found.append(folder / f"figure_{number:02d}.png")
        figure.savefig(found[-1], dpi=110)
        pyplot.close(figure)
    return found


def _of(report: Report) -> Instances:
    assert report.instances is not None, "figures of instances are drawn only with them"
    return report.instances


def _instances(figure: Any, report: Report) -> str:
    found = _of(report).instances
    kinds = sorted({each.kind for each in found})
    for axes, name in zip(figure.subplots(1, 2), ("performance", "cost_effectiveness"), strict=True):
        for place, batch in enumerate((32, 128)):
            values = [getattr(each, name) for each in found if each.batch == batch]
            axes.barh(np.arange(len(kinds)) + 0.4 * place, values, 0.4, label=f"{batch} rows")
        axes.set_yticks(np.arange(len(kinds)) + 0.2, kinds)
        axes.set_xlabel(name.replace("_", "-") + ", of the best")
        axes.legend()
    at = {(each.kind, each.batch): each for each in found}
    g4dn, best = at["g4dn.xlarge", 128], max(at.values(), key=lambda each: each.cost_effectiveness)
    return (
        f"at 128 rows g4dn performs best and has {g4dn.cost_effectiveness:.2f} of the best "
        f"cost-effectiveness; at 32 that is {best.kind}"
    )


def _pair(figure: Any, report: Report) -> str:
    axes = figure.subplots()
    for each in _of(report).shown:
        axes.scatter(each.price, each.p99_ms, color=_colour(each))
        axes.annotate(
            " + ".join(map(str, each.pool)),
            (each.price, each.p99_ms),
            xytext=(4, 4),
            textcoords="offset points",
        )
    one_kind = next(each.price for each in _of(report).shown if each.pool == (5, 0))
    axes.axvline(one_kind, color="grey", linestyle=":")
    axes.axhline(PAIR_MS, color="red")
    axes.set_xlabel("price an hour of g4dn + t3")
    axes.set_ylabel("p99, ms")
    shares = [f"{each.pool[0]} + {each.pool[1]}: {each.attainment:.2%}" for each in _of(report).shown]
    return "in time " + ", ".join(shares)


def _unlike(figure: Any, report: Report) -> str:
    grid = _of(report).grid
    near = [(one, other) for one in grid for other in grid if abs(one.price - other.price) < NEAR]
    alike = max(near, key=lambda pair: pair[0].attainment - pair[1].attainment)
    far = [(one, other) for one in grid for other in grid if abs(one.attainment - other.attainment) < 0.001]
    apart = max(far, key=lambda pair: pair[0].price - pair[1].price)
    for axes, pair in zip(figure.subplots(1, 2), (alike, apart), strict=True):
        names = [" + ".join(map(str, each.pool)) for each in pair]
        axes.bar(np.arange(2) - 0.2, [each.price for each in pair], 0.4, label="price an hour")
        axes.set_xticks(range(2), names)
        other = axes.twinx()
        other.bar(np.arange(2) + 0.2, [100 * each.attainment for each in pair], 0.4, color="#d95f02")
        other.set_ylabel("in time, %")
        axes.set_ylabel("price an hour")
    return (
        f"{alike[0].pool} and {alike[1].pool} cost {alike[0].price:.2f} and {alike[1].price:.2f} and end "
        f"{alike[0].attainment:.1%} and {alike[1].attainment:.1%} in time; {apart[0].pool} costs "
        f"{apart[0].price / apart[1].price:.1f} times as much as {apart[1].pool} and ends as many"
    )


def _rounding(figure: Any, report: Report) -> str:
    """Fit the process to some pools of four g4dn, with and without rounding."""
    row = {each.pool[1]: each.attainment for each in _of(report).grid if each.pool[0] == 4}
    sampled = [count for count in (0, 2, 5, 9, 12) if count in row]
    fine = np.linspace(0, 12, 400)
    apart = []
    for axes, rounds in zip(figure.subplots(1, 2, sharey=True), (False, True), strict=True):
        surrogate = Surrogate(1, rounding=rounds)
        surrogate.fit(np.array(sampled)[:, None], np.array([row[count] for count in sampled]))
        mean, deviation = surrogate.predict(fine[:, None])
        truth = [row[int(np.rint(count))] for count in fine]
        apart.append(float(np.abs(mean - truth).mean()))
        axes.plot(fine, truth, color="black", label="objective")
        axes.plot(fine, mean, label="process")
        axes.fill_between(fine, mean - deviation, mean + deviation, alpha=0.2)
        axes.scatter(sampled, [row[count] for count in sampled], color="red", zorder=3)
        axes.set_title("rounded" if rounds else "not rounded")
        axes.set_xlabel("t3 beside 4 g4dn")
        axes.legend()
    return f"mean distance from the objective {apart[0]:.4f} without rounding, {apart[1]:.4f} with it"


def _kinds(figure: Any, report: Report) -> str:
    found = _of(report).kinds
    counts = [len(each.kinds) for each in found]
    left, right = figure.subplots(1, 2)
    left.plot(counts, [each.better for each in found], marker="o")
    left.set_ylabel("pools better than the best of one kind")
    right.plot(counts, [100 * each.saved for each in found], marker="o")
    right.set_ylabel("saved, %")
    for axes in (left, right):
        axes.set_xlabel("kinds of instances")
        axes.set_xticks(counts)
    return "; ".join(
        f"{len(each.kinds)} kinds: {each.better} pools, {each.saved:.1%} saved" for each in found
    )


def _savings(figure: Any, report: Report, number: int) -> str:
    found: list[Optimum] = [each for each in report.optima if _belongs(each, number)]
    axes, names = figure.subplots(), [each.model for each in found]
    axes.bar(np.arange(len(found)) - 0.2, [100 * (each.saved or 0) for each in found], 0.4, label="here")
    axes.set_ylabel("saved, %")
    if number == 9:
        axes.bar(np.arange(len(found)) + 0.2, [100 * each.paper_saved for each in found], 0.4, label="paper")
    if number == 15:
        usual = {each.model: each.saved for each in report.optima if _belongs(each, 9)}
        axes.bar(
            np.arange(len(found)) + 0.2, [100 * (usual.get(name) or 0) for name in names], 0.4, label="p99"
        )
    axes.set_xticks(range(len(found)), names)
    axes.legend()
    return ", ".join(f"{each.model} {each.saved or 0:.1%}" for each in found)


def _belongs(each: Optimum, number: int) -> bool:
    rows, percentile = {9: (ROWS, 0.99), 11: (GAUSSIAN, 0.99), 15: (ROWS, 0.98)}[number]
    usual = each.arrivals == "artifact" and each.target_ms == each.paper_target_ms
    return usual and each.rows == rows.kind and each.percentile == percentile


def _convergence(figure: Any, report: Report) -> str:
    models = list(dict.fromkeys(each.model for each in report.searches))
    for axes, model in zip(np.atleast_1d(figure.subplots(1, len(models), sharey=True)), models, strict=True):
        for each in report.searches:
            if each.model == model and each.search != "exact" and each.until_saved:
                axes.plot(
                    [100 * part for part in SAVINGS], _known(each.until_saved), marker=".", label=each.search
                )
        axes.set_title(model, fontsize=9)
        axes.set_yscale("log")
    figure.axes[0].set_ylabel("evaluations until a part of the greatest saving, %")
    figure.axes[0].legend(fontsize=6)
    ours = [each for each in report.searches if each.search == "ribbon"]
    return "ribbon: " + ", ".join(f"{each.model} {each.until_found or 0:.1f}" for each in ours)


def _known(values: tuple[float | None, ...]) -> list[float]:
    return [float("nan") if value is None else value for value in values]


def _grid(figure: Any, report: Report) -> str:
    found = _of(report)
    for axes, search in zip(
        figure.subplots(1, len(found.searched), sharey=True), found.searched, strict=True
    ):
        for each in found.grid:
            axes.scatter(
                *each.pool, marker="s", s=60, color=_colour(each), alpha=0.2 + 0.6 * each.attainment**8
            )
        columns = np.array(search.tried)
        axes.scatter(columns[:, 0], columns[:, 1], facecolors="none", edgecolors="blue", s=70)
        axes.scatter(*found.best, marker="*", color="gold", edgecolors="black", s=120, zorder=3)
        axes.set_title(f"{search.search}: {len(search.tried)}", fontsize=9)
        axes.set_xlabel("g4dn")
    figure.axes[0].set_ylabel("t3")
    counts = ", ".join(f"{each.search} {len(each.tried)}" for each in found.searched)
    return f"{found.best[0]} g4dn + {found.best[1]} t3 at {PAIR_MS:g} ms; evaluations: {counts}"


def _explored(figure: Any, report: Report) -> str:
    return _bars(figure, report, "explored", 100, "of what all pools cost, %")


def _violating(figure: Any, report: Report) -> str:
    return _bars(figure, report, "violating", 1, "violating pools")


def _bars(figure: Any, report: Report, name: str, scale: float, label: str) -> str:
    models = list(dict.fromkeys(each.model for each in report.searches))
    searches = [each for each in dict.fromkeys(each.search for each in report.searches) if each != "exact"]
    axes, width = figure.subplots(), 0.8 / len(searches)
    values = {(each.model, each.search): scale * (getattr(each, name) or 0.0) for each in report.searches}
    for place, search in enumerate(searches):
        heights = [values.get((model, search), 0.0) for model in models]
        axes.bar(np.arange(len(models)) + width * place, heights, width, label=search)
    axes.set_xticks(np.arange(len(models)) + 0.4 - width / 2, models)
    axes.set_ylabel(label)
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.5)
    axes.legend(fontsize=8)
    return "ribbon: " + ", ".join(f"{model} {values[model, 'ribbon']:.1f}" for model in models)


def _load(figure: Any, report: Report) -> str:
    found = [each for each in report.load if each.series]
    for axes, each in zip(np.atleast_1d(figure.subplots(1, max(1, len(found)))), found, strict=False):
        when = [100 * (place + 1) / each.first_of_series for place in range(len(each.series))]
        axes.plot(
            when,
            [100 * (1 - share) for _, share in each.series],
            color="#d95f02",
            marker=".",
            label="violating, %",
        )
        axes.axhline(1, color="black", linewidth=0.6)
        other = axes.twinx()
        other.plot(when, [price for price, _ in each.series], color="#1f77b4", marker=".", label="price")
        axes.set_title(each.model, fontsize=9)
        axes.set_ylim(0, 20)
        axes.set_xlim(0, max(100, *when))
        axes.set_xlabel("evaluations,\n% of the first search", fontsize=7)
    if found:
        figure.axes[0].set_ylabel("violating, % (orange); price, of the optimum before (blue)")
    parts = (f"{each.model} {each.second / each.first:.0%}" for each in report.load if each.first)
    return "evaluations after the change, of those before: " + ", ".join(parts)


def _colour(estimate: Estimate) -> str:
    return "#1b9e77" if estimate.attainment >= 0.99 else "#d62728"
