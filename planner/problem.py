"""The problem that estimators and searches get: kinds with prices and bounds, the objective, the queries.

All pools see the same arrivals, rows and draws, so that two differ by what they do alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import numpy.typing as npt

from mainspring.messages.model import ModelSpec
from mainspring.simulator.checks import most_of
from mainspring.simulator.cluster import build_cluster
from mainspring.simulator.estimate import expected_requests
from mainspring.simulator.spec import DeviceGroup, SimulationSpec, matches
from mainspring.simulator.workloads import build_source
from mainspring.traces.arrival import Arrival, Kind


class PlanError(ValueError):
    """A plan asks for what can't be; the text says what would be right."""


Whole = npt.NDArray[np.int64]
Pool = tuple[int, ...]
"""Number of devices of each kind, in the order of the spec."""
MOST_QUERIES = 5_000_000
"""Most queries of a plan: each pool that is tried serves them all."""
LEAST_PRICE = 1e-6
"""Least price of a device: sums of lower ones differ by less than their rounding."""
LATE_QUERIES = 10
"""A stream is long enough for a percentile if this many queries may be late by it."""
DRAWS_SEED = 0x9B
"""Sets the draws of durations apart from those of arrivals."""
Z99 = 2.3263478740408408
"""A normal variable is below this 99 times in 100."""


class DeviceKind(msgspec.Struct, frozen=True):
    """A kind of device that a pool may have."""

    name: str
    price: float
    """Price of one device for an hour."""
    least: int
    most: int
    """0 where the spec leaves it open, until `bounds.bounded`."""


@dataclass(frozen=True, eq=False)
class Queries:
    """The queries that every pool is tried with, in order of arrival."""

    due_ns: Whole
    rows: Whole
    models: Whole
    """Places in `Problem.models`."""
    slo_ns: Whole
    counted: int
    """The first query that counts: those before belong to the warm-up."""

    def __len__(self) -> int:
        return len(self.due_ns)

    @property
    def rate(self) -> float:
        """Return the number of queries that come in a second, from the first to the last."""
        return len(self) / max(1e-9, float(self.due_ns[-1] - self.due_ns[0]) / 1e9)


@dataclass(frozen=True, eq=False)
class Problem:
    """A spec whose counts of devices are open, with all that follows from it."""

    spec: SimulationSpec
    kinds: tuple[DeviceKind, ...]
    models: tuple[ModelSpec, ...]
    queries: Queries
    durations_ns: Whole
    """A row for each kind: how long each query takes on it."""
    between_ns: int
    """Time that a device is idle for messages from one query to the next that waits."""
    around_ns: int
    """Time that a client waits for messages beyond that."""
    load: float = 1.0
    """The queries come at the spec's rate times this."""

    def at_load(self, load: float) -> Problem:
        """Return the problem of the same queries at another rate, a multiple of this one's."""
        due_ns = np.rint(self.queries.due_ns / load).astype(np.int64)
        return replace(self, queries=replace(self.queries, due_ns=due_ns), load=self.load * load)

    def with_kinds(self, places: Sequence[int]) -> Problem:
        """Return the problem with some of the kinds alone."""
        devices = tuple(self.spec.devices[place] for place in places)
        return replace(
            self,
            spec=msgspec.structs.replace(self.spec, devices=devices),
            kinds=tuple(self.kinds[place] for place in places),
            durations_ns=self.durations_ns[list(places)],
        )

    def arrivals(self) -> Iterator[Arrival]:
        """Yield the queries, as a workload has them."""
        queries, names = self.queries, [model.name for model in self.models]
        columns = queries.due_ns, queries.models, queries.rows, queries.slo_ns
        for time_ns, model, rows, slo_ns in zip(*[each.tolist() for each in columns], strict=True):
            yield Arrival(time_ns, names[model], rows, slo_ns)

    @property
    def attainment(self) -> float:
        """The share of queries that are to end in time."""
        return self.spec.objective.attainment

    def price(self, pool: Pool) -> float:
        """Return what a pool costs an hour."""
        return math.fsum(kind.price * count for kind, count in zip(self.kinds, pool, strict=True))

    def named(self, pool: Pool) -> str:
        """Return a pool for a person: ``4 g4dn.xlarge + 1 r5n.large``."""
        parts = [f"{count} {kind.name}" for kind, count in zip(self.kinds, pool, strict=True) if count]
        return " + ".join(parts) or "no device"


def added(pool: Pool, place: int, count: int) -> Pool:
    """Return a pool with ``count`` more devices of the kind at a place."""
    return tuple(each + count * (other == place) for other, each in enumerate(pool))


def read_problem(spec: SimulationSpec) -> Problem:
    """Return the problem of a spec whose ``[[devices]]`` have prices.

    Raises `PlanError` for what can't be planned, and as `build_cluster` and `build_source`.
    """
    kinds = tuple(read_kind(number, group) for number, group in enumerate(spec.devices, start=1))
    names = [kind.name for kind in kinds]
    if len({*names}) < len(names):
        raise PlanError("two groups of devices are of one kind: a plan has one group for each kind")
    groups = tuple(msgspec.structs.replace(group, count=1) for group in spec.devices)
    one_each = msgspec.structs.replace(spec, devices=groups)
    models = build_cluster(one_each).models
    queries = read_queries(one_each, models)
    return Problem(spec, kinds, models, queries, durations(one_each, models, queries), *messages_ns(spec))


