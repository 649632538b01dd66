"""Goodput of the default policy with one of its constants at half or twice its value.

The constants are in `scheduler.policies.mainspring.constants`; the same requests are played with each value.
A compiled core has constants as literals, so this takes one that runs as Python (``MAINSPRING_NATIVE=0``).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from statistics import fmean

import msgspec
from rich.table import Table

from mainspring.experiments.policies.cell import Cell, Job
from mainspring.native import CORE, Use
from mainspring.scheduler.policies.mainspring import constants

CELLS = (
    *(("A", 1.0), ("C", 1.0), ("G", 1.5)),
    *(("transfers", 0.4), ("transfers", 1.0), ("effort", 0.3)),
)
"""Scenarios in which different constants count, and their loads."""
WORST, BEST_EFFORT = "G@1.5 worst tenth", "effort@0.3 without deadlines"
"""Measures beside goodput: what the worst-served models get, and requests without a deadline."""
LEFT_OUT = {
    "WORTH_SCALE": "scales whole numbers",
    "RENEWED_AFTER": "bounds a float",
    "LOWEST_FLOOR": "bounds a division",
}
"""Constants that serve the arithmetic alone, and how."""
MOVED = 0.5
"""Change of goodput, in %, that is told; smaller ones are as often up as down from seed to seed."""
MUCH_MOVED = 10.0
"""The same limit for the worst-served models and for best-effort answers: both are of few requests."""


def names() -> list[str]:
    """Return the constants that are tried."""
    return [name for name in vars(constants) if name.isupper() and name not in LEFT_OUT]


def neighbours(value: float) -> tuple[float, float]:
    """Return half of a value and twice it; a share of more than a half rises half of the way to 1."""
    if isinstance(value, int):
        return max(1, value // 2), 2 * value
    return value / 2, (1 + value) / 2 if 0.5 < value < 1 else 2 * value


def jobs(usual: Job, chosen: Iterable[str], seeds: int) -> list[Job]:
    """Return what to play: the default in each of `CELLS`, and then each constant's two neighbours."""
    changes: list[dict[str, float]] = [{}]
    for name in chosen:
        changes += [{name: value} for value in neighbours(getattr(constants, name))]
    return [
        msgspec.structs.replace(usual, scenario=scenario, load=load, seed=seed, constants=change)
        for change in changes
        for scenario, load in CELLS
        for seed in range(seeds)
    ]


@contextmanager
def changed(values: Mapping[str, float]) -> Iterator[None]:
    """Let the default policy have other constants meanwhile.

    Raises ValueError for one that it does not have, and where it runs compiled.
    """
    unknown = values.keys() - vars(constants).keys()
    if unknown:
        raise ValueError(f"the default policy has no constant {', '.join(sorted(unknown))}")
    if values and CORE.state().use is Use.COMPILED:
        raise ValueError("a compiled scheduler has its constants as literals; set MAINSPRING_NATIVE=0")
    home = constants.__name__.rpartition(".")[0]
    before = [
        (module, name, getattr(module, name))
        for module_name, module in list(sys.modules.items())
        if module_name.startswith(home)
        for name in values
        if hasattr(module, name)
    ]
    try:
        for module, name, _ in before:
            setattr(module, name, values[name])
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def as_played(cells: Iterable[Cell]) -> Iterator[tuple[str, dict[float, dict[str, float]]]]:
    """Yield each constant with its `ratios` as soon as its neighbours are played; `jobs` has the order."""
    usual: list[Cell] = []
    for name, group in groupby(cells, key=lambda cell: next(iter(cell.job.constants), "")):
        if name:
            yield name, ratios([*usual, *group])[name]
        else:
            usual = list(group)


def ratios(cells: Iterable[Cell]) -> dict[str, dict[float, dict[str, float]]]:
    """Return by constant and value what each measure is in % of the default's, where the default has any."""
    found: dict[tuple[str, float], dict[str, list[float]]] = {}
    for cell in cells:
        ((name, value),) = cell.job.constants.items() or [("", 0.0)]
        measures = found.setdefault((name, value), {})
        for measure, number in _measures(cell).items():
            measures.setdefault(measure, []).append(number)
    usual = {measure: fmean(values) for measure, values in found.pop(("", 0.0)).items()}
    result: dict[str, dict[float, dict[str, float]]] = {}
    for (name, value), measures in found.items():
        result.setdefault(name, {})[value] = {
            measure: 100 * fmean(values) / usual[measure]
            for measure, values in measures.items()
            if usual[measure]
        }
    return result


def _measures(cell: Cell) -> dict[str, float]:
    measures = {f"{cell.job.scenario}@{cell.job.load:g}": cell.in_time}
    if cell.job.scenario == "G":
        measures[WORST] = cell.worst_tenth
    if cell.job.scenario == "effort":
        measures[BEST_EFFORT] = cell.best_effort
    return measures


def told(values: Mapping[float, Mapping[str, float]]) -> str:
    """Return in a line what a constant's neighbours do: the measures that move, in % of the default's."""
    parts = []
    for value, measures in values.items():
        moved = [
            f"{measure} {number:.1f}"
            for measure, number in measures.items()
            if abs(number - 100) >= (MUCH_MOVED if measure in (WORST, BEST_EFFORT) else MOVED)
        ]
        parts.append(f"{value:_}: {', '.join(moved) or 'the same'}")
    return "; ".join(parts)


def table(results: Mapping[str, Mapping[float, Mapping[str, float]]]) -> Table:
    """Return each measure in % of the default's."""
    made = Table(title="goodput in % of the default policy's, with one constant changed")
    measures = list(next(iter(next(iter(results.values())).values())))
    made.add_column("constant")
    made.add_column("value", justify="right")
    for measure in measures:
        made.add_column(measure, justify="right")
    for name, values in results.items():
        for value, numbers in values.items():
            made.add_row(name, f"{value:_}", *(f"{numbers[measure]:.1f}" for measure in measures))
    return made
