"""A plan of moves so that no shard has to refuse requests while another one has time. Pure.

Of each shard it is measured which requests came over a while, and how many it refused. What it was asked for
is its *load*: the devices that its requests need, in the best batches that those can fill which come within a
deadline. How busy the devices were says less: where there is time, batches are begun with fewer requests, so
that a shard at two thirds of what it can do looks as busy as one that refuses.

Models leave shards that refuse, or are asked for more than they can do, and have more load than the average,
each for the one with the least, as long as that stays below the average. Requests for models that are not
resident are refused anywhere, so those with less load may refuse some, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from mainspring.messages.metrics import ClusterMetrics
from mainspring.messages.model import ModelSpec
from mainspring.messages.status import ClusterStatus

REFUSES = 0.005
"""A shard refuses if this share of its requests was rejected."""
SPARE = 0.6
"""A shard gives a worker away if the others have at most this load then."""


class Observed(msgspec.Struct, frozen=True):
    """One shard over a while."""

    number: int
    workers: tuple[str, ...]
    largest_pages: int
    """Pages of the worker that has most."""
    busy: float
    """Share of the time that its devices executed."""
    arrived: dict[str, int]
    """Requests by model, of those that had any."""
    rejected: int
    pages: dict[str, int]
    """Pages of each model."""
    needs: dict[str, float] = {}
    """Devices that each model's requests need (`needed`); empty where no model's durations are known, which
    then share evenly what the devices did."""
    fixed: frozenset[str] = frozenset()
    """Models that stay: those of a model repository, whose versions are together where hashing puts them."""

    @property
    def requests(self) -> int:
        """Return the number of requests that arrived."""
        return sum(self.arrived.values())

    @property
    def refuses(self) -> bool:
        """Return whether it refuses more than it should."""
        return self.rejected > REFUSES * self.requests

    @property
    def overloaded(self) -> bool:
        """Return whether it refuses more than it should, or is asked for more than its devices can do."""
        return self.refuses or (bool(self.needs) and self.load > 1.0)

    @property
    def load(self) -> float:
        """Return the work that it was asked for, as a share of what its devices can do."""
        if self.needs and self.workers:
            return sum(self.needs.values()) / len(self.workers)
        if not self.rejected:
            return self.busy
        served = self.requests - self.rejected
        return self.busy * self.requests / served if served > 0 else 1.0 + self.busy


class ModelMove(msgspec.Struct, frozen=True):
    """A model that another shard is to have."""

    model: str
    source: int
    target: int


class WorkerMove(msgspec.Struct, frozen=True):
    """A worker that another shard is to have."""

    worker: str
    source: int
    target: int


class Plan(msgspec.Struct, frozen=True):
    """The moves to make, and why there are no more."""

    models: tuple[ModelMove, ...] = ()
    workers: tuple[WorkerMove, ...] = ()
    why: str = ""


def needed(infer_ns: Mapping[int, int], rate: float, slo_ns: int | None) -> float:
    """Return the devices that a model's requests need at ``rate`` a second, with a deadline of ``slo_ns``.

    In the best batch that ends within the deadline and that the requests fill which come within one.
    ``infer_ns`` has durations by batch size.
    """
    most = math.inf if slo_ns is None else max(1.0, rate * slo_ns / 1e9)
    smallest = min(infer_ns)
    each_ns = min(
        duration_ns / min(size, most)
        for size, duration_ns in infer_ns.items()
        if size == smallest or slo_ns is None or duration_ns <= slo_ns
    )
    return rate * each_ns / 1e9


def observed(
    number: int,
    before: tuple[ClusterStatus, ClusterMetrics],
    after: tuple[ClusterStatus, ClusterMetrics],
    interval_s: float,
    specs: Mapping[str, ModelSpec],
) -> Observed:
    """Return a shard by what its controller said at the beginning and at the end of a while.

    ``specs``: its models, by name.
    """
    old = {model.name: model for model in before[0].models}
    arrived, rejected, needs = {}, 0, {}
    kinds = [worker.device_kind for worker in after[0].workers]
    usual = max(kinds, key=kinds.count, default="")
    for model in after[0].models:
        was = old.get(model.name)
        came = model.arrived - (was.arrived if was is not None else 0)
        rejected += max(0, model.rejected - (was.rejected if was is not None else 0))
        if came > 0:
            arrived[model.name] = came
            infer_ns = _durations(specs.get(model.name), usual)
            if infer_ns:
                needs[model.name] = needed(infer_ns, came / interval_s, model.slo_ns)
    known = {worker.worker: worker.busy_ns.get("exec", 0) for worker in before[1].workers}
    busy_ns = sum(
        max(0, worker.busy_ns.get("exec", 0) - known.get(worker.worker, 0)) for worker in after[1].workers
    )
    workers = after[0].workers
    return Observed(
        number=number,
        workers=tuple(worker.worker for worker in workers),
        largest_pages=max((worker.pages for worker in workers), default=0),
        busy=busy_ns / (interval_s * 1e9 * len(workers)) if workers else 1.0,
        arrived=arrived,
        rejected=rejected,
        pages={model.name: model.pages for model in after[0].models},
        needs=needs if len(needs) == len(arrived) else {},
        fixed=frozenset([name for name, spec in specs.items() if spec.served_as]),
    )


def _durations(spec: ModelSpec | None, kind: str) -> dict[int, int]:
    """Return how long a model's batches take on a kind of device by its profile, or on another one."""
    if spec is None:
        return {}
    profile = spec.profiles.get(kind) or next(iter(spec.profiles.values()), None)
    return {} if profile is None else profile.infer_ns


