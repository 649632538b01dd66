"""From the records of a run to its `Summary`; used by the replayer and by the simulator alike."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mainspring.telemetry.report import Series, Summary, flat, read_summary, write_json
from mainspring.traces.arrival import SECOND_NS
from mainspring.traces.records import (
    FIRST_REASON,
    NO_DEADLINE,
    OUTPUTS,
    PENDING,
    REASONS,
    UNSENT,
    Records,
)

__all__ = ["Series", "Summary", "flat", "read_summary", "summarise", "write_json"]

Floats = npt.NDArray[np.float64]
MS_NS = 1_000_000
US_NS = 1_000


Flags = npt.NDArray[np.bool_]
Note = str | int | float | bool | None


class _Outcomes:
    """A run's columns with what follows from them, of shape (requests,)."""

    def __init__(self, records: Records) -> None:
        self.sent, self.replied = records.columns()
        outcome = self.replied["outcome"]
        self.answered: Flags = outcome == OUTPUTS
        self.refused: Flags = outcome >= FIRST_REASON
        self.lost: Flags = outcome == PENDING
        self.unsent: Flags = outcome == UNSENT
        self.late: Flags = self.answered & (self.replied["left_ns"] < 0)
        self.goodput: Flags = self.answered & ~self.late
        self.cold: Flags = self.answered & self.replied["cold_start"]
        latency_ns = self.replied["replied_ns"] - self.sent["intended_ns"]
        self.client_late: Flags = self.answered & (latency_ns > self.sent["slo_ns"])
        self.latency_ms: Floats = latency_ns / MS_NS
        self.lag_us: Floats = (self.sent["sent_ns"] - self.sent["intended_ns"]) / US_NS


def summarise(
    records: Records, *, start_ns: int, duration_ns: int = 0, notes: dict[str, Note] | None = None
) -> Summary:
    """Count and measure all requests of a run; ``start_ns`` is the instant that the records count from.

    Rates are over ``duration_ns``, the workload's length, or to its last request if that is later.
    """
    run = _Outcomes(records)
    offered, goodput = len(records), int(run.goodput.sum())
    answers_ms, refusals_ms = run.latency_ms[run.answered], run.latency_ms[run.refused]
    batches = run.replied["batch_size"][run.answered]
    duration_s = float(run.sent["intended_ns"].max(initial=duration_ns) / SECOND_NS)
    rate = 1 / duration_s if duration_s else 0.0
    slos_ns = run.sent["slo_ns"][run.sent["slo_ns"] != NO_DEADLINE]
    return Summary(
        offered=offered,
        goodput=goodput,
        goodput_share=goodput / offered if offered else 1.0,
        rejected=_by_reason(run.replied["outcome"]),
        rejected_total=int(run.refused.sum()),
        late=int(run.late.sum()),
        lost=int(run.lost.sum()),
        unsent=int(run.unsent.sum()),
        client_late=int(run.client_late.sum()),
        p50_ms=_percentile(answers_ms, 50),
        p90_ms=_percentile(answers_ms, 90),
        p99_ms=_percentile(answers_ms, 99),
        p99_9_ms=_percentile(answers_ms, 99.9),
        p99_99_ms=_percentile(answers_ms, 99.99),
        max_ms=_percentile(answers_ms, 100),
        reject_p50_ms=_percentile(refusals_ms, 50),
        reject_p99_ms=_percentile(refusals_ms, 99),
        cold_starts=int(run.cold.sum()),
        cold_start_share=float(run.cold.sum() / max(len(answers_ms), 1)),
        mean_batch=float(batches.mean()) if len(batches) else None,
        replayer_lag_p50_us=_percentile(run.lag_us, 50) or 0.0,
        replayer_lag_p99_us=_percentile(run.lag_us, 99) or 0.0,
        replayer_lag_max_us=_percentile(run.lag_us, 100) or 0.0,
        duration_s=duration_s,
        offered_rate=offered * rate,
        goodput_rate=goodput * rate,
        slo_ms=float(slos_ns.max() / MS_NS) if len(slos_ns) else None,
        models=len(np.unique(run.sent["model"])),
        start_ns=start_ns,
        series=_series(run),
        notes=notes or {},
    )


def _percentile(values: Floats, percent: float) -> float | None:
    """Return the smallest value that ``percent`` of the values do not exceed: one that did occur."""
    return float(np.percentile(values, percent, method="inverted_cdf")) if len(values) else None


def _by_reason(outcome: npt.NDArray[np.uint8]) -> dict[str, int]:
    counts = np.bincount(outcome, minlength=FIRST_REASON + len(REASONS))[FIRST_REASON:].tolist()
    return {reason.value: count for reason, count in zip(REASONS, counts, strict=True) if count}


def _series(run: _Outcomes) -> Series:
    second = run.sent["intended_ns"] // SECOND_NS
    length = int(second.max()) + 1 if len(second) else 0

    def count(flags: Flags) -> list[int]:
        return np.bincount(second[flags], minlength=length).tolist()  # type: ignore[no-any-return]

    order = np.flatnonzero(run.answered)[np.argsort(second[run.answered], kind="stable")]
    edges = np.searchsorted(second[order], np.arange(length + 1))
    parts = [order[edges[i] : edges[i + 1]] for i in range(length)]
    batch_size = run.replied["batch_size"]
    return Series(
        second=list(range(length)),
        offered=np.bincount(second, minlength=length).tolist(),
        goodput=count(run.goodput),
        rejected=count(run.refused),
        late=count(run.late),
        lost=count(run.lost),
        p50_ms=[_percentile(run.latency_ms[part], 50) for part in parts],
        p99_ms=[_percentile(run.latency_ms[part], 99) for part in parts],
        max_ms=[_percentile(run.latency_ms[part], 100) for part in parts],
        mean_batch=[float(batch_size[part].mean()) if len(part) else None for part in parts],
        cold_starts=count(run.cold),
    )
