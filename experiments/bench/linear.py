"""Cost of personal linear models: an update, the best items, and Velox's figures 2.3 and 2.4 in time.

``python -m mainspring.experiments.bench.linear``, which ``make bench-selection`` runs. Figure 2.3 has updates
by the formula of Sherman and Morrison beside solving the normal equations, 2.4 the best of ever more items.
Times are processor times, the medians of many calls.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # Before NumPy is imported.

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.selection.linear.model import LinearModel, LinearOptions
from mainspring.selection.linear.weights import Weights

UPDATE_US = {10: None, 50: 50.0, 100: None, 500: 600.0, 1_000: 3_000.0}
BEST_MS = {(100, 0.0): 1.5, (50, 1.0): 6.0}
CACHED_MS = 0.4
ITEMS = 10_000
SIZES = (100, 300, 1_000, 3_000, 10_000)
LEAST_GAIN = 10.0


def median_s(call: Callable[[], object], count: int) -> float:
    """Return the median of the processor time of so many calls, in seconds."""
    times = []
    for _ in range(count):
        began = time.thread_time()
        call()
        times.append(time.thread_time() - began)
    return float(np.median(times))


def updates(count: int) -> list[Figure]:
    """Measure figure 2.3: the time of an update, and how much longer solving again takes."""
    found, generator = [], np.random.default_rng(0)
    for d, most in UPDATE_US.items():
        features, values = generator.normal(size=(count, d)), generator.normal(size=count)
        weights, told = Weights(np.zeros(d), 1.0), iter(zip(features, values, strict=True))
        own = median_s(lambda: weights.update(*next(told)), count)  # noqa: B023
        matrix, target = weights.matrix(), features.T @ values
        solving = median_s(lambda: np.linalg.solve(matrix, target), max(5, min(count, 20_000 // d)))  # noqa: B023
        found.append(Figure(f"update at d = {d}", 1e6 * own, "us", most))
        least = LEAST_GAIN if d == 500 else None
        found.append(
            Figure(f"2.3: solving / update at d = {d}", solving / own, "times", least, at_least=True)
        )
    return found


def model_of(d: int, alpha: float) -> LinearModel:
    """Return a model of `ITEMS` items with one user."""
    table = np.random.default_rng(d).normal(size=(ITEMS, d))
    model = LinearModel(LinearOptions(alpha=alpha), table, d)
    for item in range(40):
        model.observe("ann", table[item], item % 5, item)
    return model


def best(count: int) -> list[Figure]:
    """Measure the best 10 of all items against their budgets."""
    found, generator = [], np.random.default_rng(0)
    for (d, alpha), most in BEST_MS.items():
        model, name = model_of(d, alpha), "LinUCB" if alpha else "greedy"

        def anew(model: LinearModel = model) -> None:
            model.now.scores.forget("ann")
            model.top_k("ann", None, 10, generator)

        found.append(Figure(f"best 10 of {ITEMS}, {name}, d = {d}", 1e3 * median_s(anew, count), "ms", most))
        kept = median_s(lambda: model.top_k("ann", None, 10, generator), count)  # noqa: B023
        found.append(Figure(f"the same, cached, {name}, d = {d}", 1e3 * kept, "ms", CACHED_MS))
    return found


def sizes(count: int) -> list[Figure]:
    """Measure figure 2.4: the best of more and more items, with cached scores and without."""
    found, generator, gains = [], np.random.default_rng(0), []
    for d in (10, 100, 1_000):
        model, anew, kept = model_of(d, 0.0), [], []
        for size in SIZES:
            items = generator.permutation(ITEMS)[:size]
            model.now.scores.forget("ann")
            anew.append(median_s(lambda: model.top_k("ann", items, 10, generator), count))  # noqa: B023
            model.top_k("ann", None, 10, generator)
            kept.append(median_s(lambda: model.top_k("ann", items, 10, generator), count))  # noqa: B023
        fit = float(np.corrcoef(SIZES, anew)[0, 1])
        found.append(Figure(f"2.4: correlation of time with items, d = {d}", fit, "", 0.95, at_least=True))
        found.append(Figure(f"2.4: {ITEMS} items, d = {d}", 1e3 * anew[-1], "ms"))
        gains.append(anew[-1] / kept[-1])
        found.append(Figure(f"2.4: not cached / cached, d = {d}", gains[-1], "times"))
    growth = min(after / before for before, after in pairwise(gains))
    found.append(Figure("2.4: growth of that gain with d, least", growth, "times", 1.0, at_least=True))
    return found


def main(
    count: Annotated[int, typer.Option(min=5, help="Updates of each d.")] = 5_000,
    output: Annotated[Path, typer.Option(help="Folder for linear.json.")] = OUTPUT,
) -> None:
    """Measure and print the figures."""
    calls = max(5, count // 100)
    publish("linear", "Personal linear models", [*updates(count), *best(calls), *sizes(calls)], output)


if __name__ == "__main__":
    typer.run(main)
