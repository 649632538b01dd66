"""What the released Clockwork does otherwise than appendix B."""

from __future__ import annotations

import pytest

from mainspring.cluster.models import Model
from mainspring.cluster.placements import State
from mainspring.cluster.workers import Worker
from mainspring.messages.actions import Infer, Load
from mainspring.messages.codes import Reason
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.core import Scheduler
from mainspring.scheduler.policies.baselines.clockwork_release import ClockworkRelease
from mainspring.scheduler.policies.clockwork import Clockwork
from mainspring.scheduler.policies.demand import DemandLoads
from mainspring.scheduler.policies.options import NoOptions, ReleaseOptions
from mainspring.scheduler.state import SchedulerState
from tests.cluster import made
from tests.scheduler.hand import MS, Hand, reasons, spec
from tests.scheduler.policies.warm import Warm
from tests.scheduler.test_clockwork import Bench
from tests.scheduler.test_clockwork import spec as plain_spec


def warm(models: int) -> Warm:
    """Batches of 1, 2 and 4 take 4, 6 and 10 ms."""
    config = SchedulerConfig(policy="clockwork-release", response_margin_ms=0.1)
    return Warm(config, [spec(f"m{index}") for index in range(models)])


def test_work_is_given_ten_milliseconds_ahead_and_five_are_taken_off_each_slo() -> None:
    bench = warm(2)
    config = bench.scheduler._state.config
    assert (config.lookahead_ms, config.response_margin_ms) == (10.0, 5.0)
    assert [infer.model for _, infer in bench.ask(0, "m0", 60)] == ["m0"]
    (_, infer), *_ = bench.ask(0, "m1", 60)
    assert infer.predicted_begin_ns == 4_500_000
    wider = SchedulerConfig(policy="clockwork-release", response_margin_ms=8.0)
    assert Scheduler(wider)._state.config.response_margin_ms == 8.0


def test_a_request_in_vain_waits_until_nothing_can_save_it() -> None:
    hand = Hand(spec("m"), policy="clockwork-release")  # type: ignore[arg-type]
    commands = hand.request(0, 1, "m", 12)
    assert reasons(commands) == []
    while not reasons(commands):
        wakeup_ns = hand.scheduler.next_wakeup_ns()
        assert wakeup_ns is not None
        commands = hand.scheduler.schedule(wakeup_ns)
    assert reasons(commands) == [Reason.DEADLINE_PASSED]
    assert wakeup_ns == pytest.approx((12 - 5 - 4 - 0.5) * MS, abs=2)


def chosen(policy: Clockwork, dues_ms: list[list[int]], available_ms: int) -> tuple[str, list[int]]:
    """The model and the due instants of the batch that a policy chooses from queues on one worker."""
    worker = Worker("w0", 1, "gpu", 64)
    for number, dues in enumerate(dues_ms, start=1):
        model = Model(plain_spec(f"m{number}"), number)
        policy.state.cluster.models[model.name] = model
        policy.state.cluster.place(model, worker).make_up(State.RESIDENT)
        for id_, due_ms in enumerate(dues, start=1):
            request = made.request(id_, model, 1, 0, due_ms * MS)
            model.queue.add(request)
            policy.queued(0, request)
    batch = policy.next_batch(0, worker, available_ms * MS)
    assert batch is not None
    return batch.placement.model.name, [(request.due_ns or 0) // MS for request in batch.requests]


@pytest.mark.parametrize(("largest", "rows"), [(1, 1), (2, 2), (3, 2), (4, 4), (16, 4)])
def test_batches_have_a_largest_size(largest: int, rows: int) -> None:
    policy = ClockworkRelease(SchedulerState(SchedulerConfig()), ReleaseOptions(largest_batch=largest))
    assert chosen(policy, [[60, 61, 62, 63, 64]], 12) == ("m1", [60, 61, 62, 63, 64][:rows])


def test_the_earliest_start_of_any_size_decides_whose_turn_it_is() -> None:
    """Alone the first request has to start at 13 ms, the other model's at 36, the batch of two at 54."""
    queues = [[17, 60, 60], [40]]
    assert chosen(Clockwork(SchedulerState(SchedulerConfig()), NoOptions()), queues, 12) == ("m2", [40])
    release = ClockworkRelease(SchedulerState(SchedulerConfig()), ReleaseOptions())
    assert chosen(release, queues, 12) == ("m1", [60, 60])


def test_only_what_came_lately_is_demand_for_a_load() -> None:
    bench = Bench([plain_spec("a")])
    loads = DemandLoads(bench.state, 25 * MS)
    for id_, arrived_ms in enumerate((0, 10, 30, 34), start=1):
        request = made.request(id_, bench.models[0], 1, arrived_ms * MS, (arrived_ms + 200) * MS)
        bench.models[0].queue.add(request)
    loads.update(35 * MS, bench.models[0])
    assert loads.of(bench.models[0]).demand_ns == 3 * 4 * MS
    DemandLoads(bench.state).update(35 * MS, bench.models[0])
    assert loads.of(bench.models[0]).demand_ns == 4 * 4 * MS


def test_a_model_that_is_nowhere_is_loaded_and_served() -> None:
    hand = Hand(spec("m"), policy="clockwork-release")  # type: ignore[arg-type]
    (load,) = [c for c in hand.request(0, 1, "m", 100) if isinstance(c, Load)]
    (infer,) = [c for c in hand.ok(9, load) if isinstance(c, Infer)]
    assert infer.request_ids == (1,)


@pytest.mark.parametrize("options", [{"largest_batch": 0}, {"load_slo_ms": 0}])
def test_options_that_make_no_sense_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Scheduler(SchedulerConfig(policy="clockwork-release", policy_options=dict(options)))
