"""What a run of the mixed cluster is judged by: figures with their targets, and a row for each model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.table import Table

from mainspring.experiments.bench.report import Figure
from mainspring.experiments.mixed.fleet import ERRATIC, STREAM
from mainspring.experiments.mixed.offering import STREAMS, Tally
from mainspring.experiments.mixed.streams import Judged

GOODPUT, LATE = 99.0, 0.1
"""In percent: answers in time of all requests, and late replies of all that are not erratic."""


def figures(tallies: Sequence[Tally], judged: Judged, twice: int, killed_s: float) -> list[Figure]:
    """Return what is judged; ``killed_s`` is when the worker was killed, from the beginning."""
    sent = sum(tally.sent for tally in tallies)
    even = [tally for tally in tallies if tally.kind != ERRATIC]
    # Of what was missed, a run's length decides which part a death is of.
    missed = [each for tally in tallies for each in tally.missed_s]
    worst = max((np.diff(np.searchsorted(np.sort(missed), [at, at + 1.0]))[0] for at in missed), default=0)
    apart = sum(not killed_s <= each < killed_s + AFTERMATH_S for each in missed)
    plain = [tally for tally in tallies if tally.kind != STREAM]
    return [
        Figure("goodput", _percent(sum(each.in_time for each in tallies), sent), "%", GOODPUT, at_least=True),
        Figure("late, of models that are not erratic", _share(even, "late"), "%", LATE),
        Figure(
            "late, of erratic models", _share([each for each in tallies if each.kind == ERRATIC], "late"), "%"
        ),
        Figure("requests without a reply", sum(each.lost for each in tallies), "requests", 0),
        Figure("second and unasked replies", twice, "replies", 0),
        Figure("wrong answers", sum(each.wrong for each in plain), "answers", 0, note=_first(plain)),
        Figure("wrong answers of streams", judged.wrong, "answers", 0, note=judged.first_problem),
        Figure("streams that went on after the kill", judged.went_on, "streams", STREAMS, at_least=True),
        Figure("streams whose state was lost", judged.forgotten, "streams", 0),
        Figure("not in time apart from the kill", _percent(apart, sent), "%", note=AFTERMATH),
        Figure("not in time in the worst second", float(worst), "requests"),
    ]


AFTERMATH_S = 10.0
"""What is missed so long after the kill is counted as its."""
AFTERMATH = f"outside of the {AFTERMATH_S:g} s after it"


def models_table(tallies: Sequence[Tally]) -> Table:
    """Return a row for each model."""
    made = Table(title="by model", title_justify="left")
    for column in ("model", "kind"):
        made.add_column(column, no_wrap=True)
    for column in ("requests", "in time", "late", "wrong", "lost", "median ms", "p99 ms", "rejected"):
        made.add_column(column, justify="right")
    for each in tallies:
        middle, high = np.percentile(each.latency_ms, (50, 99)) if each.latency_ms else (np.nan, np.nan)
        made.add_row(
            each.name,
            each.kind,
            str(each.sent),
            f"{_percent(each.in_time, each.sent):.2f} %",
            *(str(count) for count in (each.late, each.wrong, each.lost)),
            f"{middle:.1f}",
            f"{high:.1f}",
            ", ".join(f"{count} {reason}" for reason, count in each.rejected.items()),
        )
    return made


def shortfalls(rows: Sequence[Figure]) -> list[str]:
    """Return a sentence for each target that was missed."""
    return [
        f"{row.name}: {row.value:.4g} {row.unit}, where {'at least' if row.at_least else 'at most'} "
        f"{row.target:g} were to be{f' ({row.note})' if row.note else ''}"
        for row in rows
        if row.met is False
    ]


def _first(tallies: Sequence[Tally]) -> str:
    return next((f"{each.name}: {each.problem}" for each in tallies if each.problem), "")


def _share(tallies: Sequence[Tally], what: str) -> float:
    return _percent(sum(getattr(each, what) for each in tallies), sum(each.sent for each in tallies))


def _percent(part: int, whole: int) -> float:
    return 100 * part / max(1, whole)
