"""Workloads from a formula: Poisson, gamma with a given burstiness, closed-loop clients, and a synthetic mix.

The mix is shaped like Azure Functions: Clockwork, section 6.5, describes "heavy sustained workloads, low
utilization cold workloads, bursty workloads that fluctuate over time, and workloads with periodic spikes",
hourly and, less, every quarter of an hour. Shahrad et al. (ATC '20), section 3: 45% of applications are
invoked at most once an hour, and the busiest 18.6% have 99.6% of all invocations. Function rates follow a
Zipf law; each function is a Poisson process whose rate is constant within a slot of 250 ms; four or five are
dealt to each model. A run begins at a random instant of the pattern.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mainspring.traces.arrival import SECOND_NS, Arrival, WorkloadError
from mainspring.traces.source import ClosedClient, ClosedLoop
from mainspring.traces.tracefile import check_models
from mainspring.traces.workload import DRAWS, Workload, check_factor, spread

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]

SLOT_NS = SECOND_NS // 4
FUNCTIONS_PER_MODEL = 4.2
"""17,000 functions over 4,026 models (Clockwork, section 6.5)."""
BEGIN_PERIODS = 1000
"""A run begins somewhere in this many of the longest periods: nearly uniform in any shorter one."""
SUSTAINED, COLD, BURSTY, PERIODIC = range(4)


@dataclass(frozen=True)
class AzureLike(Workload):
    """The mix for ``names`` at ``rate`` requests per second on average; without end."""

    names: tuple[str, ...]
    rate: float
    zipf_exponent: float = 1.3
    sustained_share: float = 0.1
    """Share of the functions, from the busiest down, with a constant rate."""
    cold_share: float = 0.45
    """Share of the functions, from the least busy up."""
    bursty_share: float = 0.6
    """Share of the functions between those two that is bursty; the others are periodic."""
    on_s: float = 4.0
    """Mean length of a burst; its rate is ``(on_s + off_s) / on_s`` times the function's mean."""
    off_s: float = 8.0
    periods_s: tuple[float, ...] = (15.0, 60.0)
    """The trace's 15 and 60 minutes at one-sixtieth, so that a run of two minutes has them."""
    spike_share: float = 0.2
    """Share of its period in which a periodic function is invoked: those of a period together, and those of
    a longer one when a shorter one's are too, where it divides the longer."""

    def __post_init__(self) -> None:
        check_models(self.names)
        check_factor("rate", self.rate)
        if self.sustained_share + self.cold_share > 1:
            raise WorkloadError(
                f"sustained_share {self.sustained_share} and cold_share {self.cold_share} exceed 1 together"
            )

    @property
    def models(self) -> tuple[str, ...]:
        """The models of the mix."""
        return self.names

    def scaled(self, factor: float) -> Workload:
        """Scale the rate."""
        check_factor("rate", factor)
        return replace(self, rate=self.rate * factor)

    def arrivals(self, rng: np.random.Generator) -> Iterator[Arrival]:
        """Draw slot by slot: each function's rate, its model's count, and the instants."""
        functions = max(len(self.names), round(len(self.names) * FUNCTIONS_PER_MODEL))
        weights = np.arange(1, functions + 1, dtype=np.float64) ** -self.zipf_exponent
        rates = self.rate * weights / weights.sum()
        kinds = self._kinds(functions, rng)
        model_of = _deal(functions, len(self.names), rng)
        periods_ns = rng.choice(np.array(self.periods_s) * SECOND_NS, functions)
        on = rng.random(functions) < self.on_s / (self.on_s + self.off_s)
        begin_ns = rng.random() * BEGIN_PERIODS * max(self.periods_s) * SECOND_NS
        slot = 0
        while True:
            on = self._switch(on, rng)
            factor = self._factors(kinds, on, periods_ns, begin_ns + slot * SLOT_NS)
            mean = np.bincount(model_of, rates * factor * (SLOT_NS / SECOND_NS), len(self.names))
            yield from spread(rng.poisson(mean), self.names, slot * SLOT_NS, SLOT_NS, rng)
            slot += 1

    def _kinds(self, functions: int, rng: np.random.Generator) -> Integers:
        kinds = np.where(rng.random(functions) < self.bursty_share, BURSTY, PERIODIC)
        kinds[functions - int(functions * self.cold_share) :] = COLD
        kinds[: math.ceil(functions * self.sustained_share)] = SUSTAINED
        return kinds

    def _switch(self, on: Bools, rng: np.random.Generator) -> Bools:
        """Begin and end bursts: a two-state Markov chain with steps of a slot."""
        slot_s = SLOT_NS / SECOND_NS
        leave = np.where(on, min(1.0, slot_s / self.on_s), min(1.0, slot_s / self.off_s))
        return on ^ (rng.random(len(on)) < leave)

    def _factors(
        self,
        kinds: Integers,
        on: Bools,
        periods_ns: Floats,
        now_ns: float,
    ) -> Floats:
        """Each function's rate now, as a multiple of its mean."""
        bursty = on * ((self.on_s + self.off_s) / self.on_s)
        periodic = ((now_ns % periods_ns) < self.spike_share * periods_ns) / self.spike_share
        return np.select([kinds == BURSTY, kinds == PERIODIC], [bursty, periodic], 1.0)


def azure_like(models: Sequence[str], rate: float) -> AzureLike:
    """The mix with its standard proportions."""
    return AzureLike(tuple(models), rate)


