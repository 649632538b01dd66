"""The estimator ``queues`` for a graph: each step a station of its own with batches, in topological order.

InferLine (SoCC '20), section 4.2: centralised batched queues, over the whole sample, with the steps' scale
factors and conditions. Which queries take part in a step, with how many rows, and how each item's duration is
spread, is drawn once, so that two configurations differ by what they do alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec
import numpy as np

from mainspring.messages.model import ModelSpec
from mainspring.planner.estimate import CONFIDENCE, interval, most_late
from mainspring.planner.problem import (
    DRAWS_SEED,
    Z99,
    DeviceKind,
    PlanError,
    Pool,
    Queries,
    Whole,
    messages_ns,
    multiples,
    read_kind,
    read_queries,
)
from mainspring.planner.queues import NEVER_NS, serve
from mainspring.simulator.cluster import build_cluster
from mainspring.simulator.graph_groups import GraphGroup, GraphStep
from mainspring.simulator.graphs import as_models, waits_for
from mainspring.simulator.spec import SimulationSpec

LEAST_SAMPLE = 1_000
"""Fewest arrivals that tell the 99th percentile of a graph."""


class Station(msgspec.Struct, frozen=True, order=True):
    """The devices of a step."""

    kind: int
    """Place of their kind."""
    batch: int
    """The largest batch, in rows."""
    replicas: int


Configuration = tuple[Station, ...]
"""A station for each step, in the order of the spec."""


@dataclass(frozen=True, eq=False)
class Step:
    """A step with its items: one for each row that a query has in it."""

    name: str
    model: str
    after: tuple[int, ...]
    """Places of the steps that it waits for."""
    query: Whole
    """Query of each item, ascending."""
    tables_ns: tuple[np.ndarray, ...]
    """Durations of batches of 1, 2 ... rows on each kind, up to the largest that it has a profile of."""
    spreads: tuple[np.ndarray, ...]
    """Multiples of these that the items draw, for each kind."""

    @property
    def alone(self) -> bool:
        """True if no query has two items."""
        return bool((np.diff(self.query) > 0).all())

    def throughput(self, kind: int, batch: int) -> float:
        """Return the rows that a device of a kind serves in a second, in batches of a size."""
        return float(1e9 * batch / self.tables_ns[kind][batch - 1] / self.spreads[kind].mean())

    def durations_ns(self, kind: int) -> Whole:
        """Return how long each item takes alone."""
        found: Whole = np.maximum(1, np.rint(self.tables_ns[kind][0] * self.spreads[kind])).astype(np.int64)
        return found


@dataclass(frozen=True, eq=False)
class GraphProblem:
    """A graph and its sample of arrivals, whose steps are to get devices."""

    spec: SimulationSpec
    name: str
    kinds: tuple[DeviceKind, ...]
    """`DeviceKind.most` is 0 where the spec sets no bound."""
    steps: tuple[Step, ...]
    queries: Queries
    between_ns: int
    """Time that a device is idle for messages from one batch to the next that waits."""
    around_ns: int
    """Time that a client waits for messages beyond that."""
    load: float = 1.0

    def at_load(self, load: float) -> GraphProblem:
        """Return the problem of the same queries at another rate, a multiple of this one's."""
        due_ns = np.rint(self.queries.due_ns / load).astype(np.int64)
        return replace(self, queries=replace(self.queries, due_ns=due_ns), load=self.load * load)

    @property
    def attainment(self) -> float:
        """The share of queries that are to end in time."""
        return self.spec.objective.attainment

    @cached_property
    def rates(self) -> tuple[float, ...]:
        """Rows that each step gets in a second."""
        return tuple(self.queries.rate * len(step.query) / len(self.queries) for step in self.steps)

    def price(self, found: Configuration) -> float:
        """Return what a configuration costs an hour."""
        return math.fsum(self.kinds[each.kind].price * each.replicas for each in found)

    def pool(self, found: Configuration) -> Pool:
        """Return how many devices of each kind a configuration has."""
        return tuple(
            sum(each.replicas for each in found if each.kind == place) for place in range(len(self.kinds))
        )


