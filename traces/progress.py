"""How a run is going: counts that are kept up with each request, for a display twice a second."""

from __future__ import annotations

import msgspec

from mainspring.telemetry.percentiles import DurationHistogram
from mainspring.traces.arrival import SECOND_NS
from mainspring.traces.records import Records


class Progress(msgspec.Struct, frozen=True):
    """How the run is going."""

    elapsed_s: float
    offered: int
    goodput: int
    rejected: int
    late: int
    unsent: int
    in_flight: int
    p50_ms: float | None
    """Over all outputs so far, right to 0.4 %."""
    p99_ms: float | None
    lag_p99_us: float


class ModelCounters:
    """Counts that progress shows, kept up with each request."""

    def __init__(self) -> None:
        self.goodput = self.rejected = self.late = self.unsent = self.unexpected = 0
        self.latency = DurationHistogram()
        self.lag = DurationHistogram()

    def progress(self, now_ns: int, records: Records) -> Progress:
        """Return the counts so far."""
        return Progress(
            elapsed_s=now_ns / SECOND_NS,
            offered=len(records),
            goodput=self.goodput,
            rejected=self.rejected,
            late=self.late,
            unsent=self.unsent,
            in_flight=records.in_flight,
            p50_ms=self.latency.percentile_ms(50),
            p99_ms=self.latency.percentile_ms(99),
            lag_p99_us=(self.lag.percentile_ms(99) or 0) * 1e3,
        )
