"""A reader that begins late, with a snapshot made while things go on, has the scheduler's own state."""

from __future__ import annotations

import random
import typing
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from mainspring.cluster.apply import apply, settle
from mainspring.cluster.follow import follow
from mainspring.cluster.snapshot import AT_ONCE, Part, snapshot
from mainspring.cluster.state import Cluster
from mainspring.cluster.validate import validate
from mainspring.messages.actions import (
    Command,
    DropWorker,
    Infer,
    Load,
    Open,
    Prepare,
    Release,
    Result,
    Unload,
)
from mainspring.messages.events import (
    Event,
    ModelAdded,
    ModelRemoved,
    OperatorAsked,
    QueryArrived,
    RequestArrived,
    RequestCancelled,
    WorkerJoined,
    WorkerLeft,
)
from mainspring.messages.graphs import GraphSpec, StepSpec
from mainspring.messages.ids import request_id
from mainspring.messages.operating import SetGraph
from mainspring.messages.queries import QueryStep
from mainspring.messages.snapshot import ModelState, Told
from mainspring.simulator.scenario import (
    MILLISECOND,
    SECOND,
    give_symbols,
    random_model,
    random_scenario,
    run_to_end,
)
from mainspring.simulator.simulation import Simulation
from tests.cluster.described import described
from tests.cluster.test_apply import OPEN_NS, disturb, reader
from tests.fuzz import seeded, seeds
from tests.scheduler.hand import spec

GRAPH = GraphSpec(
    name="g",
    inputs=("x",),
    steps=(StepSpec(name="first", model="m0", inputs={"x": "x"}),),
    outputs={"y": "first.y"},
)
_ENTRIES = msgspec.msgpack.Decoder(list[Told])


def shaped(seed: int) -> bool:
    """Return whether some models of a scenario have symbols."""
    return seed % 4 == 3


def unlike(seed: int) -> bool:
    """Return whether devices of a scenario run unlike artifacts."""
    return seed % 4 == 1


def carried(part: Part) -> list[Told]:
    """Return a part as it arrives over the wire."""
    return _ENTRIES.decode(msgspec.msgpack.encode(part))


