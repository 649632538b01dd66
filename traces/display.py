"""A run on the terminal: one line while it goes on, a table when it is over."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mainspring.telemetry.report import BEHIND_US, ClassSummary, Latencies, Summary
from mainspring.traces.report import Progress


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
        table.add_row("  from the real send, p50 / p99 / max", _latencies(summary.since_sent))
        table.add_row("  by the gateway, p50 / p99 / max", _latencies(summary.at_gateway))
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


def _latencies(found: Latencies) -> str:
    return " / ".join(_ms(value) for value in (found.p50_ms, found.p99_ms, found.max_ms))


def _bad(count: int) -> str:
    return f"[red]{count:,}[/red]" if count else "0"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"