def plan(shards: Sequence[Observed], most_models: int = 100) -> Plan:
    """Return what to move off the shards that refuse: at most ``most_models``."""
    serving = [shard for shard in shards if shard.workers]
    if not any(shard.overloaded for shard in serving):
        return Plan(why="no shard refuses more than it should")
    average = _average(serving)
    refusing = [shard for shard in serving if shard.overloaded and shard.load > average]
    others = [shard for shard in serving if shard.load < average]
    if not refusing or not others:
        return Plan(
            why="the shards that refuse have no more load than others: the cluster needs more workers"
        )
    moves = _models(refusing, others, average, most_models)
    if moves:
        return Plan(models=moves)
    source = max(refusing, key=lambda shard: (shard.load, -shard.number))
    target = min(others, key=lambda shard: (shard.load, shard.number))
    count = len(target.workers)
    if count > 1 and target.load * count / (count - 1) <= SPARE:
        return Plan(workers=(WorkerMove(target.workers[-1], target.number, source.number),))
    return Plan(
        why=f"shard {source.number} refuses, and no other one has time for any of its models: the cluster "
        "needs more workers"
    )


def _models(
    refusing: Sequence[Observed], others: Sequence[Observed], average: float, most: int
) -> tuple[ModelMove, ...]:
    """Return the models whose moves bring shards' loads nearer to the average: the busiest that go in."""
    shards = {shard.number: shard for shard in (*refusing, *others)}
    counts = {number: len(shard.workers) for number, shard in shards.items()}
    loads = {number: shard.load * counts[number] for number, shard in shards.items()}
    """Load of each shard, in devices."""
    left = {shard.number: _by_demand(shard) for shard in refusing}
    moves: list[ModelMove] = []
    while len(moves) < most and left:
        source = max(left, key=lambda number: (loads[number] / counts[number], -number))
        target = min(others, key=lambda shard: (loads[shard.number] / counts[shard.number], shard.number))
        most_there = average * counts[target.number] - loads[target.number]
        excess = loads[source] - average * counts[source]
        known = shards[source].pages
        fitting = [
            (name, demand)
            for name, demand in left[source]
            if demand <= min(most_there, excess) and known.get(name, 0) <= target.largest_pages
        ]
        if not fitting:
            del left[source]
            continue
        name, demand = fitting[0]
        left[source].remove((name, demand))
        loads[source] -= demand
        loads[target.number] += demand
        moves.append(ModelMove(name, source, target.number))
    return tuple(moves)


def _average(shards: Sequence[Observed]) -> float:
    """Return the load of all shards together."""
    workers = sum(len(shard.workers) for shard in shards)
    return sum(shard.load * len(shard.workers) for shard in shards) / workers


def _by_demand(shard: Observed) -> list[tuple[str, float]]:
    """Return each model that was asked for with the devices that it needs, the busiest first."""
    needs = shard.needs
    if not needs and shard.requests:
        each = shard.load * len(shard.workers) / shard.requests
        needs = {name: each * count for name, count in shard.arrived.items()}
    movable = [(name, need) for name, need in needs.items() if name not in shard.fixed]
    return sorted(movable, key=lambda each: (-each[1], each[0]))


def busiest(arrived: Mapping[str, int], known: Sequence[str], count: int) -> tuple[str, ...]:
    """Return this many models, those with the most requests first, then by name."""
    return tuple(sorted(known, key=lambda name: (-arrived.get(name, 0), name))[:count])
