"""The controller's and the gateway's counts as metric families, and the same under Triton's names. Pure.

Each function yields pieces of text, of at most a few hundred lines, so that a page can be made in steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from mainspring.gateway.metrics.series import Buckets, Series, family, head, labels
from mainspring.gateway.metrics.tenants import tenants
from mainspring.messages.codes import Reason
from mainspring.messages.metrics import READINGS, ClusterMetrics, HistogramCounts, WorkerActions
from mainspring.messages.scaling import KindStatus
from mainspring.telemetry.bounded import LATENCY_BOUNDS_NS, SLACK_BOUNDS_NS, Histogram, key_labels

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
    yield from tenants(metrics.tenants)
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


Labelled = Sequence[tuple[str, Series]]
"""Series with their labels as text."""

_SECONDS = 1e9
_LATENCY, _SLACK = Buckets(LATENCY_BOUNDS_NS, _SECONDS), Buckets(SLACK_BOUNDS_NS, _SECONDS)


class _Histogram(NamedTuple):
    name: str
    meaning: str
    buckets: Buckets
    of: Callable[[Series], Histogram]


class _Counter(NamedTuple):
    name: str
    meaning: str
    of: Callable[[Series], float]


HISTOGRAMS = (
    _Histogram(
        "mainspring_request_duration_seconds",
        "From a request's arrival at the gateway to its reply, of requests that got outputs.",
        _LATENCY,
        lambda series: series.latency,
    ),
    _Histogram(
        "mainspring_queue_duration_seconds",
        "Of this, waiting: for the controller's dispatch, and on the worker for EXEC.",
        _LATENCY,
        lambda series: series.queue,
    ),
    _Histogram(
        "mainspring_execution_duration_seconds",
        "Of this, EXEC of the batch that the request was in.",
        _LATENCY,
        lambda series: series.execution,
    ),
    _Histogram(
        "mainspring_slack_seconds",
        "Time left to the deadline when the reply left; negative if it was late.",
        _SLACK,
        lambda series: series.slack,
    ),
)

COUNTERS = (
    _Counter(
        "mainspring_slo_requests_total",
        "Requests with a deadline that were answered, or refused for a reason that was not the client's.",
        lambda series: series.with_slo,
    ),
    _Counter(
        "mainspring_slo_attained_total",
        "Of these, answered by their deadline.",
        lambda series: series.in_time,
    ),
    _Counter(
        "mainspring_cold_starts_total",
        "Answered requests whose model was resident nowhere when they arrived.",
        lambda series: series.cold,
    ),
)

_TRITON = (
    _Counter("nv_inference_request_success", "Requests that got outputs.", lambda each: each.latency.count),
    _Counter("nv_inference_count", "Rows that were run, padding apart.", lambda each: each.rows),
    _Counter("nv_inference_exec_count", "Batches that were run.", lambda each: each.executions),
    _Counter(
        "nv_inference_request_duration_us",
        "Time from arrival to reply, of requests that got outputs.",
        lambda each: each.latency.sum // 1_000,
    ),
    _Counter(
        "nv_inference_queue_duration_us", "Time that requests waited.", lambda each: each.queue.sum // 1_000
    ),
    _Counter(
        "nv_inference_compute_input_duration_us",
        "Time for copying inputs on the worker.",
        lambda each: each.input_ns // 1_000,
    ),
    _Counter(
        "nv_inference_compute_infer_duration_us",
        "Time of EXEC, counted for each request of a batch.",
        lambda each: each.execution.sum // 1_000,
    ),
    _Counter(
        "nv_inference_compute_output_duration_us",
        "Time for sending outputs from the worker.",
        lambda each: each.output_ns // 1_000,
    ),
    _Counter("nv_cache_num_hits_per_model", "Requests answered from the cache.", lambda each: each.hits),
    _Counter("nv_cache_num_misses_per_model", "Requests not found there.", lambda each: each.misses),
    _Counter(
        "nv_cache_hit_duration_per_model",
        "Time for finding outputs there, in microseconds.",
        lambda each: each.hit_ns // 1_000,
    ),
    _Counter(
        "nv_cache_miss_duration_per_model",
        "Time for looking in vain there and for keeping outputs, in microseconds.",
        lambda each: each.miss_ns // 1_000,
    ),
)

_REASONS = sorted(set(Reason) - {Reason.MODEL_EXISTS})
"""Reasons that requests for inference may get."""
_TRITONS_REASON = {Reason.CANCELLED: "CANCELED", Reason.WORKER_FAILED: "BACKEND"}
_OVERLOAD = frozenset(
    {Reason.OVERLOADED, Reason.DEADLINE_UNREACHABLE, Reason.DEADLINE_PASSED, Reason.TIMED_OUT}
)


def model_labels(key: str) -> str:
    """Return a key's labels as text."""
    model, version = key_labels(key)
    return labels(model=model, version=version)


