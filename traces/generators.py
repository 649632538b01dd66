"""Workloads from a formula: Poisson, gamma with a given burstiness, and closed-loop clients."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mainspring.traces.arrival import SECOND_NS, Arrival, WorkloadError
from mainspring.traces.source import ClosedClient, ClosedLoop
from mainspring.traces.tracefile import check_models
from mainspring.traces.workload import DRAWS, Workload, check_factor

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
