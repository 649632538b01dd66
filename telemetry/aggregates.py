"""What is taken down of an event log as it passes: the part of `telemetry.summary` that sees every record."""

from __future__ import annotations

from collections import Counter

from mainspring.messages.actions import Infer, Load, Prepare, Release, Result, Unload
from mainspring.messages.codes import Status
from mainspring.messages.commands import Command, Reject
from mainspring.messages.events import Event, RequestArrived, Wakeup, WorkerJoined, WorkerLeft
from mainspring.telemetry.samples import ActionSamples, SecondSeries, Spread


class HeldBy:
    """What a worker holds."""

    __slots__ = ("pages", "resident")

    def __init__(self, pages: int, resident: dict[str, int]) -> None:
        self.pages = pages
        self.resident = resident
        """Pages by model."""


class Aggregates:
    """Counts and samples; `take` every record in order."""

    def __init__(self, start_ns: int | None, end_ns: int | None) -> None:
        self._start_ns = start_ns
        self._end_ns = end_ns
        self._open: dict[int, Infer | Load | Unload | Prepare | Release] = {}
        self._workers: dict[str, HeldBy] = {}
        self._last_ns = 0
        """The last request's instant."""
        self.infer, self.load = ActionSamples(), ActionSamples()
        self.spread = Spread()
        self.series = SecondSeries(start_ns)
        self.failed: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self.batches: Counter[int] = Counter()
        self.rows = 0
        self.cold = 0
        self.requests = 0
        self.unloads = 0
        self.lost = 0

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
            self.requests += counted
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
                self.rejected[entry.reason.value] += counted
            case WorkerJoined():
                resident = {held.model: len(held.pages) for held in entry.resident}
                self._workers[entry.worker] = HeldBy(entry.pages, resident)
            case WorkerLeft():
                self._workers.pop(entry.worker, None)
                self.lost += counted

    def finish(self) -> None:
        """Let the series come to its end, or to the last request where that is not known."""
        self._reach(self._last_ns if self._end_ns is None or not self._last_ns else self._end_ns)

    def _reach(self, now_ns: int) -> None:
        """Let the series come to an instant; 0 is before all."""
        if now_ns and self.series.behind(now_ns):
            self.series.reach(now_ns, *self._pages(), len(self._workers))

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
            self.failed[f"{type(action).__name__.upper()} {result.status.value}"] += counted
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
                    self.load.add(action, result)
                    self.series.loaded(now_ns, result.begin_ns, result.end_ns)
            case Unload():
                if worker is not None:
                    worker.resident.pop(action.model, None)
                self.unloads += counted

    def _inferred(self, action: Infer, result: Result) -> None:
        self.infer.add(action, result)
        self.spread.add(action, result)
        self.series.executed(result.begin_ns, result.end_ns)
        self.batches[action.batch_size] += 1
        self.rows += sum(action.rows)
        self.cold += sum(action.cold)
