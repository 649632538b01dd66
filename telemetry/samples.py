"""Samples of an event log's finished actions and what the cluster did in each second, taken as it passes."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mainspring.cluster.state import Cluster
from mainspring.messages.actions import Command, Infer, Load, Reject, Result, Unload
from mainspring.messages.codes import Status
from mainspring.messages.events import Event, RequestArrived, Wakeup, WorkerLeft
from mainspring.telemetry.lifecycles import ActionLife, Lifecycles, ended_by
from mainspring.telemetry.series import LogSeries


class Aggregates:
    """Counts and samples; `take` every record in order."""

    def __init__(self, start_ns: int | None, end_ns: int | None) -> None:
        self._start_ns = start_ns
        self._end_ns = end_ns
        self._lifecycles = Lifecycles(on_action=self._ended)
        self._shared: Cluster | None = None
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
        """Forget how the cluster stood: the records that follow are of another run."""
        self._lifecycles.reset()

    def share(self, cluster: Cluster) -> None:
        """Read a state that is kept elsewhere, in which no event is entered before it is taken here."""
        self._shared = cluster

    def take(self, now_ns: int, entry: Event | Command) -> None:
        """Take one record in."""
        if type(entry) is not Wakeup:
            self._count(now_ns, entry)
        if self._shared is None:
            self._lifecycles.take(now_ns, entry)
        elif type(entry) is Result:
            life = ended_by(self._shared, entry)
            if life is not None:
                life.result = entry
                life.ended_ns = now_ns
                self._ended(life)

    def _count(self, now_ns: int, entry: Event | Command) -> None:
        if not self._counted(now_ns):
            return
        if type(entry) is RequestArrived:
            # Most entries are these, and of the series only its end depends on them.
            self.requests += 1
            self._last_ns = now_ns
            return
        self._reach(now_ns)
        if type(entry) is Reject:
            self.rejected[entry.reason.value] += 1
        elif type(entry) is WorkerLeft:
            self.lost += 1

    def finish(self) -> None:
        """Let the series come to its end, or to the last request where that is not known."""
        self._reach(self._last_ns if self._end_ns is None or not self._last_ns else self._end_ns)

    def _reach(self, now_ns: int) -> None:
        """Let the series come to an instant; 0 is before all."""
        if now_ns and self.series.behind(now_ns):
            cluster = self._shared or self._lifecycles.cluster
            workers = cluster.workers.values()
            pages = sum([worker.pages.size for worker in workers])
            used = sum([len(held.pages) for worker in workers for held in worker.lru.values()])
            self.series.reach(now_ns, used, pages, len(workers))

    def _counted(self, now_ns: int) -> bool:
        after_start = self._start_ns is None or now_ns >= self._start_ns
        return after_start and (self._end_ns is None or now_ns < self._end_ns)

    def _ended(self, life: ActionLife) -> None:
        """Count an action whose result has come; one that was lost has none."""
        action, result, now_ns = life.action, life.result, life.ended_ns
        if result is None or now_ns is None or not self._counted(now_ns):
            return
        if result.status is not Status.OK:
            self.failed[f"{life.kind} {result.status.value}"] += 1
        elif isinstance(action, Infer):
            self._inferred(action, result)
        elif isinstance(action, Load):
            self.load.add(action, result)
            self.series.loaded(now_ns, result.begin_ns, result.end_ns)
        elif isinstance(action, Unload):
            self.unloads += 1

    def _inferred(self, action: Infer, result: Result) -> None:
        self.infer.add(action, result)
        self.spread.add(action, result)
        self.series.executed(result.begin_ns, result.end_ns)
        self.batches[action.batch_size] += 1
        self.rows += sum(action.rows)
        self.cold += sum(action.cold)


SECOND_NS = 1_000_000_000

Nanoseconds: TypeAlias = npt.NDArray[np.int64]


class ActionSamples:
    """Predicted and actual durations and ends of actions of one kind, in the order of their results."""

    def __init__(self) -> None:
        self._predicted, self._actual, self._completion = array("q"), array("q"), array("q")

    def __len__(self) -> int:
        return len(self._actual)

    def add(self, action: Infer | Load, result: Result) -> None:
        """Take an action that ended well."""
        self._predicted.append(action.predicted_duration_ns)
        self._actual.append(result.end_ns - result.begin_ns)
        self._completion.append(result.end_ns - action.predicted_begin_ns - action.predicted_duration_ns)

    def predicted_ns(self) -> Nanoseconds:
        """Durations as predicted when the actions were sent."""
        return np.array(self._predicted, np.int64)

    def actual_ns(self) -> Nanoseconds:
        """Durations from begin to end as the worker measured them."""
        return np.array(self._actual, np.int64)

    def duration_error_ns(self) -> Nanoseconds:
        """Actual minus predicted duration: negative where overpredicted."""
        return self.actual_ns() - self.predicted_ns()

    def completion_error_ns(self) -> Nanoseconds:
        """Actual minus predicted end."""
        return np.array(self._completion, np.int64)


class Spread:
    """Durations of equal work: how unlike each other they are is the machine's doing."""

    def __init__(self) -> None:
        self._durations_ns: dict[tuple[str, int], array[int]] = {}

    def add(self, action: Infer, result: Result) -> None:
        """Take an INFER that ended well."""
        key = (action.model, action.batch_size)
        self._durations_ns.setdefault(key, array("q")).append(result.end_ns - result.begin_ns)

    def percentile(self, percent: float) -> float | None:
        """Return a percentile of durations over the median of their own kind; None without any."""
        columns = [np.array(column, np.int64) for column in self._durations_ns.values()]
        ratios = [column / np.median(column) for column in columns if np.median(column) > 0]
        return float(np.percentile(np.concatenate(ratios), percent)) if ratios else None


