"""A LOAD is decided when its executor is about to be free, and not before."""

from __future__ import annotations

from typing import ClassVar

import pytest

from mainspring.cluster.residency import at, hosts
from mainspring.messages.actions import Command, Load, Result, Unload
from mainspring.messages.events import Event, Wakeup, WorkerJoined
from mainspring.messages.operating import LoadOn, UnloadFrom
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.placing import LoadPlan, plan_load
from mainspring.scheduler.policies.clockwork import Clockwork
from mainspring.scheduler.policies.registry import policy_class, policy_names
from mainspring.scheduler.state import LOADERS_LOOKED_AT, SchedulerState
from mainspring.simulator.simulation import Simulation
from mainspring.simulator.spec import Faults
from tests.scheduler.hand import MS, Hand, spec

MODELS = 24
LOAD_NS = 8 * MS
DEMANDED = [name for name in policy_names() if name != "nexus"]
"""Those that load for what waits; nexus loads what it planned."""


def played(policy: str, jitter: float) -> list[tuple[int, Event | Command]]:
    """Play half a second of one device whose memory holds a sixth of the models that are asked for."""
    stream: list[tuple[int, Event | Command]] = []
    simulation = Simulation(
        SchedulerConfig(policy=policy, dispatch_delay_ms=0.3),
        [spec(f"m{number}", single_ms=1, load_ms=LOAD_NS // MS) for number in range(MODELS)],
        [("w0", "gpu", MODELS // 6)],
        seed=7,
        faults=Faults(duration_jitter=jitter),
        record=lambda now_ns, message: stream.append((now_ns, message)),
        validate_every=1,
    )
    for request_id in range(500):
        simulation.request(
            (100 + request_id) * MS, request_id + 1, f"m{request_id * 7 % MODELS}", 1, 100 * MS
        )
    simulation.run(1_000 * MS)
    return stream


@pytest.mark.parametrize("policy", DEMANDED)
@pytest.mark.parametrize("jitter", [0.0, 0.2])
def test_no_load_is_decided_before_its_executor_is_about_to_be_free(policy: str, jitter: float) -> None:
    ns = SchedulerState(policy_class(policy).complete(SchedulerConfig(dispatch_delay_ms=0.3))).ns
    # No LOAD begins before it can be there.
    lookahead_ns = max(ns.lookahead, ns.dispatch_delay)
    outstanding: dict[int, Load] = {}
    decided = most = 0
    for now_ns, message in played(policy, jitter):
        if isinstance(message, Result):
            outstanding.pop(message.action_id, None)
        elif isinstance(message, Load):
            assert message.predicted_begin_ns - now_ns <= lookahead_ns
            outstanding[message.action_id] = message
            decided += 1
            most = max(most, len(outstanding))
    assert decided > 30, "the LOAD executor is busy all the time"
    assert most <= 2 + lookahead_ns // LOAD_NS, "one runs, and one waits for it to end"


def test_the_end_of_an_early_load_gives_no_second_permission() -> None:
    """LOADs of 8 ms, and 5 ms of work in advance: the one that runs and the one behind it."""
    hand = Hand(*(spec(f"m{number}") for number in range(9)))
    (first,) = hand.request(0, 1, "m0", 200)
    for number in range(1, 9):
        assert hand.request(1, 1 + number, f"m{number}", 200) == []
    (second,) = wake(hand, 5)
    assert not [each for each in hand.ok(8, first) if isinstance(each, Load)], "the second runs until 16.5 ms"
    (third,) = wake(hand, 11.5)
    assert isinstance(third, Load)
    assert not [each for each in hand.ok(17, second) if isinstance(each, Load)]


def test_an_operator_is_told_that_a_worker_has_loads_enough() -> None:
    hand = Hand(spec("a"), spec("b"), spec("c"))
    (load,) = hand.request(0, 1, "a", 100)
    refusal = hand.scheduler.refusal(LoadOn("b", "w0"))
    assert refusal is not None
    assert "ask again" in refusal
    hand.ok(9, load)
    assert hand.scheduler.refusal(LoadOn("b", "w0")) is None
    assert hand.scheduler.refusal(UnloadFrom("b", "w0")) is not None


class Rash(Clockwork):
    """Plans a LOAD of whatever waits, on a worker with room or without."""

    name: ClassVar[str] = "rash"

    def next_load(self, now_ns: int) -> LoadPlan | None:
        for model in self.state.cluster.models.values():
            for worker in hosts(self.state.cluster, model):
                placement = at(self.state.cluster, model, worker)
                if model.queue and placement.loadable and (plan := plan_load(placement)) is not None:
                    return self.spoilt(plan)
        return None

    def spoilt(self, plan: LoadPlan) -> LoadPlan:
        return plan


class Greedy(Rash):
    """Takes pages that are another model's, who is not to go for it."""

    def spoilt(self, plan: LoadPlan) -> LoadPlan:
        return LoadPlan(plan.placement, plan.pages, ())


@pytest.mark.parametrize(
    ("policy", "pages", "complaint"), [("Rash", 8, "has no room"), ("Greedy", 1, "belong to first")]
)
def test_a_plan_that_cannot_be_carried_out_is_refused_before_anything_is_changed(
    policy: str, pages: int, complaint: str
) -> None:
    hand = Hand(spec("first"), spec("second"), pages=pages, policy=f"{__name__}:{policy}")  # type: ignore[arg-type]
    if policy == "Greedy":
        hand.warm("first")
    else:
        hand.request(0, 1, "first", 100)
    with pytest.raises(ValueError, match=f"planned a LOAD of 'second' on w0, but .*{complaint}"):
        hand.request(20 if policy == "Greedy" else 1, 2, "second", 100)
    hand.scheduler.validate()
    assert not [each for each in hand.scheduler.schedule(30 * MS) if isinstance(each, Unload)]


def wake(hand: Hand, now_ms: float) -> list[Command]:
    """Let the scheduler's own alarms ring."""
    return hand.feed(now_ms, Wakeup())


def test_of_very_many_workers_with_room_some_are_looked_at_and_all_in_turn() -> None:
    hand = Hand(workers=0)
    state = hand.scheduler._state
    for number in range(3 * LOADERS_LOOKED_AT + 5):
        hand.scheduler.handle(0, WorkerJoined(f"w{number}", "gpu", 8))
    looked_at = [[worker.name for worker in state.with_room()] for _ in range(4)]
    assert {len(names) for names in looked_at} == {LOADERS_LOOKED_AT}
    assert {name for names in looked_at for name in names} == set(hand.scheduler.cluster.workers)
