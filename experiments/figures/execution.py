"""Runs the cases of an experiment: simulations on every core, live ones one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeVar

from mainspring.experiments.figures.case import Case, Observed

Row = TypeVar("Row")
Measure = Callable[[Case, Observed], Row]


def execute(
    cases: Sequence[Case], measure: Measure[Row], *, live: bool, at_once: int, told: Callable[[Case], None]
) -> list[Row]:
    """Run every case and return what ``measure`` made of each, in the cases' order.

    ``told`` hears of each case that is through. ``measure`` must be a function of a module, because it runs
    where the case does: so that what a process sends back is small.
    """
    rows: dict[int, Row] = {}
    for number, row in _rows(cases, measure, live=live, at_once=min(at_once, len(cases))):
        rows[number] = row
        told(cases[number])
    return [rows[number] for number in range(len(cases))]


def observe(case: Case, *, live: bool) -> Observed:
    """Run one case."""
    if live:
        from mainspring.experiments.figures.live import serve

        return serve(case)
    from mainspring.experiments.figures.virtual import simulate_case

    return simulate_case(case)


def _rows(
    cases: Sequence[Case], measure: Measure[Row], *, live: bool, at_once: int
) -> Iterator[tuple[int, Row]]:
    if at_once <= 1:
        for number, case in enumerate(cases):
            yield number, _measured(case, measure, live)
        return
    with ProcessPoolExecutor(at_once) as pool:
        futures = {pool.submit(_measured, case, measure, live): number for number, case in enumerate(cases)}
        for future in as_completed(futures):
            yield futures[future], future.result()


def _measured(case: Case, measure: Measure[Row], live: bool) -> Row:
    return measure(case, observe(case, live=live))