def read_graph_problem(spec: SimulationSpec) -> GraphProblem:
    """Return the problem of a spec whose workloads ask for one graph.

    Raises `PlanError` for what can't be planned, and as `read_problem`.
    """
    kinds = tuple(read_kind(number, group) for number, group in enumerate(spec.devices, start=1))
    if len({kind.name for kind in kinds}) < len(kinds):
        raise PlanError("two groups of devices are of one kind: a plan has one group for each kind")
    if any(kind.least for kind in kinds):
        raise PlanError("least is for plans of pools: take it out, since each step of a graph has a device")
    one_each = msgspec.structs.replace(
        spec, devices=tuple(msgspec.structs.replace(group, count=1) for group in spec.devices)
    )
    models = build_cluster(one_each).models
    try:
        known = (*models, *as_models(spec.graphs, models))
    except ValueError as error:
        raise PlanError(str(error)) from None
    queries = read_queries(one_each, known)
    if len(queries) < LEAST_SAMPLE:
        raise PlanError(f"a sample of {len(queries)} arrivals is too short: it takes {LEAST_SAMPLE:,}")
    graph = _asked_for(spec, known, queries)
    return GraphProblem(
        *(spec, graph.name, kinds, _steps(one_each, graph, models, queries), queries),
        *messages_ns(spec),
    )


def _asked_for(spec: SimulationSpec, known: Sequence[ModelSpec], queries: Queries) -> GraphGroup:
    """Return the graph that all queries are for; raise `PlanError` if it can't be planned."""
    names = [known[place].name for place in np.unique(queries.models).tolist()]
    graphs = {graph.name: graph for graph in spec.graphs}
    if not graphs and len(names) == 1:
        # A model that is no part of a graph is one of a single step.
        return GraphGroup(name=names[0], steps=(GraphStep(model=names[0]),))
    if len(names) > 1 or names[0] not in graphs:
        raise PlanError(
            f"a plan is for one graph, and the workloads ask for {', '.join(names)}: give them models = "
            + (" or ".join(repr(name) for name in graphs) or "one of these")
        )
    graph, families = graphs[names[0]], {family.name for family in spec.families}
    if graph.least or graph.apart or any(step.members or step.model in families for step in graph.steps):
        raise PlanError(f"graph {graph.name!r} is an ensemble, apart or has families, which can't be planned")
    return graph


def _steps(
    spec: SimulationSpec, graph: GraphGroup, models: Sequence[ModelSpec], queries: Queries
) -> tuple[Step, ...]:
    """Draw which queries take part in each step, and how their durations spread."""
    by_name, rng = {model.name: model for model in models}, np.random.default_rng([DRAWS_SEED, spec.seed])
    rows: list[Whole] = []
    found = []
    for step, after in zip(graph.steps, waits_for(graph), strict=True):
        before = np.minimum.reduce([rows[each] for each in after]) if after else queries.rows
        whole = int(step.share)
        rows.append(before * whole + rng.binomial(before, step.share - whole))
        query = np.repeat(np.arange(len(queries)), rows[-1])
        if not len(query):
            raise PlanError(f"no query of the sample comes to step {step.name or step.model!r}")
        found.append(_step(spec, step, after, by_name[step.model], query, rng))
    return tuple(found)


