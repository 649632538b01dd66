"""What a policy lets one set, and what else it may decide differently: the seam, with small policies."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import pytest

from mainspring.cluster.models import Model
from mainspring.cluster.requests import Request
from mainspring.cluster.workers import Worker
from mainspring.messages.actions import Infer, Load, Reject
from mainspring.messages.codes import Reason, Status
from mainspring.messages.events import Wakeup
from mainspring.scheduler.alarms import Alarm
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.core import Scheduler
from mainspring.scheduler.policies.base import Batch, Policy
from mainspring.scheduler.policies.clockwork import Clockwork
from mainspring.scheduler.state import SchedulerState
from mainspring.simulator.scenario import SECOND, random_scenario, run_to_end
from tests.scheduler.hand import Hand, spec

HERE = "tests.scheduler.policies.test_options:"
HOLD_NS = 2_000_000


class HoldOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What may be set of `Patient`."""

    hold_ms: float = 2.0
    """How long a batch waits for company."""


class Patient(Clockwork):
    """Waits with each batch, and keeps what nobody can serve in time."""

    name = "patient"
    Options: ClassVar[type[msgspec.Struct]] = HoldOptions
    lookahead_ms: ClassVar[float] = 0.5
    pads_batches: ClassVar[bool] = False
    idle_loads: ClassVar[bool] = True
    refuses: ClassVar[bool] = False
    serves_late: ClassVar[bool] = True

    def __init__(self, state: SchedulerState, options: msgspec.Struct) -> None:
        super().__init__(state, options)
        self.rungs: list[int] = []
        self.executions = 0

    def give_up_ns(self, request: Request, last_start_ns: int) -> int | None:
        return None

    def next_batch(self, now_ns: int, worker: Worker, available_ns: int) -> Batch | None:
        for placement in worker.placements.values():
            if placement.usable and placement.model.queue.dues:
                oldest_ns = min(request.arrived_ns for request in placement.model.queue)
                if now_ns < oldest_ns + HOLD_NS:
                    self.state.arm_exec(oldest_ns + HOLD_NS, worker)
                    continue
                first = next(iter(placement.model.queue))
                return Batch(placement, placement.times.index_for(first.rows), [first])
        return None

    def on_alarm(self, now_ns: int) -> None:
        self.rungs.append(now_ns)

    def executed(self, *args: object) -> None:
        self.executions += 1


class Counting(Clockwork):
    """Counts what it is told."""

    name = "counting"

    def __init__(self, state: SchedulerState, options: msgspec.Struct) -> None:
        super().__init__(state, options)
        self.joined: list[str] = []
        self.turned_away = self.given_up = 0

    def worker_joined(self, now_ns: int, worker: Worker) -> None:
        assert worker.name in self.state.cluster.workers
        self.joined.append(worker.name)

    def refused(self, now_ns: int, model: Model, rows: int) -> None:
        self.turned_away += 1

    def gave_up(self, now_ns: int, request: Request) -> None:
        assert request.due_ns is not None
        self.given_up += 1


