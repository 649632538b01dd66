"""One run of an experiment: the same description is simulated and served live."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mainspring.telemetry.report import Summary
from mainspring.telemetry.summary import Analysis
from mainspring.traces.arrival import SECOND_NS
from mainspring.traces.records import FIRST_REASON, NO_DEADLINE, OUTPUTS, Records
from mainspring.traces.source import Playable

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

MILLISECOND_NS = 1_000_000


class Outcomes:
    """A run's requests, of shape (requests,), in the order in which they were meant to be sent.

    In time is what the client saw in time, counted from the instant at which it meant to send.
    """

    def __init__(self, records: Records) -> None:
        sent, replied = records.columns()
        latency_ns = replied["replied_ns"] - sent["intended_ns"]
        self.at_s: Floats = sent["intended_ns"] / SECOND_NS
        self.model: Integers = sent["model"].astype(np.int64)
        self.best_effort: Flags = sent["slo_ns"] == NO_DEADLINE
        self.answered: Flags = replied["outcome"] == OUTPUTS
        self.rejected: Flags = replied["outcome"] >= FIRST_REASON
        self.in_time: Flags = self.answered & (latency_ns <= sent["slo_ns"])
        self.late: Flags = self.answered & ~self.in_time
        self.cold: Flags = self.answered & replied["cold_start"]
        self.latency_ms: Floats = latency_ns / MILLISECOND_NS
        self.batch_size: Integers = replied["batch_size"].astype(np.int64)

    def between(self, start_s: float, end_s: float) -> Flags:
        """Return which requests were to be sent in ``[start_s, end_s)``."""
        return (self.at_s >= start_s) & (self.at_s < end_s)

    def rate(self, flags: Flags, edges_s: Floats) -> list[float]:
        """Return, for each interval between two edges, such requests a second."""
        counts = np.histogram(self.at_s[flags], edges_s)[0]
        return (counts / np.diff(edges_s)).tolist()  # type: ignore[no-any-return]

    def shares(self, of: Flags, among: Flags, edges_s: Floats) -> list[float | None]:
        """Return, for each interval, the share of ``among`` that is also in ``of``; None where none is."""
        part = np.histogram(self.at_s[of & among], edges_s)[0].tolist()
        whole = np.histogram(self.at_s[among], edges_s)[0].tolist()
        return [one / all_ if all_ else None for one, all_ in zip(part, whole, strict=True)]

    def percentiles(self, flags: Flags, percent: float, edges_s: Floats) -> list[float | None]:
        """Return, for each interval, a percentile of such requests' latencies in ms; None where none is."""
        place = np.searchsorted(edges_s, self.at_s[flags], side="right") - 1
        order = np.argsort(place, kind="stable")
        latency = self.latency_ms[flags][order]
        cuts = np.searchsorted(place[order], np.arange(len(edges_s)))
        return [percentile(latency[a:b], percent) for a, b in itertools.pairwise(cuts)]

    def means(self, values: Floats | Integers, flags: Flags, edges_s: Floats) -> list[float | None]:
        """Return, for each interval, the mean of ``values`` over such requests; None where none is."""
        total = np.histogram(self.at_s[flags], edges_s, weights=values[flags].astype(np.float64))[0].tolist()
        count = np.histogram(self.at_s[flags], edges_s)[0].tolist()
        return [one / number if number else None for one, number in zip(total, count, strict=True)]


def percentile(values: Floats, percent: float) -> float | None:
    """Return the smallest value that ``percent`` of them do not exceed; None of none."""
    return float(np.percentile(values, percent, method="inverted_cdf")) if len(values) else None


@dataclass(frozen=True)
class Case:
    """A cluster, a policy and a workload."""

    label: str
    policy: str
    table: str
    """CSV text of the profiles; see `profiles.py`."""
    copies: int
    """Models of each row."""
    devices: int
    pages: int
    workload: Playable
    length_s: float
    warm_up_s: float = 0.0
    seed: int = 0
    preloaded: bool = True
    costed: bool = False
    log: bool = False
    facts: dict[str, float] = field(default_factory=dict)

    @property
    def length_ns(self) -> int:
        """`length_s` in nanoseconds."""
        return round(self.length_s * SECOND_NS)


@dataclass(frozen=True)
class Observed:
    """Results of a case."""

    summary: Summary
    outcomes: Outcomes
    analysis: Analysis | None
    wall_s: float
    scheduler_us: float | None
    """The scheduler's own CPU for each request in microseconds; None where it was not measured."""
