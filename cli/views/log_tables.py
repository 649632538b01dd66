"""The tables of `mainspring log stats`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from rich.console import Console
from rich.table import Table

from mainspring.client.deadlines import format_duration
from mainspring.telemetry.log_stats import LogStats, Parts, RunStats


def print_stats(console: Console, title: str, stats: LogStats, models: int = 0) -> None:
    """Print a log's totals and a table for each run, with at most ``models`` of the requested models."""
    per = stats.size_bytes / stats.records if stats.records else 0.0
    if any(run.part_begins_s is not None for run in stats.runs):
        told = f"{stats.records:,} records of a part"
    else:
        told = (
            f"{size(stats.size_bytes)} in {_many(stats.segments, 'segment')}, "
            f"{stats.records:,} records of {per:.0f} bytes, {_many(len(stats.runs), 'run')}"
        )
    console.print(f"{title}: {told}", soft_wrap=True)
    for run in stats.runs:
        console.print()
        console.print(_table(run))
        if models and run.by_model:
            console.print(_models(run, models))


def size(count: int) -> str:
    """Return a number of bytes for a person."""
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.4g} {unit}"


def _table(run: RunStats) -> Table:
    made = Table(box=None, pad_edge=False, show_header=False)
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    for name, text in _rows(run):
        made.add_row(name, text)
    return made


def _models(run: RunStats, most: int) -> Table:
    """Return the models with the longest latencies."""
    made = Table(box=None, pad_edge=False)
    made.add_column("  model", no_wrap=True)
    for name in ("requests", "p50", "p99"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("outcomes", overflow="fold")
    for name, model in list(run.by_model.items())[:most]:
        latencies = (model.latency_p50_ms, model.latency_p99_ms)
        told = ["-" if ms is None else _ms(ms) for ms in latencies]
        made.add_row(f"  {name}", f"{model.requests:,}", *told, _counts(model.outcomes))
    if len(run.by_model) > most:
        made.add_row(f"  and {len(run.by_model) - most:,} more")
    return made


def _rows(run: RunStats) -> Iterator[tuple[str, str]]:
    lack = "" if run.whole else "; its beginning is not there" if run.sliced is None else ""
    begins_s = run.part_begins_s
    part = "" if begins_s is None else f" from second {begins_s:,.3f} of the run"
    yield f"run {run.number}", f"{run.began}, for {run.seconds:,.3f} s{part}{lack}"
    if run.sliced is not None:
        yield "  slice", f"of {run.sliced.of}; {run.sliced.picture:,} records rebuild what was before"
    yield "  policy", run.policy or "none: no controller wrote it"
    kinds = Counter(run.workers.values())
    yield "  workers", f"{len(run.workers)}" + (f" ({_counts(kinds)})" if kinds else "")
    yield "  models", f"{run.models:,}, of which {run.models_asked:,} were asked for"
    yield "  requests", _requests(run)
    yield "  outcomes", _counts(run.outcomes) or "none"
    if run.rejected:
        yield "  rejected", _counts(run.rejected)
    if run.latency_p50_ms is not None:
        latencies = (run.latency_p50_ms, run.latency_p99_ms or 0.0, run.latency_p9999_ms or 0.0)
        yield (
            "  latency",
            f"p50, p99, p99.99: {_three(latencies)} (arrival to the end of EXEC); {run.cold:,} cold",
        )
    for kind, ends in run.actions.items():
        yield f"  {kind}", _counts(ends)
        if kind in run.parts:
            yield from _parts(run.parts[kind])
    yield "  records", _counts(run.records)
    if begins_s is None:
        yield "  size", f"{size(run.size_bytes)} in {_many(run.segments, 'segment')}"


def _parts(parts: Parts) -> Iterator[tuple[str, str]]:
    yield "    device", f"p50, p99, p99.99: {_three(parts.device_ms)}"
    yield "    host", _three(parts.host_ms)
    longer, most = f"{_three(parts.longer_ms)} than predicted", parts.longest
    if most.longer_ms > 0:
        longer += (
            f"; the most {_ms(most.longer_ms)}, of action {most.action_id} ({most.model}), which took "
            f"{_ms(most.device_ms)} on the device and {_ms(most.host_ms)} on the host"
        )
    yield "    longer", longer


def _three(of_ms: tuple[float, float, float]) -> str:
    return ", ".join(map(_ms, of_ms))


def _ms(duration_ms: float) -> str:
    return format_duration(round(duration_ms * 1e6))


def _requests(run: RunStats) -> str:
    if run.offered_rps is None or run.in_time_rps is None:
        return f"{run.requests:,}"
    return (
        f"{run.requests:,}, {run.offered_rps:,.1f}/s offered and {run.in_time_rps:,.1f}/s in time; "
        f"{run.busiest_second:,} in the busiest second"
    )


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
