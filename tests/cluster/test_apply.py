"""A reader that applies what the log says has the scheduler's own state, after every turn."""

from __future__ import annotations

import random

import pytest

from mainspring.cluster.apply import apply, settle
from mainspring.cluster.state import Cluster
from mainspring.cluster.validate import validate
from mainspring.messages import operating
from mainspring.messages.actions import Command
from mainspring.messages.events import (
    Event,
    GatewayLeft,
    ModelRestored,
    OperatorAsked,
    QueryArrived,
    RequestArrived,
    RequestCancelled,
)
from mainspring.messages.ids import request_id
from mainspring.messages.queries import QueryStep
from mainspring.scheduler.config import SchedulerConfig, milliseconds
from mainspring.scheduler.core import Scheduler
from mainspring.simulator.provider import Pool
from mainspring.simulator.scenario import MILLISECOND, SECOND, random_scenario, run_to_end
from mainspring.simulator.simulation import Simulation
from tests.cluster.described import described
from tests.fuzz import seeded, seeds

OPEN_NS = 0, 30 * MILLISECOND, 300 * MILLISECOND
"""How long executables of models that come later take to be opened, by the seed."""


def reader(config: SchedulerConfig) -> Cluster:
    delay_ns = milliseconds(config.dispatch_delay_ms)
    return Cluster(config.estimate_rank, delay_ns, milliseconds(config.response_margin_ms))


def disturb(simulation: Simulation, seed: int) -> None:
    """Add what scenarios lack: operators, priorities, a gateway that leaves, files that are mended."""
    rng = random.Random(seed)
    for _ in range(rng.randrange(8)):
        at_ns, model, worker = rng.randrange(2 * SECOND), f"m{rng.randrange(20)}", f"w{rng.randrange(4)}"
        commands = (
            operating.DrainWorker(worker),
            operating.ResumeWorker(worker),
            operating.PinModel(model),
            operating.UnpinModel(model),
            operating.LoadOn(model, worker),
            operating.UnloadFrom(model, worker),
            operating.AssignModel(f"m{rng.randrange(8)}", rng.randrange(3), rng.randrange(2)),
        )
        simulation.feed(at_ns, OperatorAsked("an operator", rng.choice(commands)))
        simulation.feed(at_ns + rng.randrange(SECOND), ModelRestored(worker, model))
    scale(simulation, rng)
    for count in range(rng.randrange(80)):
        at_ns = rng.randrange(2 * SECOND)
        deadline_ns = rng.choice([None, at_ns + rng.randrange(5 * MILLISECOND, 200 * MILLISECOND)])
        event = RequestArrived(
            request_id(5, count), f"m{rng.randrange(8)}", 1, deadline_ns, priority=rng.randrange(3)
        )
        simulation.feed(at_ns, event)
    for count in range(rng.randrange(12)):
        query(simulation, rng, request_id(5, 1000 * (1 + count)))
    if rng.random() < 0.3:
        simulation.feed(rng.randrange(2 * SECOND), GatewayLeft(rng.choice([0, 5])))


def query(simulation: Simulation, rng: random.Random, query_id: int) -> None:
    """Have a query of two steps come, whose later pieces follow and which may be cancelled."""
    at_ns, models = rng.randrange(2 * SECOND), [f"m{rng.randrange(8)}" for _ in range(2)]
    deadline_ns = rng.choice([None, at_ns + rng.randrange(20 * MILLISECOND, 400 * MILLISECOND)])
    rows = rng.randrange(2, 12)
    steps = QueryStep(models[0], rows), QueryStep(models[1], 2, after=(0,), required=rng.random() < 0.8)
    simulation.feed(at_ns, QueryArrived(query_id, deadline_ns, steps[: rng.randrange(1, 3)]))
    for count in range(rows + 2):
        step = int(count >= rows)
        later_ns = rng.randrange(50 * MILLISECOND) * step
        piece = RequestArrived(query_id + count + 1, models[step], 1, deadline_ns, query=query_id, step=step)
        simulation.feed(at_ns + later_ns, piece)
    if rng.random() < 0.5:
        simulation.feed(at_ns + rng.randrange(300 * MILLISECOND), RequestCancelled(query_id))