def _step(
    spec: SimulationSpec,
    step: GraphStep,
    after: tuple[int, ...],
    model: ModelSpec,
    query: Whole,
    rng: np.random.Generator,
) -> Step:
    if model.symbols:
        raise PlanError(f"{model.name} has an open dimension {model.symbols[0].name}: it can't be planned")
    normal, rank = rng.standard_normal(len(query)), rng.random(len(query))
    jitter = np.exp(spec.faults.duration_jitter * rng.standard_normal(len(query)))
    own = multiples(spec, model, normal, rank)
    tables, spreads = [], []
    for group in spec.devices:
        profile = model.profiles[group.kind]
        sizes = np.array(sorted(profile.infer_ns))
        by_size = np.array([profile.infer_ns[size] for size in sizes.tolist()], np.float64)
        tables.append(by_size[np.searchsorted(sizes, np.arange(1, sizes[-1] + 1))])
        varied = np.exp(math.log(max(1.0, profile.spread)) / Z99 * normal) if own is None else own
        spreads.append(varied * jitter)
    return Step(step.name or step.model, model.name, after, query, tuple(tables), tuple(spreads))


class GraphEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """The estimated performance of a configuration."""

    stations: Configuration
    price: float
    """Price of all its devices for an hour."""
    attainment: float
    """The share of queries that end in time; 0 of a clear violation, which is not played to its end."""
    low: float
    """The ends of its confidence interval."""
    high: float
    p50_ms: float
    p99_ms: float
    complete: bool
    """False for a clear violation."""

    def holds(self, attainment: float) -> bool:
        """Return whether the promise is kept: the interval's lower end keeps it."""
        return self.complete and self.low >= attainment


