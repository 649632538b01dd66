"""The progress of a run and its result, computed and on the terminal, replayed or simulated."""

from __future__ import annotations

from types import TracebackType

import msgspec
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mainspring.telemetry.percentiles import DurationHistogram
from mainspring.telemetry.report import (
    BEHIND_US,
    ClassSummary,
    Latencies,
    Series,
    Summary,
    flat,
    read_summary,
    write_json,
)
from mainspring.traces.arrival import SECOND_NS
from mainspring.traces.records import (
    EXPIRED,
    FIRST_REASON,
    NO_DEADLINE,
    OUTPUTS,
    PENDING,
    REASONS,
    UNANSWERED,
    UNSENT,
    Records,
)

__all__ = ["Series", "Summary", "flat", "read_summary", "summarise", "write_json"]

Floats = npt.NDArray[np.float64]
MS_NS = 1_000_000
US_NS = 1_000
MOST_SLOS = 16
"""Different SLOs that a report names."""

Flags = npt.NDArray[np.bool_]
Note = str | int | float | bool | None


class _Outcomes:
    """A run's columns with what follows from them, of shape (requests,)."""

    def __init__(self, records: Records) -> None:
        self.sent, self.replied = records.columns()
        outcome = self.replied["outcome"]
        self.answered: Flags = outcome == OUTPUTS
        self.refused: Flags = outcome >= FIRST_REASON
        self.lost: Flags = outcome == PENDING
        self.unanswered: Flags = outcome == UNANSWERED
        self.unsent: Flags = outcome == UNSENT
        self.expired: Flags = outcome == EXPIRED
        latency_ns = self.replied["replied_ns"] - self.sent["intended_ns"]
        self.late: Flags = self.answered & (latency_ns > self.sent["slo_ns"])
        self.gateway_late: Flags = self.answered & (self.replied["left_ns"] < 0)
        self.goodput: Flags = self.answered & ~self.late
        self.with_deadline: Flags = self.sent["slo_ns"] != NO_DEADLINE
        self.cold: Flags = self.answered & self.replied["cold_start"]
        self.latency_ms: Floats = latency_ns / MS_NS
        self.sent_latency_ms: Floats = (self.replied["replied_ns"] - self.sent["sent_ns"]) / MS_NS
        self.gateway_ms: Floats = self.replied["gateway_ns"] / MS_NS
        self.lag_us: Floats = (self.sent["sent_ns"] - self.sent["intended_ns"]) / US_NS


def summarise(
    records: Records, *, start_ns: int, duration_ns: int = 0, notes: dict[str, Note] | None = None
) -> Summary:
    """Count and measure a run's requests; records count from ``start_ns``, rates are over ``duration_ns``,
    the workload's length, or to its last request if that is later."""
    run, offered = _Outcomes(records), len(records)
    goodput = int(run.goodput.sum())
    answers_ms, refused_ms = run.latency_ms[run.answered], run.latency_ms[run.refused]
    duration_s = float(run.sent["intended_ns"].max(initial=duration_ns) / SECOND_NS)
    return Summary(
        offered=offered,
        goodput=goodput,
        goodput_share=goodput / offered if offered else 1.0,
        rejected=_by_reason(run.replied["outcome"]),
        rejected_total=len(refused_ms),
        late=int(run.late.sum()),
        lost=int(run.lost.sum()),
        unanswered=int(run.unanswered.sum()),
        unsent=int(run.unsent.sum()),
        expired=int(run.expired.sum()),
        gateway_late=int(run.gateway_late.sum()),
        with_deadline=_class(run, run.with_deadline),
        best_effort=_class(run, ~run.with_deadline),
        p50_ms=_percentile(answers_ms, 50),
        p90_ms=_percentile(answers_ms, 90),
        p99_ms=_percentile(answers_ms, 99),
        p99_9_ms=_percentile(answers_ms, 99.9),
        p99_99_ms=_percentile(answers_ms, 99.99),
        max_ms=_percentile(answers_ms, 100),
        since_sent=_latencies(run.sent_latency_ms[run.answered]),
        at_gateway=_latencies(run.gateway_ms[run.answered]),
        reject_p50_ms=_percentile(refused_ms, 50),
        reject_p99_ms=_percentile(refused_ms, 99),
        cold_starts=int(run.cold.sum()),
        cold_start_share=_mean(run.cold[run.answered]) or 0.0,
        mean_batch=_mean(run.replied["batch_size"][run.answered]),
        replayer_lag_p50_us=_percentile(run.lag_us, 50) or 0.0,
        replayer_lag_p99_us=_percentile(run.lag_us, 99) or 0.0,
        replayer_lag_max_us=_percentile(run.lag_us, 100) or 0.0,
        duration_s=duration_s,
        offered_rate=offered / duration_s if duration_s else 0.0,
        goodput_rate=goodput / duration_s if duration_s else 0.0,
        slo_ms=_largest_slo_ms(run),
        slos=_slos(run),
        models=len(np.unique(run.sent["model"])),
        start_ns=start_ns,
        series=_series(run, duration_ns),
        notes=notes or {},
    )