def read_queries(spec: SimulationSpec, models: tuple[ModelSpec, ...]) -> Queries:
    """Return the requests of all workloads of a spec.

    Raises `PlanError` for workloads whose requests hang on the answers or have no deadline.
    """
    for workload in spec.workload:
        if workload.kind == Kind.CLOSED.value:
            raise PlanError(
                "closed-loop clients send what they get answers for, so their load follows from the pool: "
                "plan for a rate, with kind = poisson or a trace"
            )
        if workload.load is not None:
            raise PlanError(
                "load is a multiple of what the devices can do, and these are to be found: give rate"
            )
    expected = expected_requests(spec, models)
    if expected > MOST_QUERIES:
        raise PlanError(
            f"about {expected:,.3g} queries would come, and at most {MOST_QUERIES:,} can be planned with: "
            "shorten duration_s, or lower rate or scale"
        )
    source, places = build_source(spec, models), {model.name: place for place, model in enumerate(models)}
    found: list[tuple[int, int, int, int]] = []
    while source.next_ns() is not None:
        each = source.take()
        if each.slo_ns is None:
            raise PlanError("a plan is for requests with a deadline: take out best_effort, and what has none")
        found.append((each.time_ns, each.rows, places[each.model], each.slo_ns))
    columns = np.array(found, np.int64).reshape(-1, 4).T.copy()
    counted = int(np.searchsorted(columns[0], round(spec.warm_up_s * 1e9)))
    _check_length(spec, len(columns[0]) - counted)
    return Queries(columns[0], columns[1], columns[2], columns[3], counted)


def durations(spec: SimulationSpec, models: tuple[ModelSpec, ...], queries: Queries) -> Whole:
    """Return how long each query takes on each kind: in the smallest batch that holds it, its spread drawn.

    What is drawn for a query is the same on every kind. Raises `PlanError` for models that have no such
    durations.
    """
    rng = np.random.default_rng([DRAWS_SEED, spec.seed])
    normal, rank = rng.standard_normal(len(queries)), rng.random(len(queries))
    jitter = np.exp(spec.faults.duration_jitter * rng.standard_normal(len(queries)))
    found = np.zeros((len(spec.devices), len(queries)), np.float64)
    for place, model in enumerate(models):
        mine = np.flatnonzero(queries.models == place)
        if not len(mine):
            continue
        if model.symbols:
            raise PlanError(
                f"{model.name} has an open dimension {model.symbols[0].name}: what its queries take is known "
                "to --evaluate simulate"
            )
        rows = queries.rows[mine]
        _check_rows(model, int(rows.max()))
        multiple = multiples(spec, model, normal[mine], rank[mine])
        for number, group in enumerate(spec.devices):
            profile = model.profiles[group.kind]
            sizes = np.array(sorted(profile.infer_ns), np.int64)
            by_size = np.array([profile.infer_ns[size] for size in sizes.tolist()], np.float64)
            varied = np.exp(math.log(max(1.0, profile.spread)) / Z99 * normal[mine])
            found[number, mine] = by_size[np.searchsorted(sizes, rows)] * (
                varied if multiple is None else multiple
            )
    return np.maximum(1, np.rint(found * jitter)).astype(np.int64)


def messages_ns(spec: SimulationSpec) -> tuple[int, int]:
    """Return what messages take from one query's end to the next's begin, and around a query beyond that.

    A result goes to the controller, a dispatch to the gateway, and inputs to the worker; an arrival goes to
    the controller, and both ways lead through the client's network.
    """
    network, costs = spec.network, spec.processes
    worker_us = costs.worker_input_us + costs.worker_action_us + costs.worker_result_us
    gateway_us = costs.gateway_arrival_us + costs.gateway_reply_us
    between_us = 3 * network.delay_us + worker_us + costs.gateway_dispatch_us
    return round(1e3 * between_us), round(1e3 * (network.delay_us + 2 * network.client_delay_us + gateway_us))


def multiples(
    spec: SimulationSpec, model: ModelSpec, normal: np.ndarray, rank: np.ndarray
) -> np.ndarray | None:
    """Return the multiples that a spec's faults say; None if they say nothing of the model."""
    for spread in spec.faults.spreads:
        if matches(model.name, spread.models):
            if spread.kind == "lognormal":
                return np.asarray(np.exp(spread.sigma * normal))
            return np.where(rank < spread.long_share, spread.long_factor, 1.0)
    return None


def read_kind(number: int, group: DeviceGroup) -> DeviceKind:
    """Return the kind of the devices of a spec's group; raise `PlanError` without a price."""
    where = f"[[devices]] number {number}, {group.kind!r},"
    if group.price < LEAST_PRICE:
        raise PlanError(f"{where} needs a price above 0, of one an hour, and of {LEAST_PRICE:f} at least")
    if group.most == 0:
        raise PlanError(f"{where} has most = 0: take it out")
    return DeviceKind(group.kind, group.price, group.least, group.most or 0)


def _check_rows(model: ModelSpec, rows: int) -> None:
    if rows > model.max_rows:
        raise PlanError(
            f"queries have up to {rows} rows and the profile of {model.name} ends at {model.max_rows}: give "
            f"rows most = {model.max_rows}, or the profile larger batch sizes"
        )


def _check_length(spec: SimulationSpec, counted: int) -> None:
    """Raise `PlanError` unless the stream is long enough for its percentile."""
    needed = math.ceil(LATE_QUERIES / (1 - spec.objective.attainment))
    if counted < needed:
        seconds = math.ceil(needed / (counted / spec.duration_s)) if counted else math.inf
        long = "raise rate or duration_s"
        if seconds <= most_of("duration_s"):
            long = f"at this rate, duration_s = {seconds}"
        raise PlanError(
            f"{counted} queries are too few to tell {spec.objective.attainment} in time from less: it "
            f"takes {needed:,}: {long}"
        )
