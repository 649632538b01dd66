"""What the experiments on running clusters are made of, without one: specs, messages in a log, a load."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import numpy as np
import pytest

from mainspring.experiments.ribbon.data import SETTINGS
from mainspring.experiments.ribbon.emulated import emulated_table, with_messages
from mainspring.experiments.ribbon.live import compared_pools, messages_of
from mainspring.experiments.ribbon.watched import Growing
from mainspring.messages.commands import Command
from mainspring.messages.events import Event
from mainspring.planner.problem import Problem, read_problem
from mainspring.planner.queues import Queues
from mainspring.planner.simulated import Simulated
from mainspring.simulator.run import simulate
from mainspring.simulator.spec import SimulationSpec
from mainspring.simulator.spec_file import parse_spec
from tests.experiments.ribbon.test_ribbon import SHARED

pytestmark = pytest.mark.skipif(
    not (SHARED / "ribbon" / "price.csv").is_file(), reason="Ribbon's artifact is not here"
)
MTWND = next(each for each in SETTINGS if each.key == "mtwnd")
POOL = (4, 0, 1)


def spec_of(folder: Path) -> SimulationSpec:
    return parse_spec(emulated_table(MTWND, 15.0, folder, SHARED), "this test", planned=True)


def test_mean_messages_are_read_from_a_log_and_explain_what_they_cost(tmp_path: Path) -> None:
    free = spec_of(tmp_path)
    spec = with_messages(free, 900.0, 1_500.0)
    problem = read_problem(spec)
    assert problem.between_ns == pytest.approx(900_000, abs=2)
    assert problem.around_ns == pytest.approx(1_500_000, abs=2)
    entries: list[tuple[int, Event | Command]] = []
    pooled = Simulated(problem)._spec(POOL, 1.0)
    # Live, the warm-up is sent and recorded as all else is.
    given = msgspec.structs.replace(pooled, warm_up_s=0, duration_s=pooled.warm_up_s + pooled.duration_s)
    run = simulate(given, analyse=False, record=lambda now_ns, entry: entries.append((now_ns, entry)))
    found = messages_of(entries, 0, run.records, problem)
    assert found.between_us == pytest.approx(900, rel=0.02)
    assert found.around_us == pytest.approx(1_500, rel=0.02)
    assert found.longer_us == pytest.approx(0, abs=1)
    assert found.late_begins == 0
    live = Simulated(problem).evaluate(POOL, whole=True).attainment
    assert abs(Queues(problem).evaluate(POOL, whole=True).attainment - live) < 0.005
    assert Queues(read_problem(free)).evaluate(POOL, whole=True).attainment > live + 0.01


def test_one_pool_holds_one_is_of_one_kind_and_one_violates(tmp_path: Path) -> None:
    problem = read_problem(spec_of(tmp_path))
    queues = Queues(problem, confidence=0.0)
    shares = [queues.evaluate(pool, whole=True).attainment for pool in compared_pools(problem)]
    assert shares[0] >= 0.99
    assert 0.94 <= shares[-1] <= 0.96


def test_load_grows_while_queries_are_sent(tmp_path: Path) -> None:
    problem = _short(read_problem(spec_of(tmp_path)), 100)
    growing = Growing(problem)
    source = growing.source(np.random.default_rng(0))
    before = [source.take().time_ns for _ in range(100)]
    assert before == problem.queries.due_ns.tolist()
    growing.load = 1.5
    source.take()
    after = [source.take().time_ns for _ in range(100)]
    assert after[-1] - after[0] == pytest.approx((before[-1] - before[0]) / 1.5, rel=0.1)


def _short(problem: Problem, count: int) -> Problem:
    """Return a problem with the first queries alone."""
    queries = problem.queries
    kept = dataclasses.replace(
        queries,
        due_ns=queries.due_ns[:count],
        rows=queries.rows[:count],
        models=queries.models[:count],
        slo_ns=queries.slo_ns[:count],
    )
    return dataclasses.replace(problem, queries=kept)