def _deal(functions: int, models: int, rng: np.random.Generator) -> Integers:
    """Deal shuffled functions round to shuffled models: each gets as many as any other, or one less."""
    dealt = np.empty(functions, np.int64)
    dealt[rng.permutation(functions)] = rng.permutation(models)[np.arange(functions) % models]
    return dealt


GAMMA_DRAWS = 64
"""Gaps that are drawn at a time for each model."""


def zipf_rates(models: Sequence[str], rate: float, exponent: float) -> dict[str, float]:
    """Split ``rate`` over the models, the k-th getting a share in proportion to ``k ** -exponent``.

    With exponent 1.3 and 17,000 models the busiest 1% get about 86%, as functions do in the Azure trace
    of 2019; with 0 all are equal.
    """
    check_models(tuple(models))
    weights = np.arange(1, len(models) + 1, dtype=np.float64) ** -exponent
    return dict(zip(models, (rate * weights / weights.sum()).tolist(), strict=True))


@dataclass(frozen=True)
class Poisson(Workload):
    """Independent Poisson processes without end: requests per second of each model."""

    rates: Mapping[str, float]

    def __post_init__(self) -> None:
        _check_rates(self.rates)

    @property
    def models(self) -> tuple[str, ...]:
        """The models with a rate."""
        return tuple(self.rates)

    def mean_rates(self, duration_ns: int, rng: np.random.Generator) -> dict[str, float]:  # noqa: ARG002
        """Return the rates: as `Workload.mean_rates`."""
        return dict(self.rates)

    def scaled(self, factor: float) -> Workload:
        """Scale the rates."""
        check_factor("rate", factor)
        return Poisson({model: rate * factor for model, rate in self.rates.items()})

    def arrivals(self, rng: np.random.Generator) -> Iterator[Arrival]:
        """Draw one process of the total rate and, for each arrival, its model."""
        models = tuple(self.rates)
        weights = np.fromiter(self.rates.values(), np.float64, len(models))
        mean_gap_ns = SECOND_NS / weights.sum()
        shares = np.cumsum(weights) / weights.sum()
        now_ns = 0.0
        while True:
            times = now_ns + np.cumsum(rng.exponential(mean_gap_ns, DRAWS))
            chosen = np.minimum(np.searchsorted(shares, rng.random(DRAWS), side="right"), len(models) - 1)
            for time_ns, model in zip(times.astype(np.int64).tolist(), chosen.tolist(), strict=True):
                yield Arrival(time_ns, models[model])
            now_ns = float(times[-1])


@dataclass(frozen=True)
class Gamma(Workload):
    """Renewal processes without end whose gaps are gamma-distributed with coefficient of variation ``cv``.

    1 is Poisson, below 1 more regular, above 1 bursty (InferLine, section 6, uses 1 and 4).
    """

    rates: Mapping[str, float]
    cv: float

    def __post_init__(self) -> None:
        _check_rates(self.rates)
        check_factor("coefficient of variation", self.cv)

    @property
    def models(self) -> tuple[str, ...]:
        """The models with a rate."""
        return tuple(self.rates)

    def mean_rates(self, duration_ns: int, rng: np.random.Generator) -> dict[str, float]:  # noqa: ARG002
        """Return the rates: as `Workload.mean_rates`."""
        return dict(self.rates)

    def scaled(self, factor: float) -> Workload:
        """Scale the rates; the coefficient of variation stays."""
        check_factor("rate", factor)
        return Gamma({model: rate * factor for model, rate in self.rates.items()}, self.cv)

    def arrivals(self, rng: np.random.Generator) -> Iterator[Arrival]:
        """Merge one process for each model."""
        children = rng.spawn(len(self.rates))
        streams = [
            self._model(model, rate, child)
            for (model, rate), child in zip(self.rates.items(), children, strict=True)
            if rate > 0
        ]
        return heapq.merge(*streams, key=lambda arrival: arrival.time_ns)

    def _model(self, model: str, rate: float, rng: np.random.Generator) -> Iterator[Arrival]:
        shape = self.cv**-2
        scale_ns = SECOND_NS / rate / shape
        now_ns = 0.0
        while True:
            times = now_ns + np.cumsum(rng.gamma(shape, scale_ns, GAMMA_DRAWS))
            for time_ns in times.astype(np.int64).tolist():
                yield Arrival(time_ns, model)
            now_ns = float(times[-1])


def closed_loop(
    models: Sequence[str],
    *,
    concurrency: int,
    duration_ns: int,
    slo_ns: int | None,
    rows: int = 1,
    think_ns: int = 0,
    slos_ns: Mapping[str, int] | None = None,
) -> ClosedLoop:
    """One closed-loop client for each model, each with ``concurrency`` requests in flight.

    Their SLO is ``slo_ns``, or the model's of ``slos_ns``.
    """
    check_models(tuple(models))
    own_ns: Mapping[str, int] = slos_ns or {}
    clients = tuple(
        ClosedClient(model, concurrency, rows, own_ns.get(model, slo_ns), think_ns) for model in models
    )
    return ClosedLoop(clients, duration_ns)


def _check_rates(rates: Mapping[str, float]) -> None:
    check_models(tuple(rates))
    for model, rate in rates.items():
        if not (math.isfinite(rate) and rate >= 0):
            raise WorkloadError(f"rate of model {model!r} is {rate}; it must be a finite number from 0 up")
    if not sum(rates.values()):
        raise WorkloadError("every rate is 0: such a workload has no arrival")
