"""Runs side by side, live or simulated: what differs, and whether they may be compared at all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from mainspring.telemetry.report import ClassSummary, Summary
from mainspring.telemetry.summary import Analysis

RATE_TOLERANCE = 0.02
"""Offered rates may differ by this share of the larger one."""
LENGTH_TOLERANCE = 0.1
"""Share of the larger one by which the durations of compared runs may differ."""
PERCENTILES = (("p50", "p50_ms"), ("p90", "p90_ms"), ("p99", "p99_ms"), ("p99.9", "p99_9_ms"))
"""Latencies that are compared, with their fields."""


class Run(msgspec.Struct, frozen=True):
    """One run's report under a short name."""

    name: str
    title: str
    summary: Summary
    batch_sizes: dict[int, int] = {}
    """INFERs by batch size, where the report has them."""
    exec_utilisation: float | None = None


class Row(msgspec.Struct, frozen=True):
    """One line of the table: what, and each run's figure as text."""

    what: str
    cells: tuple[str, ...]


class _LogFields(msgspec.Struct, frozen=True):
    """The fields that a report may have from the event log."""

    title: str = ""
    batch_sizes: dict[int, int] = {}
    exec_utilisation: float | None = None


def read_run(path: Path, name: str) -> Run:
    """Read a run's ``summary.json``, named itself or by its folder.

    Raises OSError if it can't be read, and ValueError that names the file if it is not a report.
    """
    file = path / "summary.json" if path.is_dir() else path
    data = file.read_bytes()
    try:
        summary = msgspec.json.decode(data, type=Summary)
        log = msgspec.json.decode(data, type=_LogFields, strict=False)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{file}: is not a report of a run: {error}") from error
    return Run(name, log.title, summary, log.batch_sizes, log.exec_utilisation)


def run_of(name: str, summary: Summary, analysis: Analysis) -> Run:
    """Return a run that was not read from a file."""
    return Run(name, name, summary, analysis.summary.batch_sizes, analysis.summary.exec_utilisation)


def short_names(paths: Sequence[Path]) -> list[str]:
    """Return a name for each path, as short as tells them apart."""
    plain = [path.parent if path.name == "summary.json" else path for path in paths]
    for parts in range(1, 1 + max(len(path.absolute().parts) for path in plain)):
        names = ["/".join(path.absolute().parts[-parts:]) for path in plain]
        if len(set(names)) == len(names):
            return names
    return [f"{path} ({number})" for number, path in enumerate(plain, start=1)]


def warnings(runs: Sequence[Run]) -> list[str]:
    """Return why the runs can't simply be compared; nothing if they can."""
    first = runs[0]
    found = [f"{run.name}: {run.summary.whose_latencies()}" for run in runs if run.summary.fell_behind]
    for run in runs[1:]:
        if differences := _unlike(first, run):
            found += differences
            found.append(
                f"{run.name}'s goodput is not given in % of {first.name}'s, because they had different work"
            )
    return found


def alike(first: Run, run: Run) -> bool:
    """Return whether two runs had the same work to do, so that their goodput may be compared."""
    return not _unlike(first, run)


def _unlike(first: Run, run: Run) -> list[str]:
    """Return in what the work of two runs differs."""
    found = []
    if run is not first:
        mine, other = run.summary, first.summary
        pair = f"{first.name} and {run.name}"
        if _differ(mine.offered_rate, other.offered_rate, RATE_TOLERANCE):
            rates = f"{other.offered_rate:,.1f} and {mine.offered_rate:,.1f} requests/s"
            found.append(f"{pair} were offered different loads: {rates}")
        if any(_differ(*ends, RATE_TOLERANCE) for ends in zip(_slos(mine), _slos(other), strict=True)):
            slos = " and ".join(_told_slos(each) for each in (other, mine))
            found.append(f"{pair} had different SLOs: {slos}")
        if _differ(_freely(mine), _freely(other), RATE_TOLERANCE):
            shares = f"{_freely(other):.1%} and {_freely(mine):.1%}"
            found.append(f"{pair} had different shares of requests without a deadline: {shares}")
        if mine.models != other.models:
            found.append(f"{pair} asked for different numbers of models: {other.models} and {mine.models}")
        if _differ(mine.duration_s, other.duration_s, LENGTH_TOLERANCE):
            lengths = f"{other.duration_s:,.1f} and {mine.duration_s:,.1f} s"
            found.append(f"{pair} are of different lengths: {lengths}")
    return found


