"""The order of evictions is that of a sort by what they lose, however many are taken and whatever changes."""

from __future__ import annotations

import random
from typing import cast

import pytest

from mainspring.cluster.estimates import InferTimes
from mainspring.cluster.placements import Placement
from mainspring.cluster.workers import Worker
from mainspring.scheduler.policies.mainspring.constants import EVICTED_FOR_NS
from mainspring.scheduler.policies.mainspring.loading import Bound, Losses, worth
from mainspring.scheduler.policies.mainspring.policy import Mainspring
from mainspring.scheduler.policies.notes import model_note
from mainspring.simulator.scenario import random_scenario, run_to_end


def sorted_by_loss(losses: Losses, worker: Worker) -> list[Placement]:
    """What `Losses.least_first` should yield, found the plain way."""
    away = losses._popularity.expected(EVICTED_FOR_NS)
    there = [each for each in worker.lru.values() if not each.infers]
    return sorted(there, key=lambda each: (losses.loss(each, away), each.model.number))


def sorted_by_requests(losses: Losses, placement: Placement) -> list[Placement]:
    """What `Losses.unpopular` should return."""
    there = [each for each in placement.worker.lru.values() if not each.infers and not each.model.waiting]
    there.sort(key=lambda each: (worth(each), each.model.number))
    left, chosen = 0.5 * model_note(placement.model).popularity, []
    for each in there:
        left -= worth(each)
        if left < 0:
            break
        chosen.append(each)
    return chosen


@pytest.mark.parametrize("seed", range(12))
def test_victims_come_by_what_they_lose_at_every_moment_of_a_run(seed: int) -> None:
    """Models come and go, workers crash, estimates and the price of EXEC's time rise and fall."""
    simulation = random_scenario(seed, "mainspring")
    policy = simulation.scheduler._policy
    assert isinstance(policy, Mainspring)
    losses, rng = policy._loads.losses, random.Random(seed)
    compared = 0

    def turned() -> None:
        nonlocal compared
        own = policy._price.per_ns
        policy._price.per_ns = rng.choice([0.0, own, own * rng.uniform(0.3, 3.0), 10 ** rng.uniform(-9, -6)])
        for worker in simulation.scheduler.cluster.workers.values():
            expected = sorted_by_loss(losses, worker)
            taken = rng.randrange(len(expected) + 1)
            least = losses.least_first(worker, EVICTED_FOR_NS)
            assert [next(least) for _ in range(taken)] == expected[:taken]
            least.close()
            for placement in expected[:2]:
                assert losses.unpopular(placement) == sorted_by_requests(losses, placement)
            compared += taken > 1
        policy.validate()
        policy._price.per_ns = own

    simulation.controller._validate, simulation.controller._validate_every = turned, 7
    run_to_end(simulation)
    turned()
    assert compared or seed % 2, "few runs hold more than one model"


def played() -> tuple[Losses, Worker]:
    """Return the losses of a run that has ended, without a price, and a worker that holds models."""
    simulation = random_scenario(1, "mainspring")
    run_to_end(simulation)
    policy = simulation.scheduler._policy
    assert isinstance(policy, Mainspring)
    policy._price.per_ns = 0.0
    losses = policy._loads.losses
    (worker, *_) = [each for each in simulation.scheduler.cluster.workers.values() if each.lru]
    return losses, worker


def test_a_bound_that_comes_back_to_what_it_was_has_nothing_yielded_twice() -> None:
    losses, worker = played()
    placement = next(iter(worker.lru.values()))
    note = model_note(placement.model)
    order = losses.least_first(worker, EVICTED_FOR_NS).order
    before = note.popularity
    for popularity in (before + 5, before, before + 5, before):
        note.popularity = popularity
        losses.changed(placement)
    least = losses.least_first(worker, EVICTED_FOR_NS)
    found = [each.model.name for each in least]
    least.close()
    assert len(found) == len(set(found)) == len(worker.lru)
    assert sum(cast(Bound, entry).placement is placement for entry in order.entries) <= 4


def test_an_order_keeps_few_void_entries() -> None:
    losses, worker = played()
    least = losses.least_first(worker, EVICTED_FOR_NS)
    placement = next(iter(worker.lru.values()))
    for _ in range(10_000):
        model_note(placement.model).popularity += 1
        losses.changed(placement)
    assert len(least.order.entries) < 300


def all_victims(losses: Losses, worker: Worker) -> list[Placement]:
    least = losses.least_first(worker, EVICTED_FOR_NS)
    found = list(least)
    least.close()
    return found


def test_a_model_that_takes_longer_than_it_is_worth_is_evicted_first() -> None:
    losses, worker = played()
    losses._price.per_ns = 1e-9
    for _ in range(len(worker.lru)):
        dearest = all_victims(losses, worker)[-1]
        for times in dearest.model.infer_times.values():
            for index in range(len(times.sizes)):
                times.give_up(0, index, 10**10)
        victims = all_victims(losses, worker)
        assert victims == sorted_by_loss(losses, worker)
        losses.validate(worker, EVICTED_FOR_NS)


def test_without_the_quicker_kind_of_device_evictions_lose_less() -> None:
    losses, worker = played()
    model = all_victims(losses, worker)[-1].model
    model.infer_times["quick"] = InferTimes(model.spec.batch_sizes, [1] * len(model.spec.batch_sizes))
    losses._price.per_ns = 1e-3
    assert all_victims(losses, worker)[-1].model is model
    del model.infer_times["quick"]
    losses.worker_left(worker)
    assert all_victims(losses, worker) == sorted_by_loss(losses, worker)
    assert not losses.loss(next(iter(model.placements.values())), 1.0)
