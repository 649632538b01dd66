"""The searches: that they find the optimum, what they rule out, and how they compare."""

from __future__ import annotations

import itertools
import math
import sys

import numpy as np
import pytest

from mainspring.planner.estimate import Estimate
from mainspring.planner.floor import Space, above_floor
from mainspring.planner.plan import plan
from mainspring.planner.problem import PlanError, Pool, Problem, read_problem
from mainspring.planner.queues import Queues
from mainspring.planner.ribbon import Pruned, worth
from mainspring.planner.search import Before, BudgetSpent, Task, Trials, searches
from tests.planner.specs import spec, workload

ALL = ("exact", "exhaustive", "ribbon")


def task(seed: int = 0, most: int | None = None, starts: tuple[Pool, ...] = ()) -> Task:
    problem = read_problem(spec(workload=workload(rate=200), duration_s=20))
    space = Space(problem.kinds)
    trials = Trials(Queues(problem, confidence=0.0), problem.attainment, most=most)
    return Task(problem, space, above_floor(problem, space.counts), trials, seed, starts)


def at(problem: Problem, before: Before | None = None) -> Task:
    space = Space(problem.kinds)
    trials = Trials(Queues(problem, confidence=0.0), problem.attainment)
    return Task(problem, space, above_floor(problem, space.counts), trials, before=before)


@pytest.mark.parametrize("name", ALL)
def test_every_search_finds_the_optimum_of_a_small_space(name: str) -> None:
    if name == "ribbon":
        pytest.importorskip("sklearn")
    optimum = plan(spec(workload=workload(rate=200), duration_s=20), confidence=0).best
    assert optimum is not None
    for seed in range(3):
        given = task(seed)
        searches()[name](given)
        assert given.trials.best is not None
        assert given.trials.best.pool == optimum.pool
        pools = [each.pool for each in given.trials.tried]
        assert len({*pools}) == len(pools), "no pool is evaluated twice"


def test_ribbon_begins_where_it_is_told_and_ends_at_its_budget() -> None:
    pytest.importorskip("sklearn")
    given = task(most=4, starts=((5, 0), (1, 1)))
    with pytest.raises(BudgetSpent):
        searches()["ribbon"](given)
    pools = [each.pool for each in given.trials.tried]
    assert len(pools) == 4
    assert pools[0] == (5, 0)
    one, other = task(seed=1, most=4), task(seed=2, most=4)
    for each in (one, other):
        with pytest.raises(BudgetSpent):
            searches()["ribbon"](each)
    assert [each.pool for each in one.trials.tried] != [each.pool for each in other.trials.tried]


def test_ribbon_draws_no_second_pool_where_the_first_is_given() -> None:
    pytest.importorskip("sklearn")
    ran = []
    for seed in range(4):
        given = task(seed=seed, most=4, starts=((5, 0),))
        with pytest.raises(BudgetSpent):
            searches()["ribbon"](given)
        ran.append([each.pool for each in given.trials.tried])
    assert all(each == ran[0] for each in ran)


def test_after_a_change_of_load_ribbon_begins_with_what_it_knows_and_stays_near_the_best() -> None:
    pytest.importorskip("sklearn")
    problem = read_problem(spec(workload=workload(rate=160), duration_s=20))
    first, load = at(problem), 1.5
    searches()["ribbon"](first)
    best = first.trials.best
    assert best is not None
    after = at(problem.at_load(load), Before(tuple(first.trials.tried), best, load))
    searches()["ribbon"](after)
    proven = at(problem.at_load(load))
    searches()["exact"](proven)
    assert after.trials.best is not None
    assert proven.trials.best is not None
    assert after.trials.best.pool == proven.trials.best.pool
    tried = after.trials.tried
    assert tried[0].pool == best.pool
    assert not tried[0].holds(0.99)
    assert tried[1].pool == tuple(math.ceil(load * count) for count in best.pool)
    assert tried[1].holds(0.99)
    assert max(abs(one - other) for one, other in zip(tried[1].pool, tried[2].pool, strict=True)) == 1


