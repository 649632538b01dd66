"""Pairs of a model and a worker: an object where there is more to say, and a bit for all others."""

from __future__ import annotations

import tracemalloc

import pytest

from mainspring.cluster.placements import State
from mainspring.cluster.residency import (
    at,
    find,
    hosts,
    is_everywhere,
    is_hopeless,
    is_known,
    is_loadable,
    tidy,
)
from mainspring.cluster.state import Cluster
from mainspring.messages.actions import Prepare, Release
from mainspring.messages.codes import Status
from mainspring.messages.events import ModelAdded, ModelRemoved, WorkerJoined, WorkerLeft
from mainspring.simulator.scenario import random_scenario, run_to_end
from tests.scheduler.hand import Hand, spec


def objects(cluster: Cluster) -> list[str]:
    """The pairs that have an object, named."""
    workers = cluster.workers.values()
    return [f"{name} on {worker.name}" for worker in workers for name in sorted(worker.placements)]


@pytest.mark.parametrize("seed", range(6))
def test_after_a_turn_there_is_an_object_just_where_there_is_more_to_say(seed: int) -> None:
    simulation = random_scenario(seed)
    run_to_end(simulation)
    cluster = simulation.scheduler.cluster
    tidy(cluster)
    placements = [each for worker in cluster.workers.values() for each in worker.placements.values()]
    assert not [each for each in placements if each.plain], "these should be bits"
    pairs = sum(len(hosts(cluster, model)) for model in cluster.models.values())
    assert len(placements) < pairs or not pairs


def test_prepared_models_take_no_object() -> None:
    hand = Hand(spec("a"), spec("b"), spec("c"), workers=2)
    cluster = hand.scheduler.cluster
    assert objects(cluster) == []
    assert all(
        is_loadable(model, worker) for model in cluster.models.values() for worker in hosts(cluster, model)
    )
    hand.request(1, 1, "b", 100)
    assert objects(cluster) == ["b on w0"], "it is loading there"


def test_a_pair_that_is_only_looked_at_stays_a_bit() -> None:
    hand = Hand(spec("a"))
    cluster = hand.scheduler.cluster
    worker, model = cluster.workers["w0"], cluster.models["a"]
    assert at(cluster, model, worker, keep=False).state is State.PREPARED
    assert find(cluster, worker, "other", keep=False) is None
    assert objects(cluster) == []
    placement = find(cluster, worker, "a")
    assert placement is not None
    assert placement is at(cluster, model, worker)
    assert objects(cluster) == ["a on w0"]
    tidy(cluster)
    assert objects(cluster) == []


@pytest.mark.parametrize("said", ["detail", "note", "leaving"])
def test_what_was_noted_about_a_pair_keeps_its_object(said: str) -> None:
    hand = Hand(spec("a"))
    cluster = hand.scheduler.cluster
    placement = at(cluster, cluster.models["a"], cluster.workers["w0"])
    setattr(placement, said, "no such file" if said != "leaving" else True)
    tidy(cluster)
    assert find(cluster, cluster.workers["w0"], "a") is placement


def test_the_worker_that_takes_a_seat_has_nothing_of_the_one_before() -> None:
    hand = Hand(spec("a"), workers=2)
    hand.feed(1, WorkerLeft("w0", "gone"))
    hand.feed(2, WorkerJoined("new", "gpu", 8))
    cluster = hand.scheduler.cluster
    model, new = cluster.models["a"], cluster.workers["new"]
    assert new.bit == 1, "it has the seat of w0"
    assert not is_loadable(model, new)
    assert at(cluster, model, new, keep=False).state is State.PREPARING
    assert is_loadable(model, cluster.workers["w1"])


def test_a_model_is_absent_where_the_one_that_it_replaced_has_yet_to_go() -> None:
    hand = Hand(spec("a"), workers=2)
    cluster = hand.scheduler.cluster
    releases = [
        each for each in hand.feed(1, ModelAdded(spec("a", version="2"))) if isinstance(each, Release)
    ]
    model = cluster.models["a"]
    assert [release.worker for release in releases] == ["w0", "w1"]
    assert hosts(cluster, model) == []
    assert is_everywhere(cluster, model), "there is no further worker that could load it"
    (prepare,) = [each for each in hand.ok(2, releases[0]) if isinstance(each, Prepare)]
    assert hosts(cluster, model) == [cluster.workers["w0"]]
    hand.ok(3, prepare)
    assert is_loadable(model, cluster.workers["w0"])
    assert not is_loadable(model, cluster.workers["w1"])


def test_a_model_that_is_removed_before_it_was_prepared_leaves_nothing() -> None:
    hand = Hand()
    for number in range(4):
        hand.feed(0, ModelAdded(spec(f"m{number}")))
    hand.feed(0, WorkerJoined("late", "gpu", 8))
    cluster = hand.scheduler.cluster
    worker = cluster.workers["late"]
    waiting = next(name for name, model in cluster.models.items() if is_known(model, worker))
    hand.feed(1, ModelRemoved(waiting))
    assert find(cluster, worker, waiting) is None


def test_a_model_is_hopeless_once_no_worker_can_ever_run_it() -> None:
    hand = Hand(spec("a"), workers=0)
    cluster = hand.scheduler.cluster
    model = cluster.models["a"]
    assert not is_hopeless(cluster, model), "no worker is there yet"
    (prepare,) = hand.feed(1, WorkerJoined("w0", "gpu", 8))
    assert isinstance(prepare, Prepare)
    assert not is_known(model, cluster.workers["w0"])
    hand.end(2, prepare, Status.ENGINE_ERROR)
    assert is_hopeless(cluster, model)


def test_a_worker_more_costs_hardly_any_memory_for_each_model() -> None:
    specs = [spec(f"m{number}") for number in range(400)]
    prepared = {each.name: each.artifact for each in specs}
    hand = Hand(*specs, workers=0)
    hand.scheduler.handle(0, WorkerJoined("w0", "gpu", 8, prepared))
    hand.scheduler.cluster.device_kinds.settle()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(1, 21):
        hand.scheduler.handle(0, WorkerJoined(f"w{number}", "gpu", 8, prepared))
        hand.scheduler.schedule(0)
    while hand.scheduler.cluster.joining:
        hand.scheduler.schedule(0)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown / (20 * len(specs)) < 24, "a placement takes ten times that"