class SecondSeries:
    """Builds a `LogSeries` from instants that do not run backwards by more than an action's length."""

    def __init__(self, start_ns: int | None) -> None:
        self._start_ns = start_ns
        self._occupancy: list[float | None] = []
        self._workers: list[int] = []
        self._exec_ns: Counter[int] = Counter()
        self._load_ns: Counter[int] = Counter()
        self._loads: Counter[int] = Counter()

    def behind(self, now_ns: int) -> bool:
        """Return whether a second has ended since the last `reach`; the first call sets second 0."""
        if self._start_ns is None:
            self._start_ns = now_ns
        return len(self._workers) < self._second(now_ns)

    def reach(self, now_ns: int, used_pages: int, pages: int, workers: int) -> None:
        """Come to ``now_ns`` with the state that has held since the last record."""
        while self.behind(now_ns):
            self._occupancy.append(used_pages / pages if pages else None)
            self._workers.append(workers)

    def executed(self, begin_ns: int, end_ns: int) -> None:
        """EXEC was busy."""
        self._busy(self._exec_ns, begin_ns, end_ns)

    def loaded(self, now_ns: int, begin_ns: int, end_ns: int) -> None:
        """LOAD was busy; its result came at ``now_ns``."""
        self._busy(self._load_ns, begin_ns, end_ns)
        self._loads[self._second(now_ns)] += 1

    def finish(self) -> LogSeries:
        """Return all whole seconds."""
        seconds = range(len(self._workers))
        return LogSeries(
            start_ns=self._start_ns or 0,
            second=list(seconds),
            exec_utilisation=[self._share(self._exec_ns, second) for second in seconds],
            load_utilisation=[self._share(self._load_ns, second) for second in seconds],
            page_occupancy=self._occupancy,
            loads=[self._loads[second] for second in seconds],
        )

    def _second(self, now_ns: int) -> int:
        return (now_ns - (self._start_ns or 0)) // SECOND_NS

    def _share(self, busy_ns: Counter[int], second: int) -> float | None:
        workers = self._workers[second]
        return min(1.0, busy_ns[second] / (workers * SECOND_NS)) if workers else None

    def _busy(self, busy_ns: Counter[int], begin_ns: int, end_ns: int) -> None:
        """Split a busy time over the seconds that it touches."""
        start_ns = self._start_ns or 0
        while begin_ns < end_ns:
            second = (begin_ns - start_ns) // SECOND_NS
            until_ns = min(end_ns, start_ns + (second + 1) * SECOND_NS)
            busy_ns[second] += until_ns - begin_ns
            begin_ns = until_ns