def policy_of(scheduler: Scheduler) -> Policy:
    return scheduler._policy


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"hold_mss": 1.0}, "has no option 'hold_mss'; did you mean 'hold_ms'"),
        ({"zebra": 1}, "has no option 'zebra'; it has hold_ms"),
        ({"hold_ms": "soon"}, "Expected `float`, got `str`"),
    ],
)
def test_an_option_that_is_wrong_is_refused(options: dict[str, bool | int | float | str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Scheduler(SchedulerConfig(policy=HERE + "Patient", policy_options=options))


def test_clockwork_has_no_such_option() -> None:
    with pytest.raises(ValueError, match="policy 'clockwork' has no option 'hold_ms'"):
        Scheduler(SchedulerConfig(policy="clockwork", policy_options={"hold_ms": 1.0}))


def test_options_reach_the_policy_and_its_defaults_fill_the_configuration() -> None:
    scheduler = Scheduler(SchedulerConfig(policy=HERE + "Patient", policy_options={"hold_ms": 3}))
    policy = policy_of(scheduler)
    assert policy.options == HoldOptions(hold_ms=3.0)
    config = policy.state.config
    assert (config.lookahead_ms, config.pad_batches, config.idle_loads) == (0.5, False, True)
    assert policy.state.ns.lookahead == 500_000
    given = SchedulerConfig(policy=HERE + "Patient", lookahead_ms=4.0, pad_batches=True, idle_loads=False)
    config = policy_of(Scheduler(given)).state.config
    assert (config.lookahead_ms, config.pad_batches, config.idle_loads) == (4.0, True, False)


def test_a_policy_may_wait_and_serve_late_and_every_request_has_one_reply() -> None:
    late = 0
    for seed in range(8):
        simulation = random_scenario(seed, policy=HERE + "Patient", length_ns=SECOND, validate_every=11)
        run_to_end(simulation, SECOND)
        policy = policy_of(simulation.scheduler)
        assert isinstance(policy, Patient)
        for outcome in simulation.outcomes.values():
            deadline_ns, answered_ns = outcome.request.deadline_ns, outcome.answered_ns
            late += bool(deadline_ns and answered_ns and outcome.reason is None and answered_ns > deadline_ns)
            assert outcome.reason not in (Reason.DEADLINE_UNREACHABLE, Reason.DEADLINE_PASSED) or deadline_ns
        if any(outcome.reason is None and outcome.answered_ns for outcome in simulation.outcomes.values()):
            assert policy.executions
    assert late


def test_a_policys_alarm_rings_when_it_was_set_for() -> None:
    scheduler = Scheduler(SchedulerConfig(policy=HERE + "Patient"))
    policy = policy_of(scheduler)
    assert isinstance(policy, Patient)
    policy.state.alarms.set(7_000, Alarm.POLICY)
    scheduler.schedule(6_999)
    assert policy.rungs == []
    assert scheduler.next_wakeup_ns() == 7_000
    scheduler.schedule(7_000)
    assert policy.rungs == [7_000]


def test_a_policy_hears_of_workers_and_of_what_is_turned_away() -> None:
    heard = 0
    for seed in range(8):
        simulation = random_scenario(seed, policy=HERE + "Counting", length_ns=SECOND, validate_every=50)
        run_to_end(simulation, SECOND)
        policy = policy_of(simulation.scheduler)
        assert isinstance(policy, Counting)
        assert {worker.name for worker in simulation.workers.values()} <= set(policy.joined)
        reasons = [outcome.reason for outcome in simulation.outcomes.values()]
        assert policy.turned_away >= reasons.count(Reason.DEADLINE_UNREACHABLE)
        heard += policy.turned_away + policy.given_up
    assert heard


@pytest.mark.parametrize("policy", ["fifo", "clockwork"])
def test_only_a_deadline_that_is_kept_lets_actions_come_too_late_again_and_again(policy: str) -> None:
    hand = Hand(spec("m"), policy=policy)  # type: ignore[arg-type]
    hand.warm("m")
    commands = hand.request(100, 1, "m", slo_ms=10_000)
    attempts, now_ms = 0, 100.0
    while not any(isinstance(command, Reject) for command in commands) and now_ms < 400:
        actions = [command for command in commands if isinstance(command, Infer)]
        attempts += len(actions)
        now_ms += 10
        results = [hand.end(now_ms, action, Status.TOO_LATE) for action in actions]
        commands = [command for result in results for command in result] or hand.feed(now_ms, Wakeup())
    if policy == "fifo":
        assert attempts == SchedulerConfig().max_attempts
    else:
        assert attempts > 2 * SchedulerConfig().max_attempts


def test_a_request_that_the_policy_keeps_no_longer_is_told_so() -> None:
    hand = Hand(spec("m"), policy="fifo", policy_options={"queue_timeout_ms": 5.0})  # type: ignore[arg-type]
    (load,) = hand.request(0, 1, "m", slo_ms=10_000)
    assert isinstance(load, Load)
    rejected = [command for command in hand.feed(6, Wakeup()) if isinstance(command, Reject)]
    assert [command.detail for command in rejected] == ["waited 6.0 ms; the policy keeps it no longer"]
