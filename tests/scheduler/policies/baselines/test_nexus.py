"""Planned batches in turn, early drop, and plans by the rates of the last epochs."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from mainspring.messages.actions import Infer, Load
from mainspring.messages.events import ModelAdded, WorkerJoined, WorkerLeft
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.core import Scheduler
from mainspring.scheduler.policies.baselines.nexus import Nexus
from tests.scheduler.hand import MS, Hand, spec
from tests.scheduler.policies.warm import Warm


def warm(models: int = 1, workers: int = 1) -> Warm:
    """Batches of 1, 2 and 4 take 4, 6 and 10 ms."""
    config = SchedulerConfig(policy="nexus", response_margin_ms=0.0)
    return Warm(config, [spec(f"m{index}") for index in range(models)], workers)


def policy_of(scheduler: Scheduler) -> Nexus:
    policy = scheduler._policy
    assert isinstance(policy, Nexus)
    return policy


def plan_of(scheduler: Scheduler) -> dict[str, dict[str, int]]:
    """The planned batch size of each model on each worker."""
    names = {model.number: name for name, model in scheduler._state.cluster.models.items()}
    return {
        worker: {names[number]: (1, 2, 4)[index] for number, index in turns.planned.items()}
        for worker, turns in policy_of(scheduler)._turns.items()
    }


def play(bench: Warm, models: dict[str, tuple[float, float]], until_ms: float) -> list[Infer]:
    """Ask for each model every so many ms with an SLO in ms, and answer each INFER as it was predicted."""
    asks = [
        (number * gap_ms, name, slo_ms)
        for name, (gap_ms, slo_ms) in models.items()
        for number in range(1, int(until_ms / gap_ms))
    ]
    running: list[tuple[float, int, Infer]] = []
    done = []
    for at_ms, name, slo_ms in sorted(asks):
        while running and running[0][0] <= at_ms:
            end_ms, _, infer = running.pop(0)
            done.append(infer)
            sent = bench.end(end_ms, infer)
            running += [_run(each) for _, each in sent]
            running.sort()
        sent = bench.ask(at_ms, name, slo_ms)
        running += [_run(each) for _, each in sent]
        running.sort()
    while running:
        end_ms, _, infer = running.pop(0)
        done.append(infer)
        running += [_run(each) for _, each in bench.end(end_ms, infer)]
        running.sort()
    return done


def _run(infer: Infer) -> tuple[float, int, Infer]:
    return (infer.predicted_begin_ns + infer.predicted_duration_ns) / MS, infer.action_id, infer


def test_models_take_turns() -> None:
    bench = warm(3)
    ((_, running),) = bench.ask(0, "m0", 400)
    bench.ask(0.1, "m0", 400, count=9)
    bench.ask(0.2, "m1", 400, count=9)
    bench.ask(0.3, "m2", 400, count=9)
    order = []
    for _ in range(6):
        ends_ms = (running.predicted_begin_ns + running.predicted_duration_ns) / MS
        ((_, running), *_) = [*bench.until(ends_ms), *bench.end(ends_ms, running)]
        order.append(running.model)
    assert sorted(order[:3]) == ["m0", "m1", "m2"]
    assert order[3:] == order[:3]


def test_early_drop_begins_where_the_planned_batch_is_in_time() -> None:
    """A request that could only be served alone is passed over; so it is not for a batch of fewer."""
    bench = warm(2)
    ((_, running),) = bench.ask(0, "m1", 60)
    bench.ask(0.2, "m0", 60, count=4)
    bench.ask(0.3, "m0", 12)
    sent = bench.until(4.5) + bench.end(4.5, running)
    assert [infer.request_ids for _, infer in sent] == [(2, 3, 4, 5)]
    bench = warm(2)
    ((_, running),) = bench.ask(0, "m1", 60)
    bench.ask(0.2, "m0", 60)
    bench.ask(0.3, "m0", 12)
    sent = bench.until(4.5) + bench.end(4.5, running)
    assert [infer.request_ids for _, infer in sent] == [(3, 2)]


def test_batches_are_those_of_the_plan() -> None:
    """Each 8 ms a request: three of them come in a cycle of 26 ms before a batch of 4 takes 10."""
    bench = warm(2)
    done = play(bench, {"m0": (8, 40), "m1": (8, 40)}, 3000)
    assert plan_of(bench.scheduler) == {"w0": {"m0": 4, "m1": 4}}
    assert max(infer.batch_size for infer in done) <= 4
    assert len(done) > 200


def test_a_model_that_keeps_several_devices_busy_has_them_well_before_a_whole_epoch() -> None:
    """One device serves 400 rows a second in batches of 4; four are there and 1,000 a second come."""
    bench = warm(workers=4)
    play(bench, {"m0": (1, 40)}, 200)
    assert len(plan_of(bench.scheduler)) >= 3


def test_models_are_spread_by_their_rates_and_stay_where_they_are() -> None:
    bench = warm(4, workers=2)
    play(bench, {f"m{index}": (7 + index, 30) for index in range(4)}, 2500)
    plan = plan_of(bench.scheduler)
    assert sorted(name for models in plan.values() for name in models) == ["m0", "m1", "m2", "m3"]
    play_more = {f"m{index}": (7 + index, 30) for index in range(4)}
    for name, (gap_ms, slo_ms) in play_more.items():
        bench.ask(bench.now_ms + gap_ms, name, slo_ms)
    bench.until(bench.now_ms + 1000)
    assert {w: set(m) for w, m in plan_of(bench.scheduler).items()} == {w: set(m) for w, m in plan.items()}


def test_what_nobody_asks_for_any_more_is_planned_for_no_more_and_time_stands_still() -> None:
    bench = warm(2)
    play(bench, {"m0": (9, 40)}, 1500)
    bench.until(60_000)
    assert plan_of(bench.scheduler) == {"w0": {}}
    assert not policy_of(bench.scheduler)._sessions


def test_a_model_that_is_nowhere_is_loaded_and_served() -> None:
    hand = Hand(spec("a"), spec("b"), pages=2, policy="nexus")  # type: ignore[arg-type]
    for id_, name in ((1, "a"), (2, "b")):
        (load,) = [c for c in hand.request(id_ * 20, id_, name, 100) if isinstance(c, Load)]
        assert load.model == name
        (infer,) = [c for c in hand.ok(id_ * 20 + 9, load) if isinstance(c, Infer)]
        hand.ok(id_ * 20 + 14, infer)


def test_a_lost_workers_models_are_served_elsewhere() -> None:
    bench = warm(2, workers=2)
    bench.ask(0, "m0", 100)
    bench.ask(0, "m1", 100)
    (home,) = [w for w, models in plan_of(bench.scheduler).items() if "m0" in models]
    bench.scheduler.handle(MS, WorkerLeft(home, "crashed"))
    bench.scheduler.schedule(MS)
    other = "w1" if home == "w0" else "w0"
    sent = bench.ask(2, "m0", 100)
    assert {infer.worker for _, infer in sent} <= {other}
    assert "m0" in plan_of(bench.scheduler)[other]


def test_models_and_workers_that_come_later_are_planned_for() -> None:
    bench = warm(1)
    new = spec("new")
    bench.scheduler.handle(0, ModelAdded(new))
    prepared = {new.name: new.artifact, "m0": spec("m0").artifact}
    bench.scheduler.handle(0, WorkerJoined("w9", "gpu", 4, prepared))
    bench.scheduler.schedule(0)
    bench.ask(1, "new", 100)
    assert plan_of(bench.scheduler)["w9"] == {"new": 4}
    bench.until(1001.5)
    assert {name for models in plan_of(bench.scheduler).values() for name in models} == {"new"}


@pytest.mark.parametrize(
    "options", [{"epoch_ms": 0}, {"smoothing": 0.0}, {"smoothing": 1.5}, {"headroom": -0.1}]
)
def test_options_that_make_no_sense_are_refused(options: Mapping[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Scheduler(SchedulerConfig(policy="nexus", policy_options=dict(options)))
