"""Clipper's batching in whole clusters: limits by hand, and figures 4 and 5 of the paper in virtual time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mainspring.messages.actions import Command, Infer
from mainspring.messages.codes import Status
from mainspring.messages.events import WorkerLeft
from mainspring.messages.model import ModelSpec, Profile
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.core import Scheduler
from mainspring.scheduler.policies.baselines.clipper import Clipper
from mainspring.simulator.device import Preloaded
from mainspring.simulator.simulation import Simulation
from tests.scheduler.hand import MS, Hand, spec

SECOND = 1_000 * MS


def hand(**options: Any) -> Hand:
    """Return a scheduler whose only worker holds the model "a", which takes 4, 6 or 10 ms."""
    made = Hand(spec("a"), policy="clipper", policy_options=options)  # type: ignore[arg-type]
    made.warm("a")
    return made


def ask(made: Hand, now_ms: float, first_id: int, count: int) -> list[Infer]:
    """Let so many requests come at once; return the INFERs."""
    commands: list[Command] = []
    for id_ in range(first_id, first_id + count):
        commands += made.request(now_ms, id_, "a", 50)
    return [command for command in commands if isinstance(command, Infer)]


def limit(made: Hand) -> int:
    """Return the limit of the only model on the only worker."""
    policy = made.scheduler._policy
    assert isinstance(policy, Clipper)
    ((rows,),) = [[each.rows for each in of.values()] for of in policy._limits.values()]
    return rows


def test_a_limit_grows_with_each_full_batch_and_falls_when_one_takes_too_long() -> None:
    made = hand(latency_objective_ms=8.0)
    assert limit(made) == 2, "one batch of one row was in time"
    (first,) = ask(made, 100, 1, 8)
    assert first.request_ids == (1,), "the device was free for the first"
    (second,) = made.ok(104, first)
    assert isinstance(second, Infer)
    assert second.request_ids == (2, 3), "a batch of one does not fill a limit of two"
    (third,) = made.ok(110, second)
    assert isinstance(third, Infer)
    assert (third.request_ids, third.batch_size) == ((4, 5, 6), 4), "three rows are padded to four"
    (fourth,) = made.ok(120, third)
    assert limit(made) == 2, "ten milliseconds are too long: 3 less a tenth"
    assert isinstance(fourth, Infer)
    assert fourth.request_ids == (7, 8)


def test_what_a_batch_may_take_is_what_its_hastiest_request_was_given() -> None:
    made = hand()
    (infer,) = made.request(100, 1, "a", 4.5)
    assert isinstance(infer, Infer)
    made.ok(104, infer)
    assert limit(made) == 1, "4 ms of 3.5"


def test_nothing_is_refused_or_dropped_for_being_late() -> None:
    made = hand(batch_limit="single")
    (first,) = made.request(100, 1, "a", 50)
    assert made.request(101, 2, "a", 1) == []
    (second,) = made.end(700, first, Status.OK)
    assert isinstance(second, Infer)
    assert second.request_ids == (2,)


def test_a_batch_below_its_limit_waits_for_more() -> None:
    made = hand(batch_wait_ms=2.0)
    assert ask(made, 100, 1, 1) == []
    assert made.scheduler.next_wakeup_ns() == 102 * MS
    (infer,) = ask(made, 101, 2, 1)
    assert infer.request_ids == (1, 2), "it came to its limit"


def test_a_lost_worker_takes_its_limits_along() -> None:
    made = hand()
    made.feed(100, WorkerLeft("w0", "test"))
    policy = made.scheduler._policy
    assert isinstance(policy, Clipper)
    assert policy._limits == {}


def container(fixed_ms: float, each_ms: float, most_rows: int) -> ModelSpec:
    """Return a model whose batches take a fixed time, and more for each row."""
    sizes = tuple(range(1, most_rows + 1))
    infer_ns = {size: round((fixed_ms + each_ms * size) * MS) for size in sizes}
    return msgspec.structs.replace(
        spec("m"), batch_sizes=sizes, executable="container", profiles={"gpu": Profile(infer_ns, MS)}
    )


def answered(model: ModelSpec, per_second: int, seconds: float, lookahead_ms: float, **options: Any) -> float:
    """Return the answers per second of one replica to evenly spread requests, in the run's second half."""
    config = SchedulerConfig(policy="clipper", policy_options=options, lookahead_ms=lookahead_ms)
    held = {"w0": Preloaded([model], [model])}
    simulation = Simulation(config, [model], [("w0", "gpu", 8)], preloaded=held)
    end_ns = round(seconds * SECOND)
    for id_ in range(1, round(per_second * seconds) + 1):
        simulation.request(id_ * SECOND // per_second, id_, "m", slo_ns=100 * SECOND)
    simulation.run(end_ns)
    times_ns = [outcome.answered_ns for outcome in simulation.outcomes.values() if outcome.answered_ns]
    return sum(end_ns // 2 < when_ns <= end_ns for when_ns in times_ns) / (seconds / 2)


def test_figure_4_in_a_cluster() -> None:
    """A replica whose batches of 32 take 20 ms, kept busy: 6 times as many queries, by either strategy."""
    model = container(fixed_ms=3.4, each_ms=0.51875, most_rows=64)
    objective = {"latency_objective_ms": 20.0}
    rates = {
        strategy: answered(model, 2_000, 4.0, 1.0, batch_limit=strategy, **objective)
        for strategy in ("single", "aimd", "quantile")
    }
    best = 32 / 0.020
    assert rates["single"] == pytest.approx(1 / 0.00391875, rel=0.03)
    assert 0.93 * best <= rates["aimd"] <= 1.01 * best
    assert rates["aimd"] == pytest.approx(rates["quantile"], rel=0.08)


SPARK_SVM = container(fixed_ms=0.05, each_ms=0.40, most_rows=16)
SKLEARN_SVM = container(fixed_ms=1.60, each_ms=0.05, most_rows=16)


@pytest.mark.parametrize(
    ("model", "gain"), [(SPARK_SVM, 1.0), (SKLEARN_SVM, 3.3)], ids=["spark", "scikit-learn"]
)
def test_figure_5_a_delay_of_2_ms_gives_3_times_the_throughput_where_the_fixed_cost_is_high(
    model: ModelSpec, gain: float
) -> None:
    """The demand is moderate: 3.3 times what the model with the fixed cost serves one by one.

    As in the paper, batches are sent when they are ready, whether or not the container still has others.
    """
    options = {"lookahead_ms": 10_000.0, "latency_objective_ms": 20.0}
    demand = 2_000
    at_once = answered(model, demand, 2.0, batch_wait_ms=0.0, **options)
    delayed = answered(model, demand, 2.0, batch_wait_ms=2.0, **options)
    assert delayed == pytest.approx(demand, rel=0.02), "it keeps up with the demand"
    assert delayed / at_once == pytest.approx(gain, rel=0.03)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"backoff": 1.0}, "backoff is 1.0; it must be between 0 and 1"),
        ({"additive_step": 0.0}, "additive_step is 0.0; it must be greater than 0"),
        ({"batch_wait_ms": -1.0}, "batch_wait_ms is -1.0; it must be at least 0"),
        ({"quantile_window": 1}, "a line takes 2 batches at least"),
        ({"batch_limit": "best"}, "batch_limit"),
    ],
)
def test_options_that_can_not_be_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Scheduler(SchedulerConfig(policy="clipper", policy_options=options))