def rows(runs: Sequence[Run]) -> list[Row]:
    """Return the table's lines."""
    summaries = [run.summary for run in runs]

    def row(what: str, cells: Sequence[str]) -> Row:
        return Row(what, tuple(cells))

    table = [
        row("offered", [f"{each.offered:,} ({each.offered_rate:,.1f}/s)" for each in summaries]),
        row("goodput", [f"{each.goodput_rate:,.1f}/s ({each.goodput_share:.2%})" for each in summaries]),
    ]
    if any(each.best_effort.offered and each.with_deadline.offered for each in summaries):
        table.append(row("  with a deadline, in time", [_class(each.with_deadline) for each in summaries]))
        table.append(row("  best effort, answered", [_class(each.best_effort) for each in summaries]))
    table.append(row("goodput against the first", [_against(run, runs[0]) for run in runs]))
    reasons = sorted({reason for each in summaries for reason in each.rejected})
    for reason in reasons:
        counts = [each.rejected.get(reason, 0) for each in summaries]
        table.append(row(f"rejected: {reason.replace('_', ' ')}", [f"{count:,}" for count in counts]))
    table.append(row("late", [f"{each.late:,}" for each in summaries]))
    table.append(row("lost", [f"{each.lost:,}" for each in summaries]))
    if any(each.unanswered for each in summaries):
        counts = [each.unanswered for each in summaries]
        table.append(row("no answer yet when the replay ended", [f"{count:,}" for count in counts]))
    if any(each.unsent + each.expired for each in summaries):
        table.append(row("unsent", [f"{each.unsent + each.expired:,}" for each in summaries]))
    for name, field in (*PERCENTILES, ("maximum", "max_ms")):
        table.append(row(f"latency {name}", [_ms(getattr(each, field)) for each in summaries]))
    table.append(row("rejections p50", [_ms(each.reject_p50_ms) for each in summaries]))
    batches = ["-" if each.mean_batch is None else f"{each.mean_batch:.2f}" for each in summaries]
    table.append(row("batch size of the average request", batches))
    table.append(row("cold starts", [f"{each.cold_starts:,}" for each in summaries]))
    if any(run.exec_utilisation is not None for run in runs):
        shares = [run.exec_utilisation for run in runs]
        table.append(row("EXEC busy", ["-" if share is None else f"{share:.1%}" for share in shares]))
    shares_of = of_possible(runs)
    if any(found is not None for found in shares_of):
        cells = [_possible_cell(run, found) for run, found in zip(runs, shares_of, strict=True)]
        table.append(row("of what was possible", cells))
    return table


def of_possible(runs: Sequence[Run]) -> list[tuple[float, str] | None]:
    """Return for each run which share it reached of what was possible, and the run whose bound that is.

    A run without a bound of its own is held against that of the first one with the same load, SLO and models,
    if all requests of both have a deadline. None where no run fits.
    """
    return [_of_possible(run, runs) for run in runs]


def _of_possible(run: Run, runs: Sequence[Run]) -> tuple[float, str] | None:
    if run.summary.possible is not None:
        return run.summary.possible.share, run.name
    for other in runs:
        bound = other.summary.possible
        if bound is None or bound.requests != other.summary.offered or not alike(other, run):
            continue
        if bound.at_most and run.summary.slo_ms is not None:
            return run.summary.goodput_share * bound.requests / bound.at_most, other.name
    return None


def _possible_cell(run: Run, found: tuple[float, str] | None) -> str:
    if found is None:
        return "-"
    share, owner = found
    return f"{share:.2%}" if owner == run.name else f"{share:.2%} (bound of {owner})"


def comparison(runs: Sequence[Run]) -> dict[str, Any]:
    """Return what ``comparison.json`` holds."""
    return {
        "warnings": warnings(runs),
        "of_possible": [None if found is None else found[0] for found in of_possible(runs)],
        "runs": [msgspec.to_builtins(run) for run in runs],
    }


def _against(run: Run, first: Run) -> str:
    """Return a run's goodput against the first run's; a dash where one number says nothing of it."""
    before = first.summary.goodput_rate
    if run is first:
        return "the measure"
    if not before or not alike(first, run):
        return "-"
    return f"{(run.summary.goodput_rate / before - 1) * 100:+.2f} %"


def _class(each: ClassSummary) -> str:
    return f"{each.goodput:,} of {each.offered:,} ({each.share:.2%})" if each.offered else "-"


def _slos(summary: Summary) -> tuple[float, float]:
    """Return the smallest and the largest SLO that a run's requests had; zeros if none had one."""
    values = [slo_ms for slo_ms, _ in summary.slos] or [0.0]
    return min(values), max(values)


def _told_slos(summary: Summary) -> str:
    least, most = _slos(summary)
    if not most:
        return "none"
    return f"{least:g} ms" if least == most else f"{least:g} to {most:g} ms"


def _freely(summary: Summary) -> float:
    """Return the share of requests without a deadline."""
    return summary.best_effort.offered / summary.offered if summary.offered else 0.0


def _differ(one: float, other: float, tolerance: float) -> bool:
    return abs(one - other) > tolerance * max(one, other)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} ms"
