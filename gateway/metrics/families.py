"""The gateway's counters as metric families, and the same under Triton's names. Pure.

Each function yields pieces of text, of at most a few hundred lines, so that a page can be made in steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from mainspring.gateway.metrics.series import Series
from mainspring.gateway.metrics.text import Buckets, family, head, labels
from mainspring.messages.codes import Reason
from mainspring.telemetry.bounded import key_labels
from mainspring.telemetry.histograms import LATENCY_BOUNDS_NS, SLACK_BOUNDS_NS, Histogram

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