class GraphQueues:
    """Estimates configurations of a problem."""

    def __init__(self, problem: GraphProblem, confidence: float = CONFIDENCE) -> None:
        """``confidence`` from 0, for the bare share, to below 1."""
        self.problem = problem
        self.evaluations = 0
        """Configurations that were played."""
        self.confidence = confidence
        self._known: dict[Configuration, GraphEstimate] = {}
        self._durations = {
            (place, kind): step.durations_ns(kind)
            for place, step in enumerate(problem.steps)
            for kind in range(len(problem.kinds))
        }

    def evaluate(self, stations: Configuration) -> GraphEstimate:
        """Return what a configuration does with the sample, played if it is the first time."""
        if stations not in self._known:
            self._known[stations] = self._played(stations)
        return self._known[stations]

    @property
    def estimates(self) -> Sequence[GraphEstimate]:
        """Return all estimates, in the order in which they were made."""
        return list(self._known.values())

    def holds(self, stations: Configuration) -> bool:
        """Return whether a configuration keeps the promise."""
        return self.evaluate(stations).holds(self.problem.attainment)

    def latencies_ns(self, stations: Configuration) -> Whole | None:
        """Return the latency of each query, in order of arrival; None for a clear violation."""
        done_ns = self.play(stations)
        return None if done_ns is None else done_ns - self.problem.queries.due_ns + self.problem.around_ns

    def play(
        self,
        stations: Configuration | None,
        limit: int | None = None,
        *,
        only: tuple[int, Station] | None = None,
    ) -> Whole | None:
        """Return when each query ends; None as soon as more than ``limit`` are late.

        Without stations nothing waits, and each step is served at once on its fastest kind; but for ``only``,
        a step and its station.
        """
        queries, ends = self.problem.queries, list[Whole]()
        deadline_ns = queries.due_ns + queries.slo_ns - self.problem.around_ns
        deadline_ns[: queries.counted] = NEVER_NS
        for place, step in enumerate(self.problem.steps):
            ready_ns = _latest([ends[each] for each in step.after], queries.due_ns)
            items_ns = ready_ns[step.query]
            station = stations[place] if stations else only[1] if only and only[0] == place else None
            if station is None:
                fastest = self._durations[place, _fastest(step)]
                done_ns = items_ns + fastest + self.problem.between_ns
            else:
                # A query with several items in a step would count as late several times.
                most = NEVER_NS if limit is None or not step.alone else limit
                late_ns = deadline_ns[step.query]
                served = self._serve(place, station, items_ns, late_ns, most, sort=bool(step.after))
                if served is None:
                    return None
                done_ns = served
            ends.append(ready_ns.copy())
            if step.alone:
                ends[-1][step.query] = done_ns
            else:
                np.maximum.at(ends[-1], step.query, done_ns)
        return _latest(ends, queries.due_ns)

    def _serve(
        self, place: int, station: Station, due_ns: Whole, deadline_ns: Whole, limit: int, *, sort: bool
    ) -> Whole | None:
        """Return when each item of a step is done; None for a clear violation."""
        table_ns = self.problem.steps[place].tables_ns[station.kind][: station.batch]
        done_ns, _, served = serve(
            *(due_ns, self._durations[place, station.kind][None], [0] * station.replicas, deadline_ns, limit),
            between_ns=self.problem.between_ns,
            most=[station.batch],
            growth=np.concatenate([[1.0], table_ns / table_ns[0]])[None],
            in_order=not sort,
        )
        return done_ns if served == len(due_ns) else None

    def _played(self, stations: Configuration) -> GraphEstimate:
        problem = self.problem
        counted, slo_ns = problem.queries.counted, problem.queries.slo_ns
        self.evaluations += 1
        done_ns = self.play(stations, most_late(len(slo_ns) - counted, problem.attainment))
        price = problem.price(stations)
        if done_ns is None:
            shares = dict.fromkeys(("attainment", "low", "high", "p50_ms", "p99_ms"), 0.0)
            return GraphEstimate(stations=stations, price=price, **shares, complete=False)
        latency_ns = (done_ns - problem.queries.due_ns)[counted:] + problem.around_ns
        in_time = latency_ns <= slo_ns[counted:]
        low, high = interval(in_time, self.confidence)
        p50_ms, p99_ms = (np.quantile(latency_ns, [0.5, 0.99], method="inverted_cdf") / 1e6).tolist()
        return GraphEstimate(
            stations=stations,
            price=price,
            attainment=float(in_time.mean()),
            low=low,
            high=high,
            p50_ms=p50_ms,
            p99_ms=p99_ms,
            complete=True,
        )

    def least_slo(self) -> tuple[float, str]:
        """Return the least SLO in milliseconds that enough queries keep if none waits, on the fastest kinds
        in batches of one, and the step that takes most of it."""
        problem, counted = self.problem, self.problem.queries.counted
        done_ns = self.play(None)
        assert done_ns is not None
        latency_ns = (done_ns - problem.queries.due_ns)[counted:] + problem.around_ns
        # The first share whose interval holds is never below the bare share.
        order = np.argsort(latency_ns, kind="stable")
        rank = next(
            rank
            for rank in range(min(len(order) - 1, math.ceil(problem.attainment * len(order)) - 1), len(order))
            if rank == len(order) - 1
            or interval(latency_ns <= latency_ns[order[rank]], self.confidence)[0] >= problem.attainment
        )
        query, longest = int(order[rank]) + counted, self._longest(int(order[rank]) + counted)
        return float(latency_ns[query - counted]) / 1e6, problem.steps[longest].name

    def _longest(self, query: int) -> int:
        """Return the longest step on a query's longest path, if it never waits."""
        ends: list[tuple[int, int, int]] = []
        for place, step in enumerate(self.problem.steps):
            until = max([ends[each] for each in step.after], default=(0, 0, place))
            mine = slice(*np.searchsorted(step.query, [query, query + 1]).tolist())
            took_ns = int(self._durations[place, _fastest(step)][mine].max(initial=0))
            ends.append((until[0] + took_ns, *max(until[1:], (took_ns, place))))
        return max(ends)[2]


def _fastest(step: Step) -> int:
    """Return the kind of the lowest latency for a step."""
    return int(np.argmin([table[0] for table in step.tables_ns]))


def _latest(ends: Sequence[Whole], otherwise: Whole) -> Whole:
    found: Whole = np.maximum.reduce(ends) if ends else otherwise
    return found
