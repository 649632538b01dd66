"""The controller's counts as metric families. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from mainspring.gateway.metrics.text import Buckets, family, head, labels
from mainspring.messages.metrics import READINGS, ClusterMetrics, HistogramCounts, WorkerActions
from mainspring.messages.scaling import KindStatus

_SECONDS = 1e9


def cluster(metrics: ClusterMetrics) -> Iterator[str]:
    """Yield all families."""
    yield from family("mainspring_models", "gauge", "Models that are served.", [("", metrics.models_served)])
    yield from family(
        "mainspring_queued_requests",
        "gauge",
        "Requests that wait in the scheduler.",
        [("", metrics.requests_queued)],
    )
    yield from _models(metrics)
    yield from _workers(metrics.workers)
    yield from _kinds(metrics.kinds)
    yield from _parts(metrics)
    yield from _gpus(metrics.workers)


def _models(metrics: ClusterMetrics) -> Iterator[str]:
    shown = [(labels(model=each.model, version=each.version), each) for each in metrics.models]
    durations = Buckets(metrics.duration_bounds_ns, _SECONDS)
    errors = Buckets(metrics.error_bounds_ns, _SECONDS)
    yield head("mainspring_load_duration_seconds", "histogram", "LOADs, from begin to end.")
    for own, model in shown:
        yield _lines(durations, "mainspring_load_duration_seconds", own, model.load)
    name = "mainspring_prediction_error_seconds"
    yield head(name, "histogram", "Predicted less actual duration of actions; negative if it took longer.")
    for own, model in shown:
        yield _lines(errors, name, f'{own},action="infer"', model.infer_error)
        yield _lines(errors, name, f'{own},action="load"', model.load_error)
    yield head("mainspring_batch_size", "histogram", "Batch sizes that INFERs ran as, padding included.")
    for own, model in shown:
        yield _lines(Buckets(metrics.batch_bounds, 1), "mainspring_batch_size", own, model.batch)
    yield from family(
        "mainspring_batched_rows_total",
        "counter",
        "Requests' rows in these INFERs; less than the sum of the batch sizes by the padding.",
        [(own, model.rows) for own, model in shown],
    )
    yield from family(
        "mainspring_erratic_models",
        "gauge",
        "Models whose INFERs take so differently long that no estimate holds: 1 if this one is.",
        [(own, model.erratic) for own, model in shown],
    )
    yield from family(
        "mainspring_outliers_total",
        "counter",
        "INFERs and LOADs that took so much longer than predicted that no estimate follows one alone.",
        [(own, model.outliers) for own, model in shown],
    )


def _lines(buckets: Buckets, name: str, own: str, histogram: HistogramCounts) -> str:
    return buckets.lines(name, own, histogram.counts, histogram.sum)


def _workers(workers: tuple[WorkerActions, ...]) -> Iterator[str]:
    shown = [(labels(worker=each.worker), each) for each in workers]
    yield from family(
        "mainspring_worker_info",
        "gauge",
        "Always 1, for each worker that is connected.",
        [(f"{own},{labels(device_kind=each.device_kind)}".rstrip(","), 1) for own, each in shown],
    )
    yield from family(
        "mainspring_pages", "gauge", "Pages of a worker's cache.", [(own, each.pages) for own, each in shown]
    )
    yield from family(
        "mainspring_pages_used",
        "gauge",
        "Of these, pages that hold weights.",
        [(own, each.pages_used) for own, each in shown],
    )
    yield from _clocks(shown)
    yield from family(
        "mainspring_executor_busy_seconds_total",
        "counter",
        "Time in which a worker's executor ran an action: its rate is the executor's utilisation.",
        [
            (f'{own},executor="{executor}"', busy_ns / _SECONDS)
            for own, each in shown
            for executor, busy_ns in each.busy_ns.items()
        ],
    )
    yield from family(
        "mainspring_actions_total",
        "counter",
        "Actions by how they ended.",
        [
            (f'{own},action="{kind.lower()}",status="{status}"', count)
            for own, each in shown
            for kind, _, status, count in (
                (*ended.partition(" "), number) for ended, number in each.ended.items()
            )
        ],
    )


def _kinds(kinds: tuple[KindStatus, ...]) -> Iterator[str]:
    """Yield how many workers there are, and are to be; nothing where nobody starts and stops any."""
    shown = [(labels(kind=each.kind), each) for each in kinds]
    for name, meaning, values in (
        (
            "mainspring_workers_wanted",
            "Workers of a kind that an operator wants.",
            [(own, each.wanted) for own, each in shown],
        ),
        (
            "mainspring_workers_running",
            "Workers of a kind that are connected and are to stay.",
            [(own, each.running) for own, each in shown],
        ),
        (
            "mainspring_workers_leaving",
            "Workers of a kind that hand over what they hold, and are stopped then.",
            [(own, len(each.leaving)) for own, each in shown],
        ),
        (
            "mainspring_workers_fault",
            "1 while a worker of a kind can't be run, or nothing is connected that could run one.",
            [(own, int(bool(each.fault))) for own, each in shown],
        ),
    ):
        if values:
            yield from family(name, "gauge", meaning, values)


def _clocks(shown: list[tuple[str, WorkerActions]]) -> Iterator[str]:
    """Yield what is known of workers' clocks; each worker comes with its labels."""
    for name, meaning, found in (
        ("offset_seconds", "A worker's clock less the controller's.", "clock_offset_ns"),
        ("error_seconds", "By how much that may be wrong: windows end earlier by it.", "clock_error_ns"),
    ):
        values = [(own, getattr(each, found) / _SECONDS) for own, each in shown]
        yield from family(f"mainspring_worker_clock_{name}", "gauge", meaning, values)
    yield from family(
        "mainspring_worker_clock_rate",
        "gauge",
        "What a worker's clock gains on the controller's, in seconds for a second.",
        [(own, each.clock_rate_ppm / 1e6) for own, each in shown],
    )


def _parts(metrics: ClusterMetrics) -> Iterator[str]:
    """Yield what actions took on the device and on the host."""
    for part, name, bounds, meaning in (
        (
            "device",
            "mainspring_action_device_seconds",
            metrics.duration_bounds_ns,
            "The device's part of actions, by its own clock.",
        ),
        (
            "host",
            "mainspring_action_host_seconds",
            metrics.host_bounds_ns,
            "The rest of actions: the host begins them and notices their ends.",
        ),
    ):
        yield head(name, "histogram", meaning)
        buckets = Buckets(bounds, _SECONDS)
        for worker in metrics.workers:
            found: dict[str, HistogramCounts] = getattr(worker, part)
            for executor, histogram in found.items():
                own = f'{labels(worker=worker.worker)},executor="{executor}"'
                yield _lines(buckets, name, own, histogram)


def _gpus(workers: tuple[WorkerActions, ...]) -> Iterator[str]:
    """Yield what GPUs say of themselves, of those that have a monitor."""
    for name, meaning in READINGS.items():
        lines = [
            (labels(worker=worker.worker, **({"reason": each.reason} if each.reason else {})), each.value)
            for worker in workers
            for each in worker.readings
            if each.name == name
        ]
        if lines:
            yield from family(name, "gauge", meaning, lines)
