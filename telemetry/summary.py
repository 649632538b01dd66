"""What an event log tells of a run: predictions against what happened, batches, pages, executors.

One pass over the log in order; memory is three integers for each finished action. Clockwork, section 6.5
and figure 9: an *overprediction* is an action that took less than predicted, an *underprediction* one that
took more; the *completion error* compares the predicted with the actual end, and so has the errors of all
that was outstanding before in it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from mainspring.messages.actions import Infer, Load, Prepare, Release, Result, Unload
from mainspring.messages.codes import Status
from mainspring.messages.commands import Command, Reject
from mainspring.messages.events import Event, RequestArrived, Wakeup, WorkerJoined, WorkerLeft
from mainspring.telemetry.log import SegmentHeader, read_entries
from mainspring.telemetry.samples import ActionSamples, LogSeries, SecondSeries, Spread

SECOND_NS = 1_000_000_000


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


@dataclass
class _Worker:
    pages: int
    resident: dict[str, int] = field(default_factory=dict)


class Analyser:
    """The state of one pass: `take` every record in order, then `finish`."""

    def __init__(self, start_ns: int | None = None, end_ns: int | None = None) -> None:
        self._start_ns = start_ns
        self._end_ns = end_ns
        self._open: dict[int, Infer | Load | Unload | Prepare | Release] = {}
        self._workers: dict[str, _Worker] = {}
        self._infer, self._load = ActionSamples(), ActionSamples()
        self._spread = Spread()
        self._series = SecondSeries(start_ns)
        self._failed: Counter[str] = Counter()
        self._rejected: Counter[str] = Counter()
        self._batches: Counter[int] = Counter()
        self._last_ns = 0
        """The last request's instant."""
        self._rows = self._cold = self._requests = self._unloads = self._lost = 0

    def new_run(self) -> None:
        """Forget what was outstanding: the controller began anew."""
        self._open.clear()
        self._workers.clear()

    def take(self, now_ns: int, entry: Event | Command) -> None:
        """Take one record in."""
        if isinstance(entry, Wakeup):
            return
        counted = self._counted(now_ns)
        if isinstance(entry, RequestArrived):
            # Most entries are these, and of the series only its end hangs on them.
            self._requests += counted
            if counted:
                self._last_ns = now_ns
            return
        if counted:
            self._reach(now_ns)
        match entry:
            case Infer() | Load() | Unload() | Prepare() | Release():
                self._open[entry.action_id] = entry
            case Result():
                self._result(now_ns, entry, counted)
            case Reject():
                self._rejected[entry.reason.value] += counted
            case WorkerJoined():
                resident = {held.model: len(held.pages) for held in entry.resident}
                self._workers[entry.worker] = _Worker(entry.pages, resident)
            case WorkerLeft():
                self._workers.pop(entry.worker, None)
                self._lost += counted

    def finish(self) -> Analysis:
        """Return what the whole log told."""
        self._reach(self._last_ns)
        series = self._series.finish()
        infers = len(self._infer)
        summary = LogSummary(
            requests_seen=self._requests,
            infers=infers,
            loads=len(self._load),
            unloads=self._unloads,
            actions_failed=_positive(self._failed),
            scheduler_rejected=_positive(self._rejected),
            cold_requests=self._cold,
            mean_action_batch=self._rows / infers if infers else None,
            batch_sizes=dict(sorted(self._batches.items())),
            infer_prediction_error_p99_us=over_under(self._infer.duration_error_ns(), 99),
            load_prediction_error_p99_us=over_under(self._load.duration_error_ns(), 99),
            infer_completion_error_p99_us=over_under(self._infer.completion_error_ns(), 99),
            load_completion_error_p99_us=over_under(self._load.completion_error_ns(), 99),
            infer_spread_p99=self._spread.percentile(99),
            exec_utilisation=_mean(series.exec_utilisation),
            load_utilisation=_mean(series.load_utilisation),
            page_occupancy=_mean(series.page_occupancy),
            workers_lost=self._lost,
            log_series=series,
        )
        return Analysis(summary, self._infer, self._load)

    def _reach(self, now_ns: int) -> None:
        """Let the series come to an instant; 0 is before all."""
        if now_ns and self._series.behind(now_ns):
            self._series.reach(now_ns, *self._pages(), len(self._workers))

    def _counted(self, now_ns: int) -> bool:
        after_start = self._start_ns is None or now_ns >= self._start_ns
        return after_start and (self._end_ns is None or now_ns < self._end_ns)

    def _pages(self) -> tuple[int, int]:
        used = sum(sum(worker.resident.values()) for worker in self._workers.values())
        return used, sum(worker.pages for worker in self._workers.values())

    def _result(self, now_ns: int, result: Result, counted: bool) -> None:
        action = self._open.pop(result.action_id, None)
        if action is None:
            return
        if result.status is not Status.OK:
            self._failed[f"{type(action).__name__.upper()} {result.status.value}"] += counted
            return
        worker = self._workers.get(action.worker)
        match action:
            case Infer():
                if counted:
                    self._inferred(action, result)
            case Load():
                if worker is not None:
                    worker.resident[action.model] = len(action.pages)
                if counted:
                    self._load.add(action, result)
                    self._series.loaded(now_ns, result.begin_ns, result.end_ns)
            case Unload():
                if worker is not None:
                    worker.resident.pop(action.model, None)
                self._unloads += counted

    def _inferred(self, action: Infer, result: Result) -> None:
        self._infer.add(action, result)
        self._spread.add(action, result)
        self._series.executed(result.begin_ns, result.end_ns)
        self._batches[action.batch_size] += 1
        self._rows += sum(action.rows)
        self._cold += sum(action.cold)


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