def replace_models(simulation: Simulation, seed: int) -> None:
    """Have models replaced, removed and added while workers still have the former ones."""
    rng, drawn = random.Random(seed), np.random.default_rng(seed)
    for _ in range(rng.randrange(25)):
        at_ns, name = rng.randrange(2 * SECOND), f"m{rng.randrange(20)}"
        if rng.random() < 0.5:
            simulation.feed(at_ns, ModelRemoved(name))
        executable = f"graph of {name}, {rng.randrange(2)}"
        model = random_model(drawn, name, executable)
        model = give_symbols(drawn, model) if shaped(seed) and rng.random() < 0.7 else model
        simulation.feed(at_ns + rng.randrange(SECOND // 5), ModelAdded(model))


class LateReader:
    """A reader for which a snapshot begins at once, and goes on part by part."""

    def __init__(self, source: Cluster, cluster: Cluster) -> None:
        self.cluster = cluster
        self._parts: Iterator[Part] | None = snapshot(source)
        self.slices = 0

    @property
    def whole(self) -> bool:
        return self._parts is None

    def go_on(self, now_ns: int, parts: int) -> None:
        self.slices += 1
        for _ in range(parts):
            part = None if self._parts is None else next(self._parts, None)
            if part is None:
                self._parts = None
                return
            for entry in carried(part):
                follow(self.cluster, now_ns, entry)


class Followed:
    """A simulation, at random instants of which readers begin."""

    def __init__(self, seed: int, policy: str) -> None:
        self._entries: list[tuple[int, Event | Command]] = []
        self.simulation = random_scenario(
            seed,
            policy,
            record=lambda *entry: self._entries.append(entry),
            open_ns=OPEN_NS[seed % 3],
            shaped=shaped(seed),
            unlike=unlike(seed),
        )
        disturb(self.simulation, seed)
        replace_models(self.simulation, seed)
        self._rng = random.Random(seed)
        self._source = self.simulation.scheduler._state.cluster
        self._beginning = 0.1
        self.readers: list[LateReader] = []
        self.compared = 0
        self._now_ns = 0
        self.simulation.controller._validate, self.simulation.controller._validate_every = self._turned, 1

    def _turned(self) -> None:
        self._tell()
        for late in self.readers:
            if not late.whole and self._rng.random() < 0.5:
                late.go_on(self._now_ns, self._rng.randrange(1, 6))
                if late.whole:
                    self._compare(late)
            elif late.whole and self._rng.random() < 0.01:
                self._compare(late)
        if len(self.readers) < 6 and self._rng.random() < self._beginning:
            self._beginning = 0.02
            self.readers.append(LateReader(self._source, reader(self.simulation.scheduler.config)))

    def _tell(self) -> None:
        for now_ns, entry in self._entries:
            for late in self.readers:
                follow(late.cluster, now_ns, entry)
            self._now_ns = now_ns
        self._entries.clear()

    def _compare(self, late: LateReader) -> None:
        settle(late.cluster)
        validate(late.cluster)
        assert described(late.cluster) == described(self._source)
        assert list(late.cluster.models) == list(self._source.models)
        assert list(late.cluster.workers) == list(self._source.workers)
        self.compared += 1

    def end(self) -> None:
        self._tell()
        for late in self.readers:
            if late.whole:
                self._compare(late)


PLAYED = [("mainspring", seed) for seed in seeds(24)]
PLAYED += [(policy, seed) for policy in ("clockwork", "edf") for seed in seeds(6, first=24)]


@pytest.mark.seeded
@pytest.mark.parametrize(("policy", "seed"), PLAYED)
def test_a_late_reader_has_the_schedulers_state(policy: str, seed: int) -> None:
    followed = Followed(seed, policy)
    run_to_end(followed.simulation)
    followed.end()
    assert followed.compared > 1
    assert max(late.slices for late in followed.readers) > 3


class Outstanding:
    """What the stream says of actions alone: who was sent what, and has not answered."""

    def __init__(self) -> None:
        self._of: dict[int, str] = {}

    def take(self, entry: Event | Command) -> None:
        match entry:
            case Infer() | Open() | Load() | Unload() | Prepare() | Release():
                self._of[entry.action_id] = entry.worker
            case Result():
                self._of.pop(entry.action_id, None)
            case WorkerLeft(worker=name) | DropWorker(worker=name) | WorkerJoined(worker=name):
                self._of = {action: worker for action, worker in self._of.items() if worker != name}

    @property
    def ids(self) -> list[int]:
        return sorted(self._of)


def outstanding(cluster: Cluster) -> list[int]:
    found: list[int] = []
    for worker in cluster.workers.values():
        found += [action.action_id for action in worker.exec.actions()]
        found += [action.action_id for action in worker.load.actions()]
        found += worker.others
    return sorted(found)


@seeded(40)
def test_a_log_without_its_beginning_tells_what_is_outstanding(seed: int) -> None:
    entries: list[tuple[int, Event | Command]] = []
    simulation = random_scenario(
        seed,
        "mainspring",
        validate_every=20,
        record=lambda *entry: entries.append(entry),
        open_ns=OPEN_NS[seed % 3],
        shaped=shaped(seed),
    )
    disturb(simulation, seed)
    run_to_end(simulation)
    rng = random.Random(seed)
    begin = rng.randrange(len(entries) * 3 // 4)
    cluster, expected = reader(simulation.scheduler.config), Outstanding()
    for count, (now_ns, entry) in enumerate(entries[begin:]):
        follow(cluster, now_ns, entry)
        expected.take(entry)
        if count % 20 == 0:
            assert outstanding(cluster) == expected.ids
    assert outstanding(cluster) == expected.ids


def test_every_entry_of_a_snapshot_is_carried() -> None:
    simulation = random_scenario(3, "mainspring")
    disturb(simulation, 3)
    simulation.feed(680 * MILLISECOND, OperatorAsked("a client", SetGraph("g", GRAPH)))
    for number in range(8):
        steps = (QueryStep(f"m{number}", 3, name="first", share=0.25),)
        simulation.feed(690 * MILLISECOND, QueryArrived(request_id(9, 1 + number), None, steps, graph="g"))
    simulation.run(700 * MILLISECOND)
    source = simulation.scheduler._state.cluster
    entries = [entry for part in snapshot(source) for entry in part]
    assert {type(entry) for entry in entries} == set(typing.get_args(Told))
    late = LateReader(source, reader(simulation.scheduler.config))
    late.go_on(0, 1_000_000)
    assert late.whole
    assert described(late.cluster) == described(source)
    assert late.cluster.graph_shares == {"g": {"first": 0.25}}


@seeded(5, also=[302, 780_001])  # A PREPARE of the second ends when nothing is known of its model.
def test_a_log_with_gaps_can_be_followed(seed: int) -> None:
    entries: list[tuple[int, Event | Command]] = []
    simulation = random_scenario(
        seed,
        "mainspring",
        validate_every=20,
        record=lambda *entry: entries.append(entry),
        open_ns=OPEN_NS[seed % 3],
        shaped=shaped(seed),
    )
    disturb(simulation, seed)
    run_to_end(simulation)
    rng = random.Random(seed)
    for kept in (0.98, 0.7, 0.5):
        cluster = reader(simulation.scheduler.config)
        for now_ns, entry in entries:
            if rng.random() < kept:
                follow(cluster, now_ns, entry)


@seeded(8)
def test_an_entry_that_comes_twice_changes_nothing(seed: int) -> None:
    entries: list[tuple[int, Event | Command]] = []
    simulation = random_scenario(
        seed,
        "mainspring",
        validate_every=20,
        record=lambda *entry: entries.append(entry),
        open_ns=OPEN_NS[seed % 3],
        shaped=shaped(seed),
    )
    disturb(simulation, seed)
    run_to_end(simulation)
    config = simulation.scheduler.config
    # The second reader has missed the beginning, so that it makes things up.
    for begin in (0, len(entries) // 3):
        once, twice = reader(config), reader(config)
        for count, (now_ns, entry) in enumerate(entries[begin:]):
            follow(once, now_ns, entry)
            follow(twice, now_ns, entry)
            follow(twice, now_ns, entry)
            if count % 100 == 0:
                settle(once)
                settle(twice)
                assert described(once) == described(twice)
        assert described(once) == described(twice)


def test_a_model_that_is_replaced_before_its_counts_are_told_goes_on_with_them() -> None:
    source, late = Cluster(), Cluster()
    for index in range(AT_ONCE + 1):
        apply(source, 1, ModelAdded(spec(f"m{index}")))
    name = f"m{AT_ONCE}"
    apply(source, 2, RequestArrived(1, name, 1, None))
    apply(source, 2, RequestCancelled(1))
    parts = snapshot(source)
    for part in parts:
        for entry in carried(part):
            follow(late, 2, entry)
        if any(isinstance(entry, ModelState) for entry in part):
            break
    replaced = ModelAdded(spec(name, version="2"))
    apply(source, 3, replaced)
    follow(late, 3, replaced)
    for part in parts:
        for entry in carried(part):
            follow(late, 3, entry)
    assert late.models[name].counts.arrived == 1
    assert described(late) == described(source)