def scale(simulation: Simulation, rng: random.Random) -> None:
    """Have the cluster grow and shrink, and its provider come and go."""
    if rng.random() < 0.5:
        return
    largest = max(model.pages for model in simulation.scheduler.cluster.models.values())
    kind = next(iter(simulation.workers.values())).kind
    runs = tuple(worker.name for worker in simulation.workers.values() if worker.kind == kind)
    pool = Pool(
        kind=kind, pages=largest, workers=runs, start_ns=rng.randrange(SECOND), failure_probability=0.3
    )
    provider = simulation.provide([pool])
    for _ in range(rng.randrange(1, 6)):
        at_ns = rng.randrange(2 * SECOND)
        simulation.feed(at_ns, OperatorAsked("ann", operating.ScaleWorkers(kind, rng.randrange(6))))
        if rng.random() < 0.2:
            simulation.at(at_ns, provider.disconnect)
            simulation.at(at_ns + SECOND // 2, provider.connect)


class Compared:
    """A simulation, and beside it a reader of what it records."""

    def __init__(self, seed: int, policy: str, *, shaped: bool = False, unlike: bool = False) -> None:
        self._entries: list[tuple[int, Event | Command]] = []
        self.simulation = random_scenario(
            seed,
            policy,
            record=lambda *entry: self._entries.append(entry),
            open_ns=OPEN_NS[seed % 3],
            shaped=shaped,
            unlike=unlike,
        )
        disturb(self.simulation, seed)
        self.cluster = reader(self.simulation.scheduler.config)
        self.turns = 0
        self.simulation.controller._validate, self.simulation.controller._validate_every = self._turned, 1

    def _turned(self) -> None:
        self.turns += 1
        if self.turns % 20 == 0:
            self.compare()

    def compare(self) -> None:
        for now_ns, entry in self._entries:
            apply(self.cluster, now_ns, entry)
        self._entries.clear()
        settle(self.cluster)
        validate(self.cluster)
        assert described(self.cluster) == described(self.simulation.scheduler._state.cluster)


PLAYED = [("mainspring", seed) for seed in seeds(14)]
PLAYED += [(policy, seed) for policy in ("clockwork", "edf") for seed in seeds(4, first=14)]


@pytest.mark.seeded
@pytest.mark.parametrize(("policy", "seed"), PLAYED)
def test_the_fold_of_the_log_is_the_schedulers_state(policy: str, seed: int) -> None:
    compared = Compared(seed, policy)
    run_to_end(compared.simulation)
    compared.compare()
    assert compared.turns > 20


@seeded(8, first=20)
def test_it_is_so_of_models_with_buckets_of_shapes(seed: int) -> None:
    compared = Compared(seed, ("mainspring", "clockwork", "nexus")[seed % 3], shaped=True)
    run_to_end(compared.simulation)
    compared.compare()
    assert compared.turns > 20


@seeded(8, first=30)
def test_it_is_so_where_devices_run_unlike_artifacts(seed: int) -> None:
    policy = ("mainspring", "clockwork", "nexus")[seed % 3]
    compared = Compared(seed, policy, shaped=seed % 2 == 1, unlike=True)
    run_to_end(compared.simulation)
    compared.compare()
    assert compared.turns > 20


@seeded(5)
def test_it_is_so_where_several_events_come_between_two_decisions(seed: int) -> None:
    events: list[tuple[int, Event]] = []

    def keep(now_ns: int, entry: Event | Command) -> None:
        if isinstance(entry, Event):
            events.append((now_ns, entry))

    simulation = random_scenario(seed, "mainspring", validate_every=20, record=keep)
    disturb(simulation, seed)
    run_to_end(simulation)
    scheduler, rng = Scheduler(simulation.scheduler.config), random.Random(seed)
    cluster = reader(scheduler.config)
    for count, (now_ns, event) in enumerate(events):
        scheduler.handle(now_ns, event)
        for entry in (event, *scheduler.taken()):
            apply(cluster, now_ns, entry)
        if rng.random() < 0.3:
            for command in scheduler.schedule(now_ns):
                apply(cluster, now_ns, command)
        if count % 50 == 0:
            settle(cluster)
            assert described(cluster) == described(scheduler._state.cluster)