def _class(run: _Outcomes, chosen: Flags) -> ClassSummary:
    answers = run.latency_ms[chosen & run.answered]
    return ClassSummary(
        offered=int(chosen.sum()),
        goodput=int((chosen & run.goodput).sum()),
        late=int((chosen & run.late).sum()),
        rejected=int((chosen & run.refused).sum()),
        latencies=_latencies(answers),
    )


def _latencies(values_ms: Floats) -> Latencies:
    return Latencies(*(_percentile(values_ms, percent) for percent in (50, 99, 100)))


def _slos(run: _Outcomes) -> list[tuple[float, int]]:
    """Return the requested SLOs, in milliseconds, with their numbers of requests: the most frequent first."""
    values, counts = np.unique(run.sent["slo_ns"][run.with_deadline], return_counts=True)
    found = zip((values / MS_NS).tolist(), counts.tolist(), strict=True)
    return sorted(found, key=lambda each: (-each[1], each[0]))[:MOST_SLOS]


def _largest_slo_ms(run: _Outcomes) -> float | None:
    values = run.sent["slo_ns"][run.with_deadline]
    return float(values.max() / MS_NS) if len(values) else None


def _mean(values: npt.NDArray[np.int32] | Flags) -> float | None:
    return float(values.mean()) if len(values) else None


def _percentile(values: Floats, percent: float) -> float | None:
    """Return the smallest value that ``percent`` of the values do not exceed: one that did occur."""
    return float(np.percentile(values, percent, method="inverted_cdf")) if len(values) else None


def _by_reason(outcome: npt.NDArray[np.uint8]) -> dict[str, int]:
    counts = np.bincount(outcome, minlength=FIRST_REASON + len(REASONS))[FIRST_REASON:].tolist()
    return {reason.value: count for reason, count in zip(REASONS, counts, strict=True) if count}


