"""What is moved between shards, and when nothing is."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.cli.balancing.choosing import ModelMove, Observed, WorkerMove, busiest, needed, observed, plan
from mainspring.messages.metrics import ClusterMetrics, WorkerActions
from mainspring.messages.model import Profile
from mainspring.messages.status import ClusterStatus, ModelStatus, WorkerStatus
from tests.controller.peers import spec


def shard(
    number: int,
    busy: float,
    arrived: dict[str, int],
    rejected: int = 0,
    workers: int = 4,
    pages: int = 100,
    model_pages: int = 4,
) -> Observed:
    names = tuple(f"w{number}-{each}" for each in range(workers))
    return Observed(number, names, pages, busy, arrived, rejected, dict.fromkeys(arrived, model_pages))


def models(number: int, count: int, each: int = 10) -> dict[str, int]:
    return {f"m{number}-{index}": each for index in range(count)}


def test_nothing_moves_while_nobody_refuses() -> None:
    found = plan([shard(0, 0.95, models(0, 10)), shard(1, 0.1, models(1, 10))])
    assert (found.models, found.workers) == ((), ())
    assert "no shard refuses" in found.why


def test_models_leave_a_shard_that_refuses_until_the_loads_are_even() -> None:
    found = plan([shard(0, 0.9, models(0, 100), rejected=200), shard(1, 0.3, models(1, 100))])
    assert all((move.source, move.target) == (0, 1) for move in found.models)
    # It was asked for 0.9 / 0.8 of what it can do, the other one for 0.3: a third of it goes.
    assert 30 <= len(found.models) <= 38


def test_models_go_to_a_shard_that_nobody_has_asked_for_anything() -> None:
    found = plan([shard(0, 0.9, models(0, 100), rejected=200), shard(1, 0.0, {})])
    assert {(move.source, move.target) for move in found.models} == {(0, 1)}
    assert 45 <= len(found.models) <= 50, "half of what was asked for"


def test_the_busiest_models_that_go_in_are_moved_first() -> None:
    arrived = {"huge": 700, "large": 200, **models(0, 10)}
    found = plan([shard(0, 0.9, arrived, rejected=300), shard(1, 0.4, models(1, 10))])
    assert found.models[0] == ModelMove("large", 0, 1)
    assert "huge" not in {move.model for move in found.models}


def test_a_model_that_no_worker_there_could_hold_stays() -> None:
    full = shard(0, 0.9, models(0, 10), rejected=50, model_pages=200)
    assert not plan([full, shard(1, 0.2, models(1, 10), pages=100)]).models


def test_every_shard_that_refuses_gives_and_every_other_one_gets() -> None:
    shards = [
        *(shard(number, 0.9, models(number, 50), rejected=150) for number in (0, 1)),
        *(shard(number, 0.3, models(number, 50)) for number in (2, 3)),
    ]
    found = plan(shards).models
    assert {move.source for move in found} == {0, 1}
    assert {move.target for move in found} == {2, 3}


def test_a_worker_moves_where_no_model_can() -> None:
    found = plan([shard(0, 0.9, {"only": 900}, rejected=300), shard(1, 0.3, models(1, 10))])
    assert found.workers == (WorkerMove("w1-3", 1, 0),)
    assert not found.models


def test_where_all_refuse_or_nobody_has_time_more_workers_are_needed() -> None:
    full = [shard(number, 0.95, models(number, 10), rejected=30) for number in range(2)]
    assert "needs more workers" in plan(full).why
    large = shard(0, 0.95, {"only": 100}, rejected=30)
    assert "needs more workers" in plan([large, shard(1, 0.9, models(1, 10))]).why


def test_a_shard_with_little_load_that_refuses_cold_models_gets_some_all_the_same() -> None:
    found = plan([shard(0, 0.9, models(0, 100), rejected=100), shard(1, 0.3, models(1, 100), rejected=20)])
    assert {(move.source, move.target) for move in found.models} == {(0, 1)}


@given(
    st.lists(
        st.tuples(
            st.floats(0.05, 1.0),
            st.integers(0, 60),
            st.lists(st.integers(1, 300), min_size=1, max_size=20),
            st.integers(1, 6),
        ),
        min_size=2,
        max_size=6,
    )
)
def test_no_move_makes_another_shard_full_or_lighter_than_it_needs(
    drawn: list[tuple[float, int, list[int], int]],
) -> None:
    shards = [
        shard(
            number,
            busy,
            {f"m{number}-{index}": each for index, each in enumerate(arrived)},
            rejected=min(rejected, sum(arrived) - 1),
            workers=workers,
        )
        for number, (busy, rejected, arrived, workers) in enumerate(drawn)
    ]
    found = plan(shards)
    names = [move.model for move in found.models]
    assert len(names) == len(set(names))
    loads = {each.number: each.load * len(each.workers) for each in shards}
    before = dict(loads)
    for move in found.models:
        source = shards[move.source]
        assert source.refuses
        demand = source.load * len(source.workers) * source.arrived[move.model] / source.requests
        loads[move.source] -= demand
        loads[move.target] += demand
    average = sum(before.values()) / sum(len(each.workers) for each in shards)
    assert all(shards[move.source].load > average > shards[move.target].load for move in found.models)
    for each in shards:
        count = len(each.workers)
        if loads[each.number] > before[each.number]:
            assert loads[each.number] <= average * count + 1e-6
        if loads[each.number] < before[each.number]:
            assert loads[each.number] >= average * count - 1e-6


def test_a_shard_is_seen_by_what_its_controller_counts_between_two_looks() -> None:
    def status(arrived: int, rejected: int) -> ClusterStatus:
        model = ModelStatus("m", 3, ("w",), ("w",), 0, arrived=arrived, rejected=rejected)
        idle = ModelStatus("idle", 2, ("w",), (), 0, arrived=5)
        worker = WorkerStatus("w", "cpu", 8, 2, 2, 1, 0, 0, ())
        return ClusterStatus("mainspring", (worker,), (model, idle), 0, {})

    def metrics(busy_ns: int) -> ClusterMetrics:
        worker = WorkerActions("w", "cpu", 8, 6, {"exec": busy_ns, "load": 99}, {})
        return ClusterMetrics((1,), (1,), (1,), (), (worker,), 2, 0, (1,))

    before, after = (status(10, 1), metrics(10**9)), (status(110, 21), metrics(5 * 10**9))
    found = observed(3, before, after, 10.0, {})
    assert found == Observed(3, ("w",), 8, 0.4, {"m": 100}, 20, {"m": 3, "idle": 2})
    assert found.refuses
    assert found.load == 0.5
    profile = Profile({1: 20_000_000, 4: 40_000_000}, 1)
    known = msgspec.structs.replace(spec("m"), profiles={"cpu": profile})
    found = observed(3, before, after, 10.0, {"m": known})
    assert found.needs == {"m": pytest.approx(10 * 0.04 / 4)}, "without a deadline any batch may fill"
    assert found.load == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("rate", "slo_ms", "devices"),
    [
        (1.0, 100.0, 0.010),
        (20.0, 100.0, 20 * 0.016 / 2),
        (1000.0, 100.0, 1000 * 0.040 / 8),
        (1000.0, 30.0, 1000 * 0.016 / 2),
        (1000.0, 5.0, 1000 * 0.010),
        (1.0, None, 0.040 / 8),
    ],
)
def test_requests_need_the_best_batches_that_they_fill_within_a_deadline(
    rate: float, slo_ms: float | None, devices: float
) -> None:
    infer_ns = {1: 10_000_000, 2: 16_000_000, 8: 40_000_000}
    slo_ns = None if slo_ms is None else round(slo_ms * 1e6)
    assert needed(infer_ns, rate, slo_ns) == pytest.approx(devices)


def test_a_shard_that_is_asked_for_more_than_it_can_do_gives_before_it_refuses() -> None:
    hot = msgspec.structs.replace(shard(0, 0.9, {"a": 90, "b": 10}), needs={"a": 3.0, "b": 2.0})
    cool = msgspec.structs.replace(shard(1, 0.9, {"c": 90}), needs={"c": 1.0})
    assert (hot.load, cool.load) == (1.25, 0.25), "however busy both look"
    assert plan([hot, cool]).models == (ModelMove("b", 0, 1),)
    easy = msgspec.structs.replace(hot, needs={"a": 2.0, "b": 1.9})
    assert "no shard refuses" in plan([easy, cool]).why


def test_the_busiest_models_are_chosen() -> None:
    assert busiest({"a": 1, "b": 9, "c": 9}, ["a", "b", "c", "d"], 3) == ("b", "c", "a")
