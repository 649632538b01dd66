"""The description of a workload: a lazily generated, time-ordered stream of arrivals, the same for the same
seed.

A `Workload` only describes; `Workload.arrivals` with a numpy generator makes the stream, so that one
description can be played many times, live (`traces.replayer`) and simulated. Nothing here reads a clock.
Combinators keep the order in time and need memory for a few arrivals only.
"""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
import numpy.typing as npt

from mainspring.traces.arrival import SECOND_NS, Arrival, WorkloadError
from mainspring.traces.source import OpenSource, Source

DRAWS = 4096
"""Random numbers that are drawn at a time."""
MAX_SLOT_ARRIVALS = 65_536
"""More arrivals than this are drawn in parts, which bounds memory at any rate."""


class Workload(ABC):
    """A description of arrivals; immutable, and open-loop: it never waits for an answer."""

    @property
    @abstractmethod
    def models(self) -> tuple[str, ...]:
        """Every model that may be named."""

    @abstractmethod
    def arrivals(self, rng: np.random.Generator) -> Iterator[Arrival]:
        """Generate the arrivals in order of time; many workloads never end (see `cut`)."""

    def source(self, rng: np.random.Generator) -> Source:
        """Start to play this workload."""
        return OpenSource(self.arrivals(rng))

    def mean_rates(self, duration_ns: int, rng: np.random.Generator) -> dict[str, float]:
        """Return each model's requests per second over the first ``duration_ns``.

        They are counted by generating them once, unless a formula says them.
        """
        counts = Counter(arrival.model for arrival in self.cut(0, duration_ns).arrivals(rng))
        return {model: counts[model] * SECOND_NS / duration_ns for model in self.models}

    def scaled(self, factor: float) -> Workload:
        """The same workload with ``factor`` times as many requests."""
        return Scaled(self, factor)

    def stretched(self, factor: float) -> Workload:
        """The same requests with every time multiplied by ``factor``: 0.1 plays ten times as fast."""
        return Stretched(self, factor)

    def cut(self, start_ns: int, end_ns: int) -> Workload:
        """Return only what arrives in ``[start_ns, end_ns)``, with times from ``start_ns``."""
        return Cut(self, start_ns, end_ns)

    def with_requests(
        self, *, slo_ns: int | None, rows: int = 1, slos_ns: Mapping[str, int] | None = None
    ) -> Workload:
        """Return the same arrivals, each with this many rows and this SLO, or its model's of ``slos_ns``."""
        return WithRequests(self, slo_ns, rows, slos_ns or {})


@dataclass(frozen=True)
class Scaled(Workload):
    """``factor`` times as many requests: thinned at random below 1, copied above.

    A copy comes up to ``spread_ns`` after its original, so that copying adds load and no bursts.
    """

    workload: Workload
    factor: float
    spread_ns: int = SECOND_NS

    def __post_init__(self) -> None:
        check_factor("rate", self.factor)

    @property
    def models(self) -> tuple[str, ...]:
        """Return the scaled workload's models."""
        return self.workload.models

    def arrivals(self, rng: np.random.Generator) -> Iterator[Arrival]:
        """Keep, drop or copy each arrival; copies wait on a heap for their time."""
        child, own = rng.spawn(2)
        draws = _uniform(own)
        whole, part = int(self.factor), self.factor - int(self.factor)
        waiting: list[tuple[int, int, Arrival]] = []
        made = 0
        for arrival in self.workload.arrivals(child):
            while waiting and waiting[0][0] <= arrival.time_ns:
                yield heapq.heappop(waiting)[2]
            copies = whole + (next(draws) < part)
            if copies:
                yield arrival
            for _ in range(copies - 1):
                time_ns = arrival.time_ns + int(next(draws) * self.spread_ns)
                made += 1
                copy = msgspec.structs.replace(arrival, time_ns=time_ns)
                heapq.heappush(waiting, (time_ns, made, copy))
        while waiting:
            yield heapq.heappop(waiting)[2]


@dataclass(frozen=True)
class Stretched(Workload):
    """Every time multiplied by ``factor``; the rate changes with it."""

    workload: Workload
    factor: float

    def __post_init__(self) -> None:
        check_factor("time", self.factor)

    @property
    def models(self) -> tuple[str, ...]:
        """Return the stretched workload's models."""
        return self.workload.models

    def scaled(self, factor: float) -> Workload:
        """Scale the stretched workload in its own way."""
        return Stretched(self.workload.scaled(factor), self.factor)

    def arrivals(self, rng: np.random.Generator) -> Iterator[Arrival]:
        """Multiply times."""
        for arrival in self.workload.arrivals(rng):
            yield msgspec.structs.replace(arrival, time_ns=int(arrival.time_ns * self.factor))