def test_after_the_load_fell_ribbon_tries_fewer_of_the_same_devices() -> None:
    pytest.importorskip("sklearn")
    problem = read_problem(spec(workload=workload(rate=200), duration_s=20))
    first, load = at(problem), 0.6
    searches()["ribbon"](first)
    best = first.trials.best
    assert best is not None
    after = at(problem.at_load(load), Before(tuple(first.trials.tried), best, load))
    searches()["ribbon"](after)
    pools = [each.pool for each in after.trials.tried]
    assert pools[:2] == [best.pool, tuple(math.ceil(load * count) for count in best.pool)]
    assert after.trials.tried[0].holds(0.99)
    assert after.trials.best is not None
    assert after.trials.best.price < best.price


def estimate(given: Task, pool: Pool, attainment: float) -> Estimate:
    return Estimate(
        pool=pool,
        price=given.problem.price(pool),
        attainment=attainment,
        low=attainment,
        high=attainment,
        p50_ms=1,
        p99_ms=2,
        reached_ms=2,
        utilisation={},
        queries=1000,
        complete=True,
    )


def test_any_pool_that_holds_is_worth_more_than_any_that_does_not() -> None:
    given = task()
    holding = [worth(given, estimate(given, pool, 0.99)) for pool in ((1, 1), (3, 3), (5, 6))]
    violating = [worth(given, estimate(given, (1, 1), share)) for share in (0.989, 0.5, 0.0)]
    assert holding == sorted(holding, reverse=True)
    assert violating == sorted(violating, reverse=True)
    assert min(holding) >= 0.5 >= max(violating)
    assert holding[-1] == pytest.approx(0.5), "the dearest pool"
    assert violating == pytest.approx([0.5 * 0.989 / 0.99, 0.5 * 0.5 / 0.99, 0.0])


def test_what_lies_within_a_clear_violation_or_costs_as_much_as_what_holds_is_ruled_out() -> None:
    given = task()
    pruned = Pruned(given)
    pruned.note(estimate(given, (2, 3), 0.985))
    assert len(pruned.left) == len(given.space) - 1, "no clear violation"
    pruned.note(estimate(given, (2, 3), 0.97))
    inside = [pool for pool in itertools.product(range(3), range(4)) if any(pool)]
    assert all(pruned.out[pruned.place(pool)] for pool in inside)
    assert pruned.out.sum() == len(inside)
    pruned.note(estimate(given, (3, 0), 0.995))
    left = given.space.prices[pruned.left]
    assert left.max() < given.problem.price((3, 0))


def test_the_surrogate_rounds_to_whole_devices_and_passes_through_what_was_tried() -> None:
    pytest.importorskip("sklearn")
    from mainspring.planner.ribbon import Surrogate

    counts, values = np.array([[0], [2], [5], [9]]), np.array([0.1, 0.4, 0.45, 0.7])
    rounded, plain = Surrogate(1), Surrogate(1, rounding=False)
    for surrogate in (rounded, plain):
        surrogate.fit(counts, values)
    mean, deviation = rounded.predict(counts)
    np.testing.assert_allclose(mean, values, atol=1e-3)
    assert deviation.max() < 0.01
    near = np.array([[1.6], [2.0], [2.4]])
    assert np.ptp(rounded.predict(near)[0]) < 1e-9
    assert np.ptp(plain.predict(near)[0]) > 1e-4
    improvement = rounded.improvement(np.array([[8], [9], [20]]), 0.7)
    assert improvement[1] < improvement[0]
    assert (improvement >= 0).all()


def test_without_scikit_learn_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.split(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(PlanError, match=r"--search ribbon needs the Python module sklearn.*planner"):
        plan(spec(), search="ribbon")


@pytest.mark.parametrize("start", [(6, 0), (1,), (0, 0)])
def test_starts_outside_the_space_are_refused(start: Pool) -> None:
    with pytest.raises(PlanError, match="pools have 0 to 5 fast, 0 to 6 cheap"):
        plan(spec(), search="exact", starts=[start])
