"""Shares of the devices' time: what each tenant gets while requests are dropped, and what he is charged."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import NamedTuple

import msgspec
import pytest

from mainspring.messages.actions import Command, Infer, Load, Reject, Result
from mainspring.messages.codes import Reason, Status
from mainspring.messages.events import Event, RequestArrived, Wakeup
from mainspring.messages.metrics import TenantStatus
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.core import Scheduler
from mainspring.scheduler.policies.registry import policy_class, policy_names
from mainspring.scheduler.tenants import level_of
from mainspring.simulator.run import simulate
from mainspring.simulator.spec import DeviceGroup, ModelGroup, SimulationSpec, WorkloadSpec
from tests.scheduler.hand import MS, Hand, spec

MODEL = ModelGroup(name="m", infer_ms={"1": 4.0, "2": 7.0, "4": 13.0, "8": 25.0}, load_ms=2.0, copies=2)
SPEC = SimulationSpec(
    devices=(DeviceGroup(pages=21),),
    models=(MODEL,),
    workload=(
        WorkloadSpec(load=0.4, tenant="mine", seed=1),
        WorkloadSpec(load=5.0, tenant="other", seed=2),
    ),
    warm_up_s=1.0,
    duration_s=4.0,
)


class Played(NamedTuple):
    """Outcome of a run."""

    in_time: dict[str, int]
    """Requests that were executed by their deadline, by tenant."""
    came: dict[str, int]
    rejects: list[Reject]
    whose: dict[int, RequestArrived]
    tenants: dict[str, TenantStatus]
    device_ns: int
    """Time of EXEC and LOAD that results tell of."""
    commands: list[tuple[int, Command]]
    again: list[tuple[int, Command]]
    """The commands of another scheduler that is given the same events."""


def play(spec: SimulationSpec) -> Played:
    """Play a spec, and have another scheduler decide it again by its events."""
    scheduler = Scheduler(spec.scheduler)
    whose: dict[int, RequestArrived] = {}
    actions: dict[int, Infer | Load] = {}
    device_ns = 0
    in_time: dict[str, int] = {}
    came: dict[str, int] = {}
    commands: list[tuple[int, Command]] = []
    again: list[tuple[int, Command]] = []

    def take(now_ns: int, entry: Event | Command) -> None:
        nonlocal device_ns
        if not isinstance(entry, Event):
            commands.append((now_ns, entry))
            if isinstance(entry, Infer | Load):
                actions[entry.action_id] = entry
            return
        scheduler.handle(now_ns, entry)
        again.extend([(now_ns, command) for command in scheduler.taken()])
        if isinstance(entry, Wakeup):
            again.extend([(now_ns, command) for command in scheduler.schedule(now_ns)])
        elif isinstance(entry, RequestArrived):
            whose[entry.request_id] = entry
            came[entry.tenant] = came.get(entry.tenant, 0) + 1
        elif isinstance(entry, Result) and (action := actions.get(entry.action_id)) is not None:
            device_ns += entry.end_ns - entry.begin_ns
            for request_id in action.request_ids if isinstance(action, Infer) else ():
                request = whose[request_id]
                if request.deadline_ns is None or entry.end_ns <= request.deadline_ns:
                    in_time[request.tenant] = in_time.get(request.tenant, 0) + 1

    simulate(spec, analyse=False, record=take)
    scheduler.validate()
    tenants = {each.tenant: each for each in scheduler.status().tenants}
    rejects = [command for _, command in commands if isinstance(command, Reject)]
    return Played(in_time, came, rejects, whose, tenants, device_ns, commands, again)


@cache
def flooded() -> Played:
    return play(SPEC)


def only(spec: SimulationSpec, place: int, **changes: object) -> SimulationSpec:
    return msgspec.structs.replace(
        spec,
        workload=(msgspec.structs.replace(spec.workload[place], **changes),),
    )


def test_who_asks_for_less_than_his_share_loses_little_to_who_asks_for_ten_times_his() -> None:
    alone = play(only(SPEC, 0))
    found = flooded()
    assert found.came["mine"] == alone.came["mine"] > 200
    # The first second, in which it shows that requests are dropped, counts here too.
    assert found.in_time["mine"] > 0.9 * alone.in_time["mine"]
    unnamed = play(only(SPEC, 1, tenant=""))
    assert sum(found.in_time.values()) > 0.93 * unnamed.in_time[""]


def test_who_is_alone_has_all() -> None:
    named, unnamed = play(only(SPEC, 1)), play(only(SPEC, 1, tenant=""))
    assert named.in_time["other"] >= 0.99 * unnamed.in_time[""]
    assert not [each for each in named.rejects if each.reason is Reason.OVER_SHARE]


def test_nobody_is_refused_while_nothing_is_dropped() -> None:
    lighter = msgspec.structs.replace(SPEC.workload[1], load=0.4)
    found = play(msgspec.structs.replace(SPEC, workload=(SPEC.workload[0], lighter)))
    assert not [each for each in found.rejects if each.reason is Reason.OVER_SHARE]
    assert found.tenants["other"].share == 0.0


def test_a_refusal_says_whose_share_it_is_and_when_to_come_again() -> None:
    refused = [each for each in flooded().rejects if each.reason is Reason.OVER_SHARE]
    assert len(refused) > 500
    named = {each.detail.split("'")[1] for each in refused}
    assert "other" in named
    for each in refused:
        assert flooded().whose[each.request_id].tenant in each.detail
        assert each.earliest_finish_ns is not None
        assert each.evidence is None


def test_weights_say_who_gets_how_much_if_both_ask_for_more() -> None:
    greedy = tuple(msgspec.structs.replace(each, load=3.0) for each in SPEC.workload)
    config = SchedulerConfig(tenant_weights={"mine": 3.0})
    found = play(msgspec.structs.replace(SPEC, workload=greedy, scheduler=config, duration_s=6.0))
    assert found.in_time["mine"] / found.in_time["other"] == pytest.approx(3.0, rel=0.15)


def test_what_tenants_are_charged_is_what_actions_took() -> None:
    found = flooded()
    charged = sum(each.device_ns for each in found.tenants.values())
    assert charged == pytest.approx(found.device_ns, rel=0.001)
    for name, each in found.tenants.items():
        assert each.requests == found.came[name]
        assert each.executed + each.dropped + each.over_share == pytest.approx(each.requests, abs=5)


@pytest.mark.parametrize("kind", [Infer, Load])
def test_nobody_is_charged_for_what_stood_still(kind: type[Infer | Load]) -> None:
    """Nor is a row of the model taken to cost more from then on."""
    hand, now_ms = Hand(spec("m"), policy="mainspring"), 0.0  # type: ignore[arg-type]
    for number in range(4):
        commands = hand.feed(now_ms, RequestArrived(number, "m", 1, int((now_ms + 200) * MS), tenant="mine"))
        while commands:
            (action,) = [each for each in commands if isinstance(each, Infer | Load)]
            took_ms = action.predicted_duration_ns / MS
            begin_ms, first = now_ms + 0.5, number == 1 if kind is Infer else number == 0
            now_ms = begin_ms + (3_000 if first and isinstance(action, kind) else took_ms)
            ended = Result(action.action_id, "w0", Status.OK, round(begin_ms * MS), round(now_ms * MS), 0, "")
            commands = [each for each in hand.feed(now_ms, ended) if isinstance(each, Infer | Load)]
    (mine,) = hand.scheduler.status().tenants
    assert mine.device_ns == (8 + 4 * mine.executed) * MS
    assert list(hand.scheduler._state.tenants._row_ns.values()) == [4 * MS]


def test_the_same_events_give_the_same_decisions() -> None:
    assert flooded().again == flooded().commands


@pytest.mark.parametrize("policy", [each for each in policy_names() if each != "mainspring"])
def test_every_policy_keeps_shares(policy: str) -> None:
    spec = msgspec.structs.replace(SPEC, scheduler=SchedulerConfig(policy=policy))
    alone, found = play(only(spec, 0)), play(spec)
    # Who serves late works off first, for seconds, what came until it was seen that all of it is late.
    least = 0.85 if policy_class(policy).refuses else 0.5
    assert found.in_time["mine"] > least * alone.in_time["mine"]


def test_a_client_that_asks_for_the_impossible_holds_nobody_back() -> None:
    hopeless = WorkloadSpec(rate=200.0, slo_ms=5.0, tenant="hopeless", seed=3)
    busy = msgspec.structs.replace(SPEC.workload[0], load=0.8)
    found = play(msgspec.structs.replace(SPEC, workload=(busy, hopeless)))
    assert found.in_time.get("hopeless", 0) == 0
    assert not [each for each in found.rejects if each.reason is Reason.OVER_SHARE]


@pytest.mark.parametrize("seed", range(200))
def test_all_of_what_there_is_is_given_out_and_nobody_gets_more_than_he_asks_for_at_anothers_cost(
    seed: int,
) -> None:
    random = Random(seed)
    asked = [(random.expovariate(1.0), random.choice([0.5, 1.0, 3.0])) for _ in range(random.randint(1, 9))]
    devices = random.uniform(0.1, 1.5) * sum(wanted for wanted, _ in asked)
    level = level_of(devices, asked)
    if level == 0.0:
        assert sum(wanted for wanted, _ in asked) <= devices * (1 + 1e-9)
        return
    given = [min(wanted, level * weight) for wanted, weight in asked]
    assert sum(given) == pytest.approx(devices)
