"""A scenario made concrete: model specifications, and every request's instant for a load and a seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from mainspring.compiler.artifact.profiles import EMULATED, read_profile_table
from mainspring.experiments.policies.scenarios import Group, Scenario
from mainspring.messages.model import ModelSpec, Profile
from mainspring.simulator.offered import mean_multiple
from mainspring.simulator.spec import Spread, matches
from mainspring.traces.arrival import SECOND_NS, Arrival, WorkloadError
from mainspring.traces.capacity import best_request_ns, device_s

Instants = npt.NDArray[np.int64]
Table = Mapping[str, ModelSpec]
"""Specifications by variety."""


def read_table(path: Path) -> Table:
    """Return the table's rows but for the tuned ones, which Clockwork's evaluation leaves out too."""
    return {spec.name: spec for spec in read_profile_table(path) if "tuned" not in spec.name}


@dataclass(frozen=True)
class Served:
    """A model of a scenario, and how it is asked for."""

    spec: ModelSpec
    group: Group
    rate: float
    """Requests per second at a load of 1; at every load without a deadline."""
    spread: Spread | None = None
    """How its durations vary, if they do."""

    @property
    def slo_ns(self) -> int | None:
        """Time to the deadline."""
        return None if self.group.slo_ms is None else round(self.group.slo_ms * 1e6)


def models_of(scenario: Scenario, table: Table) -> list[Served]:
    """Return a scenario's models; raise `WorkloadError` for a variety that the table does not have."""
    named = [
        (_spec(scenario, table, variety, f"{group.slo_ms or 0:g}-{group.rows}-{copy}"), group)
        for group in scenario.groups
        for variety in group.varieties or table
        for copy in range(group.copies)
    ]
    weights = _weights(scenario, [group for _, group in named])
    spreads = [spread_of(scenario, spec.name) for spec, _ in named]
    needs = [
        _device_seconds(scenario, spec, group, spread)
        for (spec, group), spread in zip(named, spreads, strict=True)
    ]
    capacity = 1 / sum(weight * need for weight, need in zip(weights, needs, strict=True) if weight)
    freely = [group.slo_ms is None for _, group in named]
    served = []
    for (spec, group), weight, free, spread in zip(named, weights, freely, spreads, strict=True):
        rate = capacity * (scenario.best_effort / sum(freely) if free else weight)
        served.append(Served(spec, group, rate, spread))
    return served


def spread_of(scenario: Scenario, name: str) -> Spread | None:
    """Return how the durations of a model vary; None if they do not."""
    return next((each for each in scenario.spreads if matches(name, each.models)), None)


def fluid_rate(models: Sequence[Served]) -> float:
    """Return the requests with a deadline per second that fill the devices in batches of the best size."""
    return sum(model.rate for model in models if model.group.slo_ms is not None)


def instants(models: Sequence[Served], load: float, seconds: float, seed: int) -> list[Instants]:
    """Return when each model's requests arrive, in nanoseconds, ascending."""
    rng = np.random.default_rng([seed, round(load * 1000)])
    drawn = []
    for model, own in zip(models, rng.spawn(len(models)), strict=True):
        rate = model.rate * (1.0 if model.group.slo_ms is None else load)
        drawn.append(_instants(own, rate, model.group.cv, seconds))
    return drawn


def arrivals(models: Sequence[Served], drawn: Sequence[Instants], retry_ns: int = 0) -> list[Arrival]:
    """Return all requests in the order of their arrival; with ``retry_ns`` clients come back once."""
    when = np.concatenate(drawn)
    which = np.repeat(np.arange(len(drawn)), [len(times) for times in drawn])
    order = np.argsort(when, kind="stable")
    requests = [(model.spec.name, model.group.rows, model.slo_ns) for model in models]
    return [
        Arrival(time_ns, model, rows, slo_ns, retry_ns=retry_ns)
        for time_ns, (model, rows, slo_ns) in zip(
            when[order].tolist(), [requests[index] for index in which[order].tolist()], strict=True
        )
    ]


def _instants(rng: np.random.Generator, rate: float, cv: float, seconds: float) -> Instants:
    """Draw a Poisson process, or a renewal process with gamma gaps."""
    if cv == 1.0:
        count = rng.poisson(rate * seconds)
        return np.sort((rng.random(count) * seconds * SECOND_NS).astype(np.int64))
    shape = 1 / cv**2
    gaps = rng.gamma(shape, 1 / (rate * shape), size=int(2 * rate * seconds + 100 * cv**2))
    times = np.cumsum(gaps)
    return (times[times < seconds] * SECOND_NS).astype(np.int64)


def _weights(scenario: Scenario, groups: Sequence[Group]) -> list[float]:
    """Return each model's part of the requests with a deadline."""
    order = np.random.default_rng(scenario.seed).permutation(len(groups)).tolist()
    weights = [
        0.0 if group.slo_ms is None else group.weight / (1 + rank) ** scenario.zipf
        for group, rank in zip(groups, order, strict=True)
    ]
    return [weight / sum(weights) for weight in weights]


def _spec(scenario: Scenario, table: Table, variety: str, suffix: str) -> ModelSpec:
    """Return a model of a variety for the scenario's kinds of devices."""
    if variety not in table:
        raise WorkloadError(
            f"scenario {scenario.name!r} needs the variety {variety!r}, which the table lacks"
        )
    spec = table[variety]
    profile = spec.profiles[EMULATED]
    profiles = {kind: _slowed(profile, scenario.slowness.get(kind, 1.0)) for kind in scenario.devices}
    name = f"{variety}-{suffix}"
    return msgspec.structs.replace(spec, name=name, weights_hash=name, profiles=profiles)


def _slowed(profile: Profile, factor: float) -> Profile:
    return Profile({size: round(ns * factor) for size, ns in profile.infer_ns.items()}, profile.load_ns)


def _device_seconds(scenario: Scenario, spec: ModelSpec, group: Group, spread: Spread | None) -> float:
    """Return the part of all devices' time that a request takes in its best batch on average, in seconds.

    A batch that takes longer than the SLO is none.
    """
    slo_ns = None if group.slo_ms is None else group.slo_ms * 1e6
    request_ns = {}
    for kind in scenario.devices:
        infer_ns = {
            size: ns * mean_multiple(spread, max(1, size // group.rows))
            for size, ns in spec.profiles[kind].infer_ns.items()
        }
        request_ns[kind] = best_request_ns(infer_ns, slo_ns, group.rows)
    return device_s(request_ns, scenario.devices)
