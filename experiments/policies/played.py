"""A scenario made concrete: model specifications, and every request's instant for a load and a seed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from mainspring.compiler.artifact.profiles import EMULATED, read_profile_table
from mainspring.experiments.policies.scenarios import WAVE_S, Group, Scenario
from mainspring.messages.model import ModelSpec, Profile
from mainspring.scheduler.policies.mainspring.ranking import floor_of
from mainspring.simulator.bound.dual import ITERATIONS, Fleet, Stream, goodput_bound
from mainspring.simulator.offered import mean_multiple
from mainspring.simulator.spec import Spread, matches
from mainspring.traces.arrival import SECOND_NS, Arrival, WorkloadError
from mainspring.traces.shapes import best_request_ns, device_s

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
    """Variation of its durations, if there is any."""

    @property
    def slo_ns(self) -> int | None:
        """Time to the deadline."""
        return None if self.group.slo_ms is None else round(self.group.slo_ms * 1e6)


def models_of(scenario: Scenario, table: Table) -> list[Served]:
    """Return a scenario's models; raise `WorkloadError` for a variety that the table does not have."""
    named = [
        (_spec(scenario, table, variety, group, copy), group)
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
        drawn.append(_instants(own, rate, model.group, seconds))
    return drawn


def arrivals(models: Sequence[Served], drawn: Sequence[Instants], retry_ns: int = 0) -> list[Arrival]:
    """Return all requests in the order of their arrival; with ``retry_ns`` clients come back once."""
    when = np.concatenate(drawn)
    which = np.repeat(np.arange(len(drawn)), [len(times) for times in drawn])
    order = np.argsort(when, kind="stable")
    kinds = [_kinds(model) for model in models]
    drawn_kinds = np.concatenate(
        [
            np.random.default_rng([index, len(times)]).integers(len(kinds[index]), size=len(times))
            for index, times in enumerate(drawn)
        ]
    )
    found = []
    for time_ns, index, kind in zip(
        when[order].tolist(), which[order].tolist(), drawn_kinds[order].tolist(), strict=True
    ):
        rows, slo_ns = kinds[index][kind]
        found.append(Arrival(time_ns, models[index].spec.name, rows, slo_ns, retry_ns=retry_ns))
    return found


def _kinds(model: Served) -> list[tuple[int, int | None]]:
    """Return rows and SLO of the kinds of requests that a model has."""
    mix = model.group.mix
    return [(rows, round(slo_ms * 1e6)) for slo_ms, rows in mix] or [(model.group.rows, model.slo_ns)]


def _instants(rng: np.random.Generator, rate: float, group: Group, seconds: float) -> Instants:
    """Draw a Poisson process, or a renewal process with gamma or Pareto gaps; thin it where rates swing."""
    most = (1.0 + group.wave) * group.crowd
    if group.pareto:
        shape = group.pareto
        gaps = (1.0 + rng.pareto(shape, size=int(2 * rate * most * seconds + 100))) * (shape - 1.0) / shape
        times = np.cumsum(gaps / (rate * most))
    elif group.cv == 1.0:
        times = np.sort(rng.random(rng.poisson(rate * most * seconds)) * seconds)
    else:
        shape = 1 / group.cv**2
        count = int(2 * rate * most * seconds + 100 * group.cv**2)
        times = np.cumsum(rng.gamma(shape, 1 / (rate * most * shape), size=count))
    times = times[times < seconds]
    if most != 1.0:
        swung = 1.0 + group.wave * np.sin(2 * np.pi * times / WAVE_S)
        crowded = np.where(np.abs(times / seconds - 0.5) < 0.05, group.crowd, 1.0)
        times = times[rng.random(len(times)) * most < swung * crowded]
    return (times * SECOND_NS).astype(np.int64)


def _weights(scenario: Scenario, groups: Sequence[Group]) -> list[float]:
    """Return each model's part of the requests with a deadline."""
    order = np.random.default_rng(scenario.seed).permutation(len(groups)).tolist()
    weights = [
        0.0 if group.slo_ms is None else group.weight / (1 + rank) ** scenario.zipf
        for group, rank in zip(groups, order, strict=True)
    ]
    return [weight / sum(weights) for weight in weights]


def _spec(scenario: Scenario, table: Table, variety: str, group: Group, copy: int) -> ModelSpec:
    """Return a model of a variety for the scenario's kinds of devices."""
    if variety not in table:
        raise WorkloadError(
            f"scenario {scenario.name!r} needs the variety {variety!r}, which the table lacks"
        )
    spec = table[variety]
    profile = spec.profiles[EMULATED]
    slowness = {kind: group.factor * scenario.slowness.get(kind, 1.0) for kind in scenario.devices}
    profiles = {kind: _slowed(profile, factor) for kind, factor in slowness.items()}
    crowd = "crowd-" * (group.crowd > 1)
    name = f"{variety}-{crowd}{group.slo_ms or 0:g}-{group.rows}-{copy}"
    return msgspec.structs.replace(spec, name=name, weights_hash=name, profiles=profiles)


def _slowed(profile: Profile, factor: float) -> Profile:
    return Profile({size: round(ns * factor) for size, ns in profile.infer_ns.items()}, profile.load_ns)


def _device_seconds(scenario: Scenario, spec: ModelSpec, group: Group, spread: Spread | None) -> float:
    """Return the part of all devices' time that a request takes in its best batch on average, in seconds.

    A batch that takes longer than the SLO is none.
    """
    if group.mix:
        own = [msgspec.structs.replace(group, slo_ms=slo_ms, rows=rows, mix=()) for slo_ms, rows in group.mix]
        return sum(_device_seconds(scenario, spec, each, spread) for each in own) / len(own)
    slo_ns = None if group.slo_ms is None else group.slo_ms * 1e6
    request_ns = {}
    for kind in scenario.devices:
        infer_ns = {
            size: ns * mean_multiple(spread, max(1, size // group.rows))
            for size, ns in spec.profiles[kind].infer_ns.items()
        }
        request_ns[kind] = best_request_ns(infer_ns, slo_ns, group.rows)
    return device_s(request_ns, scenario.devices)


SEARCHES = 5
"""Bounds that are computed to find the one from which its own floor follows, within about a percent."""
FIRST_SEARCHED = 0.94
"""The first that is tried, as a part of the bound without a floor."""
SLOWER = 2
"""Factor on the iterations of the bound's prices where there is a floor."""


def bound_of(
    scenario: Scenario,
    models: Sequence[Served],
    drawn: Sequence[Instants],
    since_ns: int,
    folder: Path,
    fairness: float = 0.0,
) -> float:
    """Return how many of the requests that arrive from an instant on could be answered in time at best.

    With ``fairness``, by a schedule that keeps the floor of the default policy. Computed once for each set of
    arguments and kept in ``folder``.
    """
    streams, fleet = _streams(models, drawn, since_ns), _fleet(scenario, models)
    floored = f"-{fairness:g}" if fairness else ""
    file = folder / f"{scenario.name}-{_digest(streams, fleet)}{floored}.json"
    if file.exists():
        return float(msgspec.json.decode(file.read_bytes(), type=float))
    requests = goodput_bound(streams, fleet, iterations=ITERATIONS).requests
    if fairness:
        requests = _floored(streams, fleet, fairness, requests)
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(f".{os.getpid()}")
    unfinished.write_bytes(msgspec.json.encode(requests))
    unfinished.replace(file)
    return requests


def _floored(streams: Sequence[Stream], fleet: Fleet, fairness: float, unfair: float) -> float:
    """Return the most that a schedule answers which keeps the floor that follows from what it answers.

    The higher that is, the higher is the floor, and the less is possible: what is sought lies where both are
    equal. ``unfair`` is the bound without a floor.
    """
    offered = sum(len(stream.arrival_ns) for stream in streams)
    least, most = 0.0, unfair
    for _ in range(SEARCHES):
        tried = (least + most) / 2 if least else FIRST_SEARCHED * most
        floor = max(0.0, floor_of(tried / offered, fairness))
        possible = goodput_bound(streams, fleet, iterations=SLOWER * ITERATIONS, floor=floor).requests
        if possible <= tried:
            most = tried
        else:
            least, most = tried, min(most, possible)
    return most


def _streams(models: Sequence[Served], drawn: Sequence[Instants], since_ns: int) -> list[Stream]:
    """Return the requests with a deadline; those of several rows as if they were rows of larger batches."""
    streams = []
    for model, times in zip(models, drawn, strict=True):
        slo_ns, rows = model.slo_ns, model.group.rows
        arrival_ns = times[np.searchsorted(times, since_ns) :]
        if slo_ns is None or not len(arrival_ns):
            continue
        infer_ns = {
            kind: {size // rows: ns for size, ns in profile.infer_ns.items() if size >= rows}
            for kind, profile in model.spec.profiles.items()
        }
        load_ns = {kind: profile.load_ns for kind, profile in model.spec.profiles.items()}
        streams.append(Stream(arrival_ns, arrival_ns + slo_ns, infer_ns, load_ns, model.spec.pages))
    return streams


def _fleet(scenario: Scenario, models: Sequence[Served]) -> Fleet:
    pages = sum(model.spec.pages for model in models)
    short = pages > scenario.pages
    return Fleet(scenario.devices, scenario.pages * sum(scenario.devices.values()) if short else None)


def _digest(streams: Sequence[Stream], fleet: Fleet) -> str:
    digest = hashlib.sha256(repr((fleet, ITERATIONS)).encode())
    for stream in streams:
        digest.update(stream.arrival_ns.tobytes() + stream.due_ns.tobytes())
        digest.update(repr((stream.infer_ns, stream.load_ns, stream.pages)).encode())
    return digest.hexdigest()[:16]
