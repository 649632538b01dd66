"""What a person sees of the demonstration: progress wherever it runs, and a table at the end."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.table import Table

from mainspring.cli.demonstration.load import Capacity
from mainspring.telemetry.summary import LogSummary, OverUnder
from mainspring.traces.display import ProgressLine, progress_text, summary_table
from mainspring.traces.progress import Progress
from mainspring.traces.report import Summary

PLAIN_INTERVAL_S = 10.0
"""Between two lines of progress where no terminal shows a live one."""

DISTURBED = 2.0
"""From this spread of equal executions on, late answers and wrong predictions are the machine's."""


class DemoProgress:
    """A live line on a terminal; elsewhere, such as in a log, a line now and then."""

    def __init__(self, console: Console, duration_s: float) -> None:
        self._console = console
        self._duration_s = duration_s
        self._live = ProgressLine(console, duration_s)
        self._next_line_s = PLAIN_INTERVAL_S

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def __call__(self, progress: Progress) -> None:
        """Show the state of the run."""
        self._live(progress)
        if not self._console.is_terminal and progress.elapsed_s >= self._next_line_s:
            self._next_line_s += PLAIN_INTERVAL_S
            self._console.print(progress_text(progress, self._duration_s), soft_wrap=True)


def result_table(title: str, summary: Summary, log: LogSummary, capacity: Capacity) -> Table:
    """Return the clients' table of a run with what the event log and the profiles add."""
    table = summary_table(title, summary)
    table.add_section()
    table.add_row("capacity in best batches / of single requests", _rates(capacity))
    table.add_row("EXEC busy", _share(log.exec_utilisation))
    table.add_row("pages occupied", _share(log.page_occupancy))
    table.add_row("loads / unloads", f"{log.loads:,} / {log.unloads:,}")
    table.add_row("INFER predicted too long / short, p99", _over_under(log.infer_prediction_error_p99_us))
    table.add_row("LOAD predicted too long / short, p99", _over_under(log.load_prediction_error_p99_us))
    table.add_row("INFER p99 / median, same model and batch", _spread(log.infer_spread_p99))
    if log.workers_lost:
        table.add_row("workers lost", f"{log.workers_lost:,}")
    return table


def _rates(capacity: Capacity) -> str:
    return f"{capacity.capacity_rate:,.0f}/s / {capacity.capacity_single_rate:,.0f}/s"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _spread(ratio: float | None) -> str:
    if ratio is None:
        return "-"
    return f"{ratio:.1f} x" + (": something else disturbs this machine" if ratio > DISTURBED else "")


def _over_under(error: OverUnder) -> str:
    over, under = ("-" if value is None else f"{value:,.0f} us" for value in (error.over, error.under))
    return f"{over} / {under}"
