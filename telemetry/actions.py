"""Counts of actions for metrics: an observer of the controller's event stream. Pure.

It reads what the event log is written from and keeps only sums, so what it costs does not
grow with time: a look at an entry's type for each, and about two microseconds for each action. Requests are
counted by their gateways, which see them end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from mainspring.cluster.rolling import is_outlier
from mainspring.cluster.state import Cluster
from mainspring.cluster.status import kind_status
from mainspring.cluster.workers import Worker
from mainspring.messages.actions import KINDS, Action, DropWorker, Infer, Load, Open, Prepare, Result
from mainspring.messages.codes import Status
from mainspring.messages.events import ModelAdded, ModelRemoved, WorkerJoined, WorkerLeft
from mainspring.messages.metrics import ClusterMetrics, ModelActions, WorkerActions
from mainspring.telemetry.bounded import (
    BATCH_BOUNDS,
    ERROR_BOUNDS_NS,
    HOST_BOUNDS_NS,
    LATENCY_BOUNDS_NS,
    OTHER,
    BoundedLabels,
    Histogram,
    key_labels,
    model_key,
)
from mainspring.telemetry.entries import Entry, Record

WORKERS_REMEMBERED = 4_096
"""Workers that left whose counts are kept for when they come back; one more makes it forget the oldest."""


class _Model:
    """Counts of one label."""

    __slots__ = ("batch", "infer_error", "load", "load_error", "outliers", "rows")

    def __init__(self) -> None:
        self.load = Histogram(LATENCY_BOUNDS_NS)
        self.infer_error = Histogram(ERROR_BOUNDS_NS)
        self.load_error = Histogram(ERROR_BOUNDS_NS)
        self.batch = Histogram(BATCH_BOUNDS)
        self.rows = 0
        self.outliers = 0

    def state(self, key: str, erratic: int) -> ModelActions:
        """Return what was counted, under the labels that ``key`` of `BoundedLabels` stands for.

        ``erratic`` is of how many models of these labels durations are erratic.
        """
        return ModelActions(
            *key_labels(key),
            self.load.state(),
            self.infer_error.state(),
            self.load_error.state(),
            self.batch.state(),
            self.rows,
            erratic,
            self.outliers,
        )


class _Worker:
    """Counts of one worker."""

    def __init__(self) -> None:
        self.busy_ns = {"exec": 0, "load": 0, "prepare": 0}
        self.device = {executor: Histogram(LATENCY_BOUNDS_NS) for executor in ("exec", "load")}
        self.host = {executor: Histogram(HOST_BOUNDS_NS) for executor in ("exec", "load")}
        self.ended: Counter[str] = Counter(dict.fromkeys(_SHOWN, 0))

    def state(self, worker: Worker) -> WorkerActions:
        """Return what was counted, and how many of the worker's pages hold models."""
        used = sum([len(placement.pages) for placement in worker.lru.values()])
        busy_ns, ended = dict(self.busy_ns), dict(sorted(self.ended.items()))
        device, host = (
            {executor: histogram.state() for executor, histogram in part.items()}
            for part in (self.device, self.host)
        )
        return WorkerActions(
            worker.name, worker.device_kind, worker.pages.size, used, busy_ns, ended, device, host
        )

    def ran(self, executor: str, actual_ns: int, device_ns: int) -> None:
        """Count an INFER or a LOAD that ended well."""
        self.busy_ns[executor] += actual_ns
        self.device[executor].observe(device_ns)
        self.host[executor].observe(max(0, actual_ns - device_ns))