def _series(run: _Outcomes, duration_ns: int) -> Series:
    """Return the columns of every second, those of the workload's end without a request among them."""
    second = run.sent["intended_ns"] // SECOND_NS
    length = max(int(second.max(initial=-1)) + 1, -(-duration_ns // SECOND_NS))

    def count(flags: Flags) -> list[int]:
        return np.bincount(second[flags], minlength=length).tolist()  # type: ignore[no-any-return]

    order = np.flatnonzero(run.answered)[np.argsort(second[run.answered], kind="stable")]
    edges = np.searchsorted(second[order], np.arange(length + 1))
    parts = [order[edges[i] : edges[i + 1]] for i in range(length)]
    batch_size = run.replied["batch_size"]
    return Series(
        second=list(range(length)),
        offered=np.bincount(second, minlength=length).tolist(),
        goodput=count(run.goodput),
        rejected=count(run.refused),
        late=count(run.late),
        lost=count(run.lost),
        unanswered=count(run.unanswered),
        not_sent=count(run.unsent | run.expired),
        p50_ms=[_percentile(run.latency_ms[part], 50) for part in parts],
        p99_ms=[_percentile(run.latency_ms[part], 99) for part in parts],
        max_ms=[_percentile(run.latency_ms[part], 100) for part in parts],
        mean_batch=[float(batch_size[part].mean()) if len(part) else None for part in parts],
        cold_starts=count(run.cold),
    )


class Progress(msgspec.Struct, frozen=True):
    """The counts of a run so far, for a display twice a second."""

    elapsed_s: float
    offered: int
    goodput: int
    rejected: int
    late: int
    unsent: int
    in_flight: int
    p50_ms: float | None
    """Median latency of all outputs so far, in milliseconds, right to 0.4 %."""
    p99_ms: float | None
    lag_p99_us: float


class RunCounters:
    """The counts of a run, updated with each request."""

    def __init__(self) -> None:
        self.goodput = self.rejected = self.late = self.unsent = self.unexpected = 0
        self.latency = DurationHistogram()
        self.lag = DurationHistogram()

    def progress(self, now_ns: int, records: Records) -> Progress:
        """Return the counts so far."""
        return Progress(
            elapsed_s=now_ns / SECOND_NS,
            offered=len(records),
            goodput=self.goodput,
            rejected=self.rejected,
            late=self.late,
            unsent=self.unsent,
            in_flight=records.in_flight,
            p50_ms=self.latency.percentile_ms(50),
            p99_ms=self.latency.percentile_ms(99),
            lag_p99_us=(self.lag.percentile_ms(99) or 0) * 1e3,
        )


class ProgressLine:
    """Shows `Progress`, rewritten in place on a terminal and left out where there is none."""

    def __init__(self, console: Console, duration_s: float) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._shown = console.is_terminal
        self._duration_s = duration_s

    def __enter__(self) -> ProgressLine:
        if self._shown:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            self._live.stop()

    def __call__(self, progress: Progress) -> None:
        """Show the state of the run."""
        if self._shown:
            self._live.update(progress_text(progress, self._duration_s), refresh=True)


def progress_text(progress: Progress, duration_s: float) -> Text:
    """Return one line about a run that goes on."""
    answered = progress.goodput + progress.late + progress.rejected
    share = f"{progress.goodput / answered:.1%}" if answered else "-"
    line = Text(f"{progress.elapsed_s:6.1f} / {duration_s:g} s   ")
    line.append(f"offered {progress.offered:,}   goodput {progress.goodput:,} ({share})   ")
    line.append(f"rejected {progress.rejected:,}   ", "yellow" if progress.rejected else "")
    line.append(f"late {progress.late:,}   ", "red" if progress.late else "")
    line.append(f"in flight {progress.in_flight:,}   p50 {_ms(progress.p50_ms)}   p99 {_ms(progress.p99_ms)}")
    if progress.unsent:
        line.append(f"   unsent {progress.unsent:,}", "red")
    if progress.lag_p99_us > BEHIND_US:
        line.append(f"   replayer behind: p99 {progress.lag_p99_us / 1e3:.1f} ms", "yellow")
    return line


def summary_table(title: str, summary: Summary) -> Table:
    """Return the table that ends a run."""
    table = Table(title=title, show_header=False, title_justify="left", title_style="bold")
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_row("offered", f"{summary.offered:,} ({summary.offered_rate:,.1f}/s)")
    table.add_row("goodput", f"{summary.goodput:,} ({summary.goodput_share:.2%})")
    if summary.with_deadline.offered and summary.best_effort.offered:
        table.add_row("  with a deadline, in time", _of(summary.with_deadline))
        table.add_row("  best effort, answered", _of(summary.best_effort))
    if summary.possible is not None:
        table.add_row("  of what was possible", f"{summary.possible.share:.2%}")
    for reason, count in sorted(summary.rejected.items(), key=lambda item: -item[1]):
        table.add_row(f"rejected: {reason.replace('_', ' ')}", f"{count:,}")
    table.add_row("late", _bad(summary.late))
    if summary.late != summary.gateway_late:
        table.add_row("  late already when they left the gateway", f"{summary.gateway_late:,}")
    table.add_row("lost", _bad(summary.lost))
    if summary.unanswered:
        table.add_row("no answer yet when the replay ended", _bad(summary.unanswered))
    if summary.unsent:
        table.add_row("unsent: no gateway took them", _bad(summary.unsent))
    if summary.expired:
        table.add_row("unsent: deadline passed before the replayer came to them", _bad(summary.expired))
    latencies = (summary.p50_ms, summary.p99_ms, summary.p99_99_ms, summary.max_ms)
    table.add_row("latency p50 / p99 / p99.99 / max", " / ".join(_ms(value) for value in latencies))
    if summary.fell_behind:
        table.add_row("  from the real send, p50 / p99 / max", _shown_latencies(summary.since_sent))
        table.add_row("  by the gateway, p50 / p99 / max", _shown_latencies(summary.at_gateway))
    table.add_row("cold starts", f"{summary.cold_starts:,} ({summary.cold_start_share:.1%})")
    batch = "-" if summary.mean_batch is None else f"{summary.mean_batch:.2f}"
    table.add_row("batch size of the average request", batch)
    lag = f"{summary.replayer_lag_p99_us:,.0f} us (max {summary.replayer_lag_max_us:,.0f} us)"
    behind = summary.fell_behind
    table.add_row("replayer's own lag, p99", f"[yellow]{lag}: fell behind[/yellow]" if behind else lag)
    if behind:
        table.caption = summary.whose_latencies()
        table.caption_justify, table.caption_style = "left", "yellow"
    return table


def _of(each: ClassSummary) -> str:
    return f"{each.goodput:,} of {each.offered:,} ({each.share:.2%})"


def _shown_latencies(found: Latencies) -> str:
    return " / ".join(_ms(value) for value in (found.p50_ms, found.p99_ms, found.max_ms))


def _bad(count: int) -> str:
    return f"[red]{count:,}[/red]" if count else "0"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"
