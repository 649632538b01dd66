"""The analysis of a run's event log: predictions against what happened, batches, pages, executors.

One pass over the log in order; memory is three integers for each finished action. Clockwork, section 6.5
and figure 9: an *overprediction* is an action that took less than predicted, an *underprediction* one that
took more; the *completion error* compares the predicted with the actual end, and so has the errors of all
that was outstanding before in it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from mainspring.telemetry.entries import SegmentHeader
from mainspring.telemetry.log import read_entries
from mainspring.telemetry.samples import ActionSamples, Aggregates
from mainspring.telemetry.series import LogSeries


class OverUnder(msgspec.Struct, frozen=True):
    """A percentile of the actions that were predicted too long (over), and of those too short (under)."""

    over: float | None
    under: float | None


class LogSummary(msgspec.Struct, frozen=True):
    """The fields that a report has from the event log; names differ from those of `report.Summary`."""

    requests_seen: int
    infers: int
    """INFER actions that ended well."""
    loads: int
    """LOAD actions that ended well."""
    unloads: int
    actions_failed: dict[str, int]
    """Actions that did not end well, by ``KIND status``."""
    scheduler_rejected: dict[str, int]
    """Requests that the scheduler rejected, by `messages.codes.Reason`."""
    cold_requests: int
    """Requests in INFERs whose model was resident nowhere when they arrived."""
    mean_action_batch: float | None
    """Requests' rows in the average INFER."""
    batch_sizes: dict[int, int]
    """INFERs by the batch size that they ran as."""
    infer_prediction_error_p99_us: OverUnder
    load_prediction_error_p99_us: OverUnder
    infer_completion_error_p99_us: OverUnder
    load_completion_error_p99_us: OverUnder
    infer_spread_p99: float | None
    """p99 of INFERs' durations over the median of the same model and batch size: near 1 where
    nothing disturbs the device, and the more above it, the less any prediction can be right."""
    exec_utilisation: float | None
    """Share of the workers' time in which EXEC was busy."""
    load_utilisation: float | None
    page_occupancy: float | None
    """Mean share of all pages that held weights."""
    workers_lost: int
    log_series: LogSeries


@dataclass
class Analysis:
    """A log's summary with the samples that plots need."""

    summary: LogSummary
    infer: ActionSamples
    load: ActionSamples


def analyse_log(directory: Path | str, *, start_ns: int | None = None, end_ns: int | None = None) -> Analysis:
    """Read a log; what ended outside ``[start_ns, end_ns)`` of the controller's clock is not counted.

    By default all is counted. Raises OSError if the log cannot be read.
    """
    reader = Analyser(start_ns, end_ns)
    for now_ns, entry in read_entries(directory):
        if isinstance(entry, SegmentHeader):
            if entry.first_of_run:
                reader.new_run()
        else:
            reader.take(now_ns, entry)
    return reader.finish()


class Analyser:
    """The state of one pass: `take` every record in order, then `finish`."""

    def __init__(self, start_ns: int | None = None, end_ns: int | None = None) -> None:
        self._taken = Aggregates(start_ns, end_ns)
        self.new_run = self._taken.new_run
        """Called where another run begins."""
        self.share = self._taken.share
        """Called with a state that is kept elsewhere."""
        self.take = self._taken.take
        """Takes one record in."""

    def finish(self) -> Analysis:
        """Return the summary of all records."""
        taken = self._taken
        taken.finish()
        series = taken.series.finish()
        infers = len(taken.infer)
        summary = LogSummary(
            requests_seen=taken.requests,
            infers=infers,
            loads=len(taken.load),
            unloads=taken.unloads,
            actions_failed=_positive(taken.failed),
            scheduler_rejected=_positive(taken.rejected),
            cold_requests=taken.cold,
            mean_action_batch=taken.rows / infers if infers else None,
            batch_sizes=dict(sorted(taken.batches.items())),
            infer_prediction_error_p99_us=over_under(taken.infer.duration_error_ns(), 99),
            load_prediction_error_p99_us=over_under(taken.load.duration_error_ns(), 99),
            infer_completion_error_p99_us=over_under(taken.infer.completion_error_ns(), 99),
            load_completion_error_p99_us=over_under(taken.load.completion_error_ns(), 99),
            infer_spread_p99=taken.spread.percentile(99),
            exec_utilisation=_mean(series.exec_utilisation),
            load_utilisation=_mean(series.load_utilisation),
            page_occupancy=_mean(series.page_occupancy),
            workers_lost=taken.lost,
            log_series=series,
        )
        return Analysis(summary, taken.infer, taken.load)


def over_under(error_ns: npt.NDArray[np.int64], percent: float) -> OverUnder:
    """Return a percentile, in microseconds, of over- and underpredictions by errors (actual - predicted)."""
    over, under = -error_ns[error_ns < 0], error_ns[error_ns > 0]
    return OverUnder(_percentile_us(over, percent), _percentile_us(under, percent))


def _percentile_us(values_ns: npt.NDArray[np.int64], percent: float) -> float | None:
    if not len(values_ns):
        return None
    return float(np.percentile(values_ns, percent, method="inverted_cdf")) / 1e3


def _positive(counter: Counter[str]) -> dict[str, int]:
    return {name: count for name, count in sorted(counter.items()) if count}


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