class ActionCounts:
    """See the module's docstring: `take` every entry of the stream in order, `metrics` at any time."""

    def __init__(self, models: int) -> None:
        """Let at most this number of ``models`` have a label of their own."""
        self._labels: BoundedLabels[_Model] = BoundedLabels(models, _Model)
        self._keys: dict[str, str] = {}
        """Label that each served model is counted under, by the scheduler's name of the model."""
        self._models: dict[str, _Model] = {}
        """Counts of each model that something was counted for since the labels were ranked."""
        self._activity: Counter[str] = Counter()
        self._open: dict[int, Action] = {}
        self._workers: dict[str, _Worker] = {}
        self._gone: dict[str, _Worker] = {}
        self._handlers: dict[type, Callable[[Any], None]] = {
            **dict.fromkeys(KINDS, self._began),
            Result: self._ended,
            WorkerJoined: self._joined,
            WorkerLeft: self._left,
            DropWorker: self._left,
            ModelAdded: self._added,
            ModelRemoved: self._removed,
        }

    def take(self, entry: Entry) -> None:
        """Take note of what went into the scheduler or came out of it."""
        handler = self._handlers.get(type(entry))
        if handler is not None:
            handler(entry)

    def take_all(self, records: Sequence[Record]) -> None:
        """Take note of records in their order."""
        handlers = self._handlers
        for _, entry in records:
            handler = handlers.get(type(entry))
            if handler is not None:
                handler(entry)

    def metrics(self, now_ns: int, models_served: int, cluster: Cluster) -> ClusterMetrics:
        """Return all counts with the present state; models change their labels here and nowhere else."""
        if self._labels.due(now_ns):
            self._labels.rank(now_ns, self._activity.items())
            self._activity.clear()
            self._models.clear()
        self._labels.offer(self._keys.values())
        shown = self._labels.shown()
        erratic = self._erratic(cluster, {key for key, _ in shown})
        return ClusterMetrics(
            duration_bounds_ns=LATENCY_BOUNDS_NS,
            host_bounds_ns=HOST_BOUNDS_NS,
            error_bounds_ns=ERROR_BOUNDS_NS,
            batch_bounds=BATCH_BOUNDS,
            models=tuple(model.state(key, erratic[key]) for key, model in shown),
            workers=tuple(
                counted.state(cluster.workers[name])
                for name, counted in sorted(self._workers.items())
                if name in cluster.workers
            ),
            models_served=models_served,
            requests_queued=cluster.queued,
            kinds=tuple([kind_status(cluster, kind) for kind in cluster.kinds.values()]),
        )

    def _erratic(self, cluster: Cluster, shown: set[str]) -> Counter[str]:
        """Count the erratic models by what they are counted under; the labels of ``shown`` are their own."""
        found: Counter[str] = Counter()
        if executables := cluster.estimates.erratic():
            for name, model in cluster.models.items():
                if not executables.isdisjoint(model.spec.executables):
                    key = self._keys.get(name, OTHER)
                    found[key if key in shown else OTHER] += 1
        return found

    def _began(self, action: Action) -> None:
        self._open[action.action_id] = action

    def _ended(self, result: Result) -> None:
        action = self._open.pop(result.action_id, None)
        worker = self._workers.get(result.worker)
        if action is None or worker is None:
            return
        worker.ended[_ENDINGS[type(action), result.status]] += 1
        if result.status is not Status.OK:
            return
        actual_ns = result.end_ns - result.begin_ns
        if isinstance(action, Infer):
            worker.ran("exec", actual_ns, result.device_ns)
            self._inferred(action, actual_ns)
        elif isinstance(action, Load):
            worker.ran("load", actual_ns, result.device_ns)
            self._loaded(action, actual_ns)
        elif isinstance(action, Open):
            worker.busy_ns["exec"] += actual_ns
        elif isinstance(action, Prepare):
            worker.busy_ns["prepare"] += actual_ns

    def _inferred(self, action: Infer, actual_ns: int) -> None:
        model = self._models.get(action.model) or self._first(action.model)
        model.infer_error.observe(action.predicted_duration_ns - actual_ns)
        model.batch.observe(action.batch_size)
        model.rows += sum(action.rows)
        model.outliers += is_outlier(actual_ns, action.predicted_duration_ns)
        self._activity[self._keys.get(action.model, OTHER)] += 1

    def _loaded(self, action: Load, actual_ns: int) -> None:
        model = self._models.get(action.model) or self._first(action.model)
        model.load_error.observe(action.predicted_duration_ns - actual_ns)
        model.load.observe(actual_ns)
        model.outliers += is_outlier(actual_ns, action.predicted_duration_ns)
        self._activity[self._keys.get(action.model, OTHER)] += 1

    def _joined(self, event: WorkerJoined) -> None:
        if event.worker not in self._workers:
            self._workers[event.worker] = self._gone.pop(event.worker, _Worker())

    def _left(self, entry: WorkerLeft | DropWorker) -> None:
        worker = self._workers.pop(entry.worker, None)
        if worker is None:
            return
        self._open = {id_: action for id_, action in self._open.items() if action.worker != entry.worker}
        self._gone[entry.worker] = worker
        if len(self._gone) > WORKERS_REMEMBERED:
            del self._gone[next(iter(self._gone))]

    def _first(self, name: str) -> _Model:
        """Return where to count for a model that nothing was counted for since the labels were ranked."""
        model = self._models[name] = self._labels.counters(self._keys.get(name, OTHER))
        return model

    def _added(self, event: ModelAdded) -> None:
        self._keys[event.model.name] = model_key(event.model)

    def _removed(self, event: ModelRemoved) -> None:
        self._models.pop(event.name, None)
        key = self._keys.pop(event.name, OTHER)
        if key not in self._keys.values():
            self._activity.pop(key, None)
            self._labels.forget(key)


_ENDINGS = {(kind, status): f"{name} {status.value}" for kind, name in KINDS.items() for status in Status}
_SHOWN = [
    ending for (kind, status), ending in _ENDINGS.items() if kind in (Infer, Load) or status is Status.OK
]
"""Endings that are shown before there was one, so that the first is seen as an increase; not all that can be
thought of, for each worker has them."""
