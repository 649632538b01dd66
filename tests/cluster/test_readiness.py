"""Whether a model's requests could be answered, by where it is and what its workers do."""

from __future__ import annotations

import pytest

from mainspring.cluster.readiness import takers, why_not
from mainspring.cluster.residency import is_barred, is_loadable
from mainspring.messages.codes import Status
from mainspring.messages.events import ModelAdded, OperatorAsked, WorkerJoined, WorkerLeft
from mainspring.messages.operating import AssignModel, DrainWorker, ResumeWorker
from mainspring.simulator.scenario import random_scenario, run_to_end
from tests.scheduler.hand import Hand, spec


def said(hand: Hand, model: str = "a", *silent: str) -> str:
    cluster = hand.scheduler.cluster
    return why_not(cluster, cluster.models[model], takers(cluster, frozenset(silent)))


def test_a_model_is_ready_while_a_worker_that_takes_work_has_it() -> None:
    hand = Hand(spec("a"), workers=2)
    assert said(hand) == ""
    assert said(hand, "a", "w0") == "", "the other one has it, too"
    assert said(hand, "a", "w0", "w1") == "no worker: w0, w1 give no sign of life"
    hand.feed(1, WorkerLeft("w0", "gone"))
    assert (said(hand), said(hand, "a", "w1")) == ("", "no worker: w1 gives no sign of life")
    hand.feed(2, OperatorAsked("me", DrainWorker("w1")))
    assert said(hand) == "no worker: w1 was drained by an operator"
    hand.feed(3, OperatorAsked("me", ResumeWorker("w1")))
    assert said(hand) == ""
    hand.feed(4, WorkerLeft("w1", "gone"))
    assert said(hand) == "no worker: none is connected"


def test_it_is_ready_wherever_its_weights_are_on_their_way() -> None:
    hand = Hand(spec("a"))
    (load,) = hand.request(1, 1, "a", 100)
    assert said(hand) == ""
    hand.ok(9, load)
    assert said(hand) == ""


def test_one_that_fits_no_worker_can_not_be_loaded() -> None:
    hand = Hand(spec("a", pages=9), spec("b"), pages=8)
    assert said(hand) == "can't be loaded: model 'a' needs 9 pages and the largest worker has 8"
    assert said(hand, "b") == ""
    hand.prepare(hand.feed(1, WorkerJoined("large", "gpu", 16)))
    assert said(hand) == ""


def test_it_is_starting_until_it_is_prepared_and_tells_why_it_can_not_be() -> None:
    hand = Hand(workers=1)
    (prepare,) = hand.feed(1, ModelAdded(spec("a")))
    assert said(hand) == "starting: the workers prepare it"
    hand.end(2, prepare, Status.ENGINE_ERROR, "weights.bin can't be read")
    assert said(hand).startswith("can't be loaded: no worker could run model 'a'; w0 says: weights.bin can't")


def test_a_worker_that_gives_no_sign_of_life_is_not_blamed_for_what_no_worker_could_run() -> None:
    hand = Hand(spec("a", pages=9), pages=8, workers=1)
    assert said(hand, "a", "w0") == "can't be loaded: model 'a' needs 9 pages and the largest worker has 8"
    (prepare,) = hand.feed(1, ModelAdded(spec("b")))
    assert said(hand, "b", "w0") == "no worker: w0 gives no sign of life"
    hand.end(2, prepare, Status.ENGINE_ERROR, "weights.bin can't be read")
    assert said(hand, "b", "w0").startswith("can't be loaded: no worker could run model 'b'")


def test_workers_that_are_another_models_own_are_none_that_could_not_load_it() -> None:
    hand = Hand(spec("a"), spec("b"), workers=2)
    hand.feed(1, OperatorAsked("me", AssignModel("a", 1)))
    (own,) = hand.scheduler.cluster.owners
    (other,) = {"w0", "w1"} - {own}
    assert said(hand, "a", own) == f"no worker: {own} gives no sign of life"
    assert (said(hand, "a", other), said(hand, "b", own)) == ("", "")
    assert said(hand, "b", other) == f"no worker: {other} gives no sign of life"
    hand.feed(2, OperatorAsked("me", AssignModel("a", 2)))
    assert said(hand) == ""
    assert said(hand, "b") == "no worker: every worker is another model's own: a"
    hand.feed(3, OperatorAsked("me", AssignModel("b", 1)))
    assert said(hand, "b") == "no worker: no worker is free to run model 'b' alone, as it was assigned"
    hand.feed(4, OperatorAsked("me", AssignModel("a", 0)))
    assert (said(hand), said(hand, "b")) == ("", "")


@pytest.mark.parametrize("seed", range(6))
def test_it_agrees_with_a_look_at_every_pair(seed: int) -> None:
    simulation = random_scenario(seed)
    run_to_end(simulation)
    cluster = simulation.scheduler.cluster
    for silent in (frozenset[str](), frozenset(list(cluster.workers)[:1])):
        among = takers(cluster, silent)
        for model in cluster.models.values():
            able = [
                worker.name
                for worker in cluster.workers.values()
                if not (worker.draining or worker.stopping or worker.name in silent)
                and not model.absent & worker.bit
                and (
                    any(worker.name in each.usable for each in (model, *model.buckets.values()))
                    or (is_loadable(model, worker) and not is_barred(model, worker))
                )
            ]
            assert bool(able) is not bool(why_not(cluster, model, among)), f"{model.name} on {able}"
