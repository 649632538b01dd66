from __future__ import annotations

import itertools

import numpy as np
import pytest

from mainspring.experiments.figures.workloads import Delayed, Growing, Stages, Together
from mainspring.traces.arrival import SECOND_NS, WorkloadError
from mainspring.traces.generators import Poisson, closed_loop


def rng() -> np.random.Generator:
    return np.random.default_rng(1)


def test_stages_follow_each_other_with_their_own_slo() -> None:
    poisson = Poisson({"a": 100.0})
    stages = Stages(tuple(poisson.with_requests(slo_ns=slo_ns) for slo_ns in (10, 20, 30)), SECOND_NS)
    arrivals = list(stages.arrivals(rng()))
    assert [arrival.time_ns for arrival in arrivals] == sorted(arrival.time_ns for arrival in arrivals)
    assert {(arrival.time_ns // SECOND_NS, arrival.slo_ns) for arrival in arrivals} == {
        (0, 10),
        (1, 20),
        (2, 30),
    }
    assert 200 < len(arrivals) < 400


def test_stages_need_a_length() -> None:
    with pytest.raises(WorkloadError, match="positive length"):
        Stages((Poisson({"a": 1.0}),), 0)


def test_one_more_model_is_asked_for_after_each_step() -> None:
    names = tuple(f"m{number}" for number in range(10))
    arrivals = list(Growing(names, 2_000.0, SECOND_NS).cut(0, 12 * SECOND_NS).arrivals(rng()))
    for second in range(12):
        asked = {each.model for each in arrivals if each.time_ns // SECOND_NS == second}
        assert asked == set(names[: second + 1])
    assert len(arrivals) == pytest.approx(24_000, rel=0.05)


def test_a_delayed_workload_is_the_same_later() -> None:
    poisson = Poisson({"a": 100.0})
    plain = itertools.islice(poisson.arrivals(rng()), 20)
    delayed = itertools.islice(Delayed(poisson, 500).arrivals(rng()), 20)
    assert [each.time_ns + 500 for each in plain] == [each.time_ns for each in delayed]


def test_open_and_closed_loops_are_played_together() -> None:
    open_loop = Poisson({"open": 50.0}).cut(0, SECOND_NS)
    loops = [
        closed_loop([name], concurrency=2, duration_ns=SECOND_NS, slo_ns=None) for name in ("one", "two")
    ]
    source = Together((open_loop, *loops)).source(rng())
    counts = {"open": 0, "one": 0, "two": 0}
    before_ns = 0
    while (due_ns := source.next_ns()) is not None:
        arrival = source.take()
        assert arrival.time_ns == due_ns >= before_ns
        before_ns = due_ns
        counts[arrival.model] += 1
        if arrival.client >= 0:
            # Clients of "two" are answered twice as fast.
            source.completed(arrival.client, due_ns + (20_000_000 if arrival.model == "one" else 10_000_000))
    assert source.done(SECOND_NS)
    assert 30 < counts["open"] < 75
    assert counts["one"] == pytest.approx(100, abs=12)
    assert counts["two"] == pytest.approx(200, abs=22)
