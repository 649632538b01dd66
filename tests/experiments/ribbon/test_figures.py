"""The paper's figures from a report, and what all searches of a problem share."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from mainspring.experiments.ribbon.changed import Changed
from mainspring.experiments.ribbon.convergence import SAVINGS, Convergence
from mainspring.experiments.ribbon.figures import PAPER, draw_figures
from mainspring.experiments.ribbon.instances import SHOWN, Instance, Instances, Kinds, Searched
from mainspring.experiments.ribbon.memo import Arena
from mainspring.experiments.ribbon.optima import Optimum
from mainspring.experiments.ribbon.report import Report
from mainspring.experiments.ribbon.samplers import SAMPLERS, sampled
from mainspring.planner.estimate import THETA, Estimate
from mainspring.planner.problem import Pool, read_problem
from tests.planner.specs import spec, workload


def estimate(pool: Pool) -> Estimate:
    share = min(1.0, 0.8 + 0.04 * sum(pool))
    return Estimate(
        pool=pool,
        price=0.5 * pool[0] + 0.1 * pool[1],
        attainment=share,
        low=share,
        high=share,
        p50_ms=5.0,
        p99_ms=30.0 - sum(pool),
        reached_ms=20.0,
        utilisation={},
        queries=1000,
        complete=True,
    )


def whole() -> Report:
    """Return a report of one model with every part that a figure needs."""
    grid = [estimate(pool) for pool in itertools.product(range(6), range(13)) if any(pool)]
    optimum = {"pool": (4, 1), "price": 2.2, "attainment": 0.99, "one_kind": (5, 0), "saved": 0.1}
    common = {
        "model": "MT-WND",
        "arrivals": "artifact",
        "target_ms": 20.0,
        "paper_target_ms": 20.0,
        "kinds": (),
    }
    left = {"paper_saved": 0.14, "floor_price": 1.2, "evaluations": 3, "pools": 70}
    optima = [
        Optimum(rows=rows, percentile=share, **common, **optimum, **left)  # type: ignore[arg-type]
        for rows, share in (("lognormal", 0.99), ("gaussian", 0.99), ("lognormal", 0.98))
    ]
    counts = {"seeds": 2, "found": 2, "until_found": 9.0, "most_until_found": 12, "evaluations": 30.0}
    searches = [
        Convergence(
            model="MT-WND",
            search=name,
            violating=3.0,
            explored=0.02,
            ruled_out=0,
            until_saved=tuple(float(place) for place in range(len(SAVINGS))),
            paper=17,
            **counts,  # type: ignore[arg-type]
        )
        for name in ("ribbon", "random", "exact")
    ]
    moved = Changed(
        model="MT-WND", seeds=2, found=2, first=9, second=4, afresh=8, first_of_series=9, series=[(1.0, 0.4)]
    )
    kinds = ("g4dn.xlarge", "r5n.large")
    return Report(
        optima=optima,
        searches=searches,
        load=[moved],
        instances=Instances(
            instances=[
                Instance(kind=kind, batch=batch, performance=0.5, cost_effectiveness=1.0)
                for kind in kinds
                for batch in (32, 128)
            ],
            shown=[estimate(pool) for pool in SHOWN],
            grid=grid,
            best=(4, 1),
            searched=[
                Searched(search=name, tried=[(5, 5), (4, 1)], found=True) for name in ("ribbon", "rsm")
            ],
            kinds=[Kinds(kinds=kinds, better=2, saved=0.1)],
        ),
    )


def test_every_figure_is_drawn_that_there_is_data_for(tmp_path: Path) -> None:
    assert draw_figures(Report(), tmp_path) == []
    files = draw_figures(whole(), tmp_path)
    assert [file.name for file in files] == [f"figure_{number:02d}.png" for number in sorted(PAPER)]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)


def test_searches_of_a_problem_share_what_was_evaluated() -> None:
    arena = Arena(read_problem(spec(workload=workload(rate=200), duration_s=20)))
    table = {each.pool: each for each in arena.table()}
    assert table[arena.best.pool] is arena.estimator.evaluate(arena.best.pool)
    assert arena.best.price == min(each.price for each in table.values() if each.holds(0.99))
    one = arena.one_kind()
    assert one is not None
    assert one.price >= arena.best.price
    assert arena.starts(3) == arena.starts(3)
    assert arena.starts(3)[0] == one.pool
    clear = [each for each in table.values() if each.attainment < 0.99 - THETA]
    around = [each for each in clear if all(a >= b for a, b in zip(each.pool, arena.best.pool, strict=True))]
    assert arena.pruned_wrongly() == (len(clear), len(around))
    assert not arena.ruled_out([arena.best])
    if around:
        assert arena.ruled_out(around[:1])
    whole_run, part = arena.run("exhaustive"), arena.run("exhaustive", to_end=False)
    assert len(whole_run.tried) == len(table)
    assert part.tried[-1].pool == arena.best.pool
    assert arena.until(whole_run) == arena.until(part) == len(part.tried)


@pytest.mark.parametrize("name", SAMPLERS)
def test_optunas_samplers_find_the_cheapest_pool_too(name: str) -> None:
    arena = Arena(read_problem(spec(workload=workload(rate=200), duration_s=20)))
    tried = sampled(arena, name, 1)
    if tried is None:
        pytest.skip("Optuna, or what it needs for this sampler, is not installed")
    assert tried[-1].pool == arena.best.pool
    assert [each.pool for each in tried[:2]] == list(arena.starts(1))
