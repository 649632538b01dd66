"""A synthetic mix shaped like Azure Functions, for where no trace file is at hand.

Clockwork, section 6.5, describes the trace as "heavy sustained workloads, low utilization cold workloads,
bursty workloads that fluctuate over time, and workloads with periodic spikes", the spikes hourly and, less,
every quarter of an hour. Shahrad et al. (ATC '20), section 3: 45% of applications are invoked at most once
an hour, and the busiest 18.6% have 99.6% of all invocations.

Function rates follow a Zipf law. The busiest functions are sustained, the least busy 45% cold; those
between are bursty or periodic. Each is a Poisson process whose rate is constant within a slot of 250 ms;
four or five functions are dealt to each model. A run begins at a random instant of the pattern, as a trace
would be cut anywhere: so runs shorter than a period have the mix's rate too, on average over seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mainspring.traces.arrival import SECOND_NS, Arrival, WorkloadError
from mainspring.traces.tracefile import check_models
from mainspring.traces.workload import Workload, check_factor, spread

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