def by_model(shown: Labelled) -> Iterator[str]:
    """Yield what is counted for each model."""
    for name, meaning, buckets, of in HISTOGRAMS:
        yield head(name, "histogram", meaning)
        for own, series in shown:
            histogram = of(series)
            yield buckets.lines(name, own, histogram.counts, histogram.sum)
    yield from _counters(COUNTERS, shown)
    yield from family(
        "mainspring_requests_total",
        "counter",
        "Requests that ended, by how: in_time, late, best_effort (answered, without a deadline) or rejected.",
        [
            (f'{own},outcome="{outcome}"', value)
            for own, series in shown
            for outcome, value in outcomes(series).items()
        ],
    )
    yield from family(
        "mainspring_rejected_requests_total",
        "counter",
        "Requests that got a reason instead of outputs, by its code.",
        [
            (f'{own},reason="{reason.value}"', count)
            for own, series in shown
            for reason, count in _by_reason(series)
        ],
    )


def graph_steps(shown: Labelled) -> Iterator[str]:
    """Yield what became of each step of each graph; nothing where no graph was asked for."""
    steps = [
        (f"{own},{labels(step=name)}", counts)
        for own, series in shown
        for name, counts in series.steps.items()
    ]
    yield from family(
        "mainspring_graph_step_answers_total",
        "counter",
        "Answers of a graph by what became of a step: run, skipped (no row took part) or missing.",
        [
            (f'{own},outcome="{outcome}"', getattr(counts, outcome))
            for own, counts in steps
            for outcome in ("run", "skipped", "missing")
        ],
    )
    yield from family(
        "mainspring_family_answers_total",
        "counter",
        "Answers of a step that names a family, by the member that gave them.",
        [
            (f"{own},{labels(member=member)}", count)
            for own, counts in steps
            for member, count in sorted(counts.members.items())
        ],
    )
    yield from family(
        "mainspring_graph_step_rows_total",
        "counter",
        "Rows that took part in a step.",
        [(own, counts.rows) for own, counts in steps],
    )
    yield from family(
        "mainspring_graph_step_seconds_total",
        "counter",
        "Time of a step that ran, from its begin until its outputs were at the gateway; of this, queue and "
        "execution.",
        [
            (f'{own},part="{part}"', spent_ns / _SECONDS)
            for own, counts in steps
            for part, spent_ns in (
                ("whole", counts.whole_ns),
                ("queue", counts.queue_ns),
                ("execution", counts.execution_ns),
            )
        ],
    )


def _by_reason(series: Series) -> list[tuple[Reason, int]]:
    """Return how many requests got each reason, those that none got included: from the first on it grows."""
    return [(reason, series.rejected[reason]) for reason in _REASONS]


def _counters(counters: Sequence[_Counter], shown: Labelled) -> Iterator[str]:
    for name, meaning, count in counters:
        yield from family(name, "counter", meaning, [(own, count(series)) for own, series in shown])


def outcomes(series: Series) -> dict[str, int]:
    """Return how many requests ended how: together all that ended."""
    return {
        "in_time": series.in_time,
        "late": series.late,
        "best_effort": series.best_effort,
        "rejected": series.rejected.total(),
    }


def sequences(numbers: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """Yield what became of models' sequences, as `gateway.core.sequences.OfModel` counts it, by labels."""
    for key, name, meaning in (
        ("live", "mainspring_model_sequences", "Sequences of a model that have a state at the gateway."),
        ("bytes", "mainspring_model_sequence_bytes", "Bytes that are set aside for their states."),
    ):
        yield from family(name, "gauge", meaning, [(own, found[key]) for own, found in numbers.items()])
    yield from family(
        "mainspring_model_sequence_events_total",
        "counter",
        "What became of a model's sequences: begun, ended by a request, idle for too long, dropped; and "
        "requests for unknown ones.",
        [
            (f'{own},event="{event}"', found[event])
            for own, found in numbers.items()
            for event in ("begun", "ended", "idle", "dropped", "unknown")
        ],
    )


def as_triton(shown: Labelled, pending: Mapping[str, int]) -> Iterator[str]:
    """Yield the same under the names that Triton's dashboards ask for.

    ``pending``: requests in flight, by the same labels.
    """
    yield from _counters(_TRITON, shown)
    yield from family(
        "nv_inference_request_failure",
        "counter",
        "Requests that got no outputs, by Triton's reasons.",
        [
            (f'{own},reason="{reason}"', count)
            for own, series in shown
            for reason, count in _failures(series).items()
        ],
    )
    yield from family(
        "nv_inference_pending_request_count",
        "gauge",
        "Requests in flight.",
        [(own, pending.get(own, 0)) for own, _ in shown],
    )


def _failures(series: Series) -> dict[str, int]:
    found = dict.fromkeys(("REJECTED", "CANCELED", "BACKEND", "OTHER"), 0)
    for reason, count in series.rejected.items():
        found[_TRITONS_REASON.get(reason, "REJECTED" if reason in _OVERLOAD else "OTHER")] += count
    return found
