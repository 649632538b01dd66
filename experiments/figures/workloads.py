"""Workloads of the paper that `mainspring.traces` has no name for: stages, mixtures, growth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from mainspring.experiments.figures.case import Flags, Outcomes
from mainspring.experiments.figures.options import Options
from mainspring.experiments.figures.paper import (
    FIGURE7_BASE_MS,
    FIGURE7_STAGE_S,
    FIGURE7_STAGES,
    FIGURE7_STEP,
    MILLISECOND_NS,
)
from mainspring.traces.arrival import SECOND_NS, Arrival, WorkloadError
from mainspring.traces.generators import Poisson
from mainspring.traces.source import Playable, Source
from mainspring.traces.workload import DRAWS, Workload


@dataclass(frozen=True)
class Stages(Workload):
    """Workloads that follow each other, each for ``stage_ns`` (the rising SLOs of Clockwork, section 6.3)."""

    stages: tuple[Workload, ...]
    stage_ns: int

    def __post_init__(self) -> None:
        if not self.stages or self.stage_ns <= 0:
            raise WorkloadError(
                f"{len(self.stages)} stages of {self.stage_ns} ns are not a workload: "
                "give at least one stage, and a positive length"
            )

    @property
    def models(self) -> tuple[str, ...]:
        """Models of all stages, each once."""
        return tuple(dict.fromkeys(model for stage in self.stages for model in stage.models))

    def arrivals(self, rng: np.random.Generator) -> Iterator[Arrival]:
        """Play one stage after the other."""
        for number, (stage, child) in enumerate(zip(self.stages, rng.spawn(len(self.stages)), strict=True)):
            begin_ns = number * self.stage_ns
            for arrival in stage.cut(0, self.stage_ns).arrivals(child):
                yield msgspec.structs.replace(arrival, time_ns=arrival.time_ns + begin_ns)


@dataclass(frozen=True)
class Growing(Workload):
    """A Poisson process that is spread evenly over more and more models (Clockwork, section 6.2).

    One model is active from the start, and one more every ``step_ns`` until all of ``names`` are.
    """

    names: tuple[str, ...]
    rate: float
    step_ns: int

    @property
    def models(self) -> tuple[str, ...]:
        """All models, active in the end."""
        return self.names

    def arrivals(self, rng: np.random.Generator) -> Iterator[Arrival]:
        """Draw the instants, and for each one of the models that are active then."""
        now_ns = 0.0
        while True:
            times = now_ns + np.cumsum(rng.exponential(SECOND_NS / self.rate, DRAWS))
            active = np.minimum(1 + (times // self.step_ns).astype(np.int64), len(self.names))
            chosen = (rng.random(DRAWS) * active).astype(np.int64)
            for time_ns, model in zip(times.astype(np.int64).tolist(), chosen.tolist(), strict=True):
                yield Arrival(time_ns, self.names[model])
            now_ns = float(times[-1])


@dataclass(frozen=True)
class Delayed(Workload):
    """A workload that begins ``delay_ns`` later."""

    workload: Workload
    delay_ns: int

    @property
    def models(self) -> tuple[str, ...]:
        """Models of the other workload."""
        return self.workload.models

    def arrivals(self, rng: np.random.Generator) -> Iterator[Arrival]:
        """Shift the times."""
        for arrival in self.workload.arrivals(rng):
            yield msgspec.structs.replace(arrival, time_ns=arrival.time_ns + self.delay_ns)


@dataclass(frozen=True)
class Together:
    """Several workloads at once, open or closed loop (the clients of Clockwork, section 6.4)."""

    parts: tuple[Playable, ...]

    @property
    def models(self) -> tuple[str, ...]:
        """Models of all parts, each once."""
        return tuple(dict.fromkeys(model for part in self.parts for model in part.models))

    def source(self, rng: np.random.Generator) -> Source:
        """Start to play all of them."""
        children = rng.spawn(len(self.parts))
        return _TogetherSource([part.source(child) for part, child in zip(self.parts, children, strict=True)])


class _TogetherSource:
    """Several sources as one; a client's number tells which part it belongs to."""

    def __init__(self, parts: list[Source]) -> None:
        self._parts = parts

    def next_ns(self) -> int | None:
        return min((due_ns for part in self._parts if (due_ns := part.next_ns()) is not None), default=None)

    def take(self) -> Arrival:
        due = [(due_ns, number) for number, part in enumerate(self._parts)
               if (due_ns := part.next_ns()) is not None]  # fmt: skip
        number = min(due)[1]
        arrival = self._parts[number].take()
        if arrival.client < 0:
            return arrival
        return msgspec.structs.replace(arrival, client=arrival.client * len(self._parts) + number)

    def completed(self, client: int, now_ns: int) -> None:
        own, number = divmod(client, len(self._parts))
        self._parts[number].completed(own, now_ns)

    def done(self, now_ns: int, /) -> bool:
        return all(part.done(now_ns) for part in self._parts)


MULTIPLIERS = tuple(FIGURE7_STEP**stage for stage in range(FIGURE7_STAGES))
SETTLING_SHARE = 0.1
SATISFIED = 0.999
"""Share in time that counts as a satisfied workload."""


def rising(rates: dict[str, float], stage_s: float) -> Stages:
    """Return Poisson arrivals whose SLO rises by half from stage to stage."""
    poisson = Poisson(rates)
    slos_ns = [round(FIGURE7_BASE_MS * multiplier * MILLISECOND_NS) for multiplier in MULTIPLIERS]
    return Stages(tuple(poisson.with_requests(slo_ns=slo_ns) for slo_ns in slos_ns), round(stage_s * 1e9))


def stage_seconds(options: Options, short_s: float) -> float:
    """Return the length of one stage."""
    return options.seconds(short_s, FIGURE7_STAGE_S)


def satisfaction(seen: Outcomes, stage_s: float) -> list[float | None]:
    """Return the share in time of each stage's requests with a deadline."""
    return [
        value
        for stage in range(FIGURE7_STAGES)
        for value in seen.shares(seen.in_time, ~seen.best_effort, _edges(stage, stage_s))
    ]


def throughput(seen: Outcomes, flags: Flags, stage_s: float) -> list[float]:
    """Return the rate of such requests in each stage."""
    return [rate for stage in range(FIGURE7_STAGES) for rate in seen.rate(flags, _edges(stage, stage_s))]


def satisfied_from(shares: Sequence[float | None], least: float = SATISFIED) -> float | None:
    """Return the multiplier from which on every stage has at least that share; None if the last has not."""
    found = None
    for multiplier, value in reversed(list(zip(MULTIPLIERS, shares, strict=True))):
        if value is None or value < least:
            break
        found = multiplier
    return found


def nearest_stage(multiplier: float) -> int:
    """Return the stage of a multiplier as the text rounds it."""
    return min(range(FIGURE7_STAGES), key=lambda stage: abs(MULTIPLIERS[stage] - multiplier))


def _edges(stage: int, stage_s: float) -> npt.NDArray[np.float64]:
    return np.array([stage + SETTLING_SHARE, stage + 1]) * stage_s
