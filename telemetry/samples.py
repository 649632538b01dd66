"""Samples of finished actions, and what the cluster did in each second: filled by `telemetry.taken`."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mainspring.messages.actions import Infer, Load, Result
from mainspring.telemetry.series import LogSeries

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