@dataclass(frozen=True)
class Cut(Workload):
    """The part of a workload in ``[start_ns, end_ns)``, moved to begin at 0."""

    workload: Workload
    start_ns: int
    end_ns: int

    def __post_init__(self) -> None:
        if not 0 <= self.start_ns < self.end_ns:
            raise WorkloadError(
                f"cannot cut [{self.start_ns}, {self.end_ns}) ns: it must be 0 <= start < end"
            )

    @property
    def models(self) -> tuple[str, ...]:
        """Return the whole workload's models."""
        return self.workload.models

    def scaled(self, factor: float) -> Workload:
        """Scale the whole workload in its own way."""
        return Cut(self.workload.scaled(factor), self.start_ns, self.end_ns)

    def arrivals(self, rng: np.random.Generator) -> Iterator[Arrival]:
        """Skip to the start and stop at the end."""
        for arrival in self.workload.arrivals(rng):
            if arrival.time_ns >= self.end_ns:
                return
            if arrival.time_ns < self.start_ns:
                continue
            if self.start_ns:
                yield msgspec.structs.replace(arrival, time_ns=arrival.time_ns - self.start_ns)
            else:
                yield arrival


@dataclass(frozen=True)
class WithRequests(Workload):
    """Arrivals of another workload with their SLO and rows replaced."""

    workload: Workload
    slo_ns: int | None
    rows: int
    slos_ns: Mapping[str, int] = field(default_factory=dict)
    """SLOs of models with one of their own."""

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise WorkloadError(f"a request cannot have {self.rows} rows; it needs at least 1")
        for slo_ns in (self.slo_ns, *self.slos_ns.values()):
            if slo_ns is not None and slo_ns <= 0:
                raise WorkloadError(f"an SLO of {slo_ns} ns cannot be met; give a positive time, or None")

    @property
    def models(self) -> tuple[str, ...]:
        """Return the other workload's models."""
        return self.workload.models

    def scaled(self, factor: float) -> Workload:
        """Scale the other workload in its own way."""
        return replace(self, workload=self.workload.scaled(factor))

    def arrivals(self, rng: np.random.Generator) -> Iterator[Arrival]:
        """Replace SLO and rows."""
        for arrival in self.workload.arrivals(rng):
            slo_ns = self.slos_ns.get(arrival.model, self.slo_ns)
            yield Arrival(arrival.time_ns, arrival.model, self.rows, slo_ns, arrival.client)


def mean_rate(workload: Workload, duration_ns: int, rng: np.random.Generator) -> float:
    """Requests per second over the first ``duration_ns``, counted by generating them once."""
    return sum(workload.mean_rates(duration_ns, rng).values())


def at_rate(workload: Workload, rate: float, duration_ns: int, rng: np.random.Generator) -> Workload:
    """Scale so that the first ``duration_ns`` average ``rate`` requests per second.

    Raises WorkloadError for a workload that is empty there: nothing can be scaled up from none.
    """
    measured = mean_rate(workload, duration_ns, rng)
    if not measured:
        raise WorkloadError(
            f"the workload has no arrival in its first {duration_ns / SECOND_NS:g} s, so no scale gives"
            f" {rate:g} requests/s; start later in the trace or take a longer part of it"
        )
    return workload.scaled(rate / measured)


def check_factor(what: str, factor: float) -> None:
    """Raise WorkloadError unless ``factor`` is a positive finite number."""
    if not (math.isfinite(factor) and factor > 0):
        raise WorkloadError(f"the {what} cannot be scaled by {factor}; it must be a positive finite number")


def _uniform(rng: np.random.Generator) -> Iterator[float]:
    while True:
        yield from rng.random(DRAWS).tolist()


def spread(
    counts: npt.NDArray[np.int64],
    models: Sequence[str],
    start_ns: int,
    slot_ns: int,
    rng: np.random.Generator,
) -> Iterator[Arrival]:
    """Yield ``counts[i]`` arrivals of ``models[i]``, uniform in ``[start_ns, start_ns + slot_ns)``, in order.

    ``counts`` is of shape (models,): Azure files have one a minute, the synthetic mix has one a quarter of
    a second. Arrivals are uniform within a slot, so that slots with Poisson counts are a Poisson
    process. A slot with very many arrivals is divided into equal parts first, the counts by a multinomial
    draw, which leaves their distribution as it was.
    """
    parts = min(slot_ns, -(-int(counts.sum()) // MAX_SLOT_ARRIVALS))
    if parts <= 1:
        yield from _draw(counts, models, start_ns, slot_ns, rng)
        return
    left = counts
    for part in range(parts):
        share = left if part == parts - 1 else rng.binomial(left, 1.0 / (parts - part))
        left = left - share
        begin_ns, end_ns = slot_ns * part // parts, slot_ns * (part + 1) // parts
        yield from _draw(share, models, start_ns + begin_ns, end_ns - begin_ns, rng)


def _draw(
    counts: npt.NDArray[np.int64],
    models: Sequence[str],
    start_ns: int,
    slot_ns: int,
    rng: np.random.Generator,
) -> Iterator[Arrival]:
    chosen = np.repeat(np.arange(len(counts)), counts)
    times = start_ns + rng.integers(0, slot_ns, len(chosen))
    order = np.argsort(times, kind="stable")
    for time_ns, model in zip(times[order].tolist(), chosen[order].tolist(), strict=True):
        yield Arrival(time_ns, models[model])
