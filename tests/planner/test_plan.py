"""Plans: the optimum with its proof, what would do where nothing holds, and what is said of slow kinds."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.planner.floor import above_floor
from mainspring.planner.plan import least_extra, plan
from mainspring.planner.problem import PlanError, read_problem
from mainspring.planner.queues import Queues
from mainspring.planner.search import read_record
from mainspring.simulator.objective import Objective
from mainspring.simulator.run import simulate
from mainspring.simulator.spec_file import parse_spec
from tests.planner.specs import spec, workload


def test_exact_finds_what_exhaustive_finds_in_fewer_evaluations() -> None:
    for seed, target in itertools.product((0, 1), (0.9, 0.99)):
        asked = spec(seed=seed, objective=Objective(attainment=target))
        exact, exhaustive = plan(asked), plan(asked, search="exhaustive")
        assert exact.best is not None
        assert exhaustive.best is not None
        assert exact.best.pool == exhaustive.best.pool
        assert exact.proven
        assert len(exact.evaluations) < len(exhaustive.evaluations) == exhaustive.pools == 41
        cheaper = [each for each in exhaustive.evaluations if each.price < exact.best.price]
        assert not any(each.holds(target) for each in cheaper)
        assert exact.floor_price is not None
        assert exact.floor_price <= exact.best.price


def test_a_mixture_may_be_cheaper_than_any_kind_alone() -> None:
    found = plan(spec(workload=workload(rate=200), duration_s=30), confidence=0)
    assert found.best is not None
    assert found.one_kind is not None
    assert found.best.price < found.one_kind.price
    assert found.saved == pytest.approx(1 - found.best.price / found.one_kind.price)
    assert all(count > 0 for count in found.best.pool)


def test_no_pool_below_the_floor_holds() -> None:
    for seed in range(4):
        problem = read_problem(spec(seed=seed, objective=Objective(attainment=0.9)))
        pools = np.array([pool for pool in itertools.product(range(6), range(7)) if any(pool)])
        possible = above_floor(problem, pools)
        assert 0 < possible.sum() < len(pools)
        queues = Queues(problem, confidence=0.0)
        for pool in pools[~possible].tolist():
            assert not queues.evaluate(tuple(pool), whole=True).holds(0.9), pool


def test_what_would_do_is_said_where_nothing_holds() -> None:
    few = tuple(msgspec.structs.replace(group, most=1) for group in spec().devices)
    found = plan(spec(devices=few))
    assert found.best is None
    assert found.proven
    assert found.nearest is not None
    assert found.advice is not None
    queues = Queues(read_problem(spec(devices=few)))
    for more in found.advice.more:
        assert queues.evaluate(more.pool).holds(0.99)
        assert max(more.pool) == 1 + more.extra
    assert found.advice.more
    assert 0 < found.advice.load_share < 1
    assert queues.evaluate(found.advice.load_pool, load=found.advice.load_share * 0.98).holds(0.99)
    assert found.advice.target_ms is not None
    slower = spec(devices=few, workload=workload(slo_ms=found.advice.target_ms + 0.001))
    relaxed = plan(slower, confidence=0).nearest
    assert relaxed is not None
    assert relaxed.attainment >= 0.99


def test_many_more_devices_are_said_where_many_are_missing() -> None:
    busy = spec(workload=workload(rate=2_500), duration_s=2)
    few = tuple(msgspec.structs.replace(group, most=1) for group in busy.devices)
    found = plan(msgspec.structs.replace(busy, devices=few))
    assert found.best is None
    assert found.advice is not None
    (more,) = found.advice.more
    assert more.kind == "fast", "the other is too slow for one query in fifty, however many there are"
    assert more.extra > 10


@given(st.integers(1, 100), st.integers(1, 100))
def test_the_least_extra_is_found_within_its_bound(least: int, most: int) -> None:
    asked: list[int] = []

    def holds(extra: int) -> bool:
        asked.append(extra)
        return extra >= least

    assert least_extra(holds, most) == (least if least <= most else None)
    assert max(asked) <= most
    assert len(asked) == len({*asked}) <= 2 * least.bit_length() + 1


def test_where_no_pool_has_the_capacity_that_is_said() -> None:
    busy = spec(workload=workload(rate=3_000), duration_s=2)
    found = plan(busy)
    assert found.ended == "no pool within the bounds has the capacity"
    assert found.proven
    assert not found.evaluations


def test_kinds_that_are_too_slow_are_named() -> None:
    found = plan(spec(workload=workload(slo_ms=40)))
    assert len(found.warnings) == 1
    assert re.match(r"cheap is too slow for [34]\.\d+% of the queries even when idle", found.warnings[0])
    with pytest.raises(
        PlanError, match="every kind is too slow: an idle device of the fastest, fast, ends 0"
    ):
        plan(spec(workload=workload(slo_ms=1)))


def test_an_interrupted_search_goes_on(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    part = plan(spec(), evaluations=3, record=record)
    assert part.ended == "3 evaluations were made"
    assert not part.proven
    with record.open("ab") as file:
        file.write(b'{"pool":[1')
    known = read_record(record)
    assert [each.pool for each in known] == [each.pool for each in part.evaluations]
    whole, again = plan(spec()), plan(spec(), known=known, record=record)
    assert again.evaluations == whole.evaluations
    assert again.best == whole.best
    assert [each.pool for each in read_record(record)] == [each.pool for each in whole.evaluations]
    record.write_bytes(b"nonsense\n" + record.read_bytes())
    with pytest.raises(PlanError, match=r"record.jsonl:1: no estimate"):
        read_record(record)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"search": "exat"}, "there is no search 'exat': choose exact"),
        ({"evaluate": "oracle"}, "there is no estimator 'oracle': choose queues, simulate"),
        ({"confidence": 1.0}, "confidence is 1.0"),
        ({"evaluations": 0}, "0 evaluations find nothing"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], says: str) -> None:
    with pytest.raises(PlanError, match=re.escape(says)):
        plan(spec(), **options)  # type: ignore[arg-type]


def test_a_space_that_can_not_be_listed_is_refused() -> None:
    many = tuple(msgspec.structs.replace(group, most=5_000) for group in spec().devices)
    with pytest.raises(PlanError, match="there are 25,010,001 pools"):
        plan(spec(devices=many))


def test_the_plan_is_a_spec_that_can_be_simulated(tmp_path: Path) -> None:
    import tomllib

    from mainspring.planner.writing import planned, toml

    text = """
duration_s = 6
warm_up_s = 0.5
[[devices]]
kind = "fast"
speed = 4
price = 0.526
most = 5
[[devices]]
kind = "cheap 🐌"
price = 0.15
least = 1
most = 6
[[models]]
name = "ranker"
infer_ms = { 10 = 6, 500 = 60 }
[[workload]]
rate = 200
slo_ms = [62.5, 70]
rows = { kind = "gaussian", mean = 100, deviation = 30, most = 200, tail = [[0.1, 1, 9]] }
[scheduler]
policy = "edf"
"""
    table = tomllib.loads(text)
    found = plan(parse_spec(table, "spec", planned=True))
    assert found.best is not None
    written = planned(table, found.kinds, found.best.pool)
    assert tomllib.loads(toml(written)) == written
    run = parse_spec(tomllib.loads(toml(written)), "plan.toml")
    assert [group.count for group in run.devices] == list(found.best.pool)
    assert simulate(run).summary.goodput_share > 0.9
