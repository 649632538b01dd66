"""Models that can't be loaded, take far too long or were replaced, and workers that stop."""

import gc
import weakref

import msgspec
import pytest

from mainspring.cluster.membership import OVERDUE
from mainspring.messages.actions import Command, DropWorker, Infer, Load, Prepare, Reject, Release, Unload
from mainspring.messages.codes import Reason, Status
from mainspring.messages.events import ModelAdded, ModelRemoved, ModelRestored, WorkerJoined, WorkerLeft
from mainspring.messages.model import Profile
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.simulation import Simulation
from tests.scheduler.hand import MS, Hand, reasons, spec


def until(hand: Hand, now_ms: float) -> list[Command]:
    """What comes out at each wake-up up to an instant."""
    commands: list[Command] = []
    while (wakeup_ns := hand.scheduler.next_wakeup_ns()) is not None and wakeup_ns <= now_ms * MS:
        commands += hand.scheduler.schedule(wakeup_ns)
        hand.scheduler.validate()
    return commands


def broken_hand() -> tuple[Hand, Infer, float]:
    """A model whose LOAD has failed for the third time, with an INFER behind it outstanding."""
    hand, now_ms = Hand(spec("m")), 0.0
    commands = hand.request(0, 1, "m", 5000)
    for attempt in range(3):
        (load,) = [c for c in commands if isinstance(c, Load)]
        (infer,) = [c for c in until(hand, now_ms + 8) if isinstance(c, Infer)]
        now_ms += 9
        commands = hand.end(now_ms, load, Status.ENGINE_ERROR, "altered")
        if attempt < 2:
            now_ms += 20
            commands += hand.end(now_ms, infer, Status.NOT_RESIDENT)
    assert commands == []
    return hand, infer, now_ms


def test_a_model_that_could_not_be_loaded_is_released_once_nothing_is_outstanding() -> None:
    hand, infer, now_ms = broken_hand()
    assert hand.scheduler.status().models[0].failed_on == ("w0: altered",)
    assert hand.feed(now_ms, ModelRemoved("m")) == []
    assert hand.feed(now_ms, ModelAdded(spec("m", version="2"))) == []
    commands = hand.end(now_ms + 20, infer, Status.NOT_RESIDENT)
    assert reasons(commands) == [Reason.MODEL_REMOVED]
    (release,) = [c for c in commands if isinstance(c, Release)]
    (prepare,) = hand.ok(now_ms + 21, release)
    assert isinstance(prepare, Prepare)
    assert prepare.model.weights_hash == "m version 2"
    hand.ok(now_ms + 22, prepare)
    assert [type(c) for c in hand.request(now_ms + 30, 2, "m", 100)] == [Load]


def test_a_request_behind_the_last_load_that_failed_is_answered_at_once() -> None:
    hand, infer, now_ms = broken_hand()
    (refusal,) = hand.end(now_ms + 20, infer, Status.NOT_RESIDENT)
    assert isinstance(refusal, Reject)
    assert refusal.reason is Reason.NO_WORKER, "its deadline is seconds away"
    assert refusal.detail == "no worker could run model 'm'; w0 says: altered"
    assert reasons(hand.request(now_ms + 21, 2, "m", None)) == [Reason.NO_WORKER]


def test_a_model_that_could_not_be_prepared_is_forgotten_without_a_release() -> None:
    hand = Hand(workers=0)
    hand.feed(0, ModelAdded(spec("m")))
    (prepare,) = hand.feed(0, WorkerJoined("w0", "gpu", 8))
    hand.end(1, prepare, Status.ENGINE_ERROR, "damaged")
    assert [type(c) for c in hand.feed(2, ModelAdded(spec("m", version="2")))] == [Prepare]


def test_a_model_that_was_removed_while_its_prepare_fails_is_forgotten() -> None:
    hand = Hand(workers=0)
    hand.feed(0, ModelAdded(spec("m")))
    (prepare,) = hand.feed(0, WorkerJoined("w0", "gpu", 8))
    hand.feed(1, ModelRemoved("m"))
    assert hand.end(2, prepare, Status.ENGINE_ERROR, "damaged") == []
    assert hand.scheduler.status().models == ()
    assert [type(c) for c in hand.feed(3, ModelAdded(spec("m", version="2")))] == [Prepare]


@pytest.mark.parametrize("gap_ms", [0.05, 50])
def test_a_command_for_a_model_that_was_just_replaced_is_kept(gap_ms: float) -> None:
    simulation = Simulation(SchedulerConfig(), [spec("m")], [("w0", "gpu", 8)], validate_every=1)
    simulation.request(100 * MS, 1, "m", 1, None)
    simulation.feed(1000 * MS, ModelAdded(spec("m", version="2")))
    simulation.request(int((1000 + gap_ms) * MS), 2, "m", 1, None)
    simulation.run(5000 * MS)
    assert simulation.outcomes[2].answered_ns is not None


def test_the_end_of_a_removed_model_leaves_its_successors_demand_alone() -> None:
    hand = Hand(spec("m", single_ms=40), workers=2, pages=1)
    (load,) = [c for c in hand.request(0, 1, "m", 1000) if isinstance(c, Load)]
    (infer,) = [c for c in hand.ok(9, load) if isinstance(c, Infer)]
    hand.prepare(hand.feed(10, ModelAdded(spec("b", single_ms=40))), 10)
    (load,) = [c for c in hand.request(11, 2, "b", 1000) if isinstance(c, Load)]
    (last,) = [c for c in hand.ok(20, load) if isinstance(c, Infer)]
    for release in hand.feed(21, ModelAdded(spec("m", single_ms=40, version="2"))):
        if isinstance(release, Release):
            hand.prepare(hand.ok(21, release), 21)
    assert hand.request(25, 3, "m", 400) == [], "no page is free"
    hand.ok(50, infer)
    assert [c.model for c in hand.ok(60, last) if isinstance(c, Load)] == ["m"]


def slow_hand() -> Hand:
    """A model that is believed to take 50 ms, resident on the only worker."""
    times = Profile({1: 50 * MS, 2: 100 * MS, 4: 200 * MS}, 8 * MS)
    hand = Hand(msgspec.structs.replace(spec("m"), profiles={"gpu": times}))
    hand.warm("m")
    return hand


def overdue(hand: Hand, now_ms: float, id_: int) -> float:
    """Let an INFER of a best-effort request be owed until the worker is dropped for it; return when."""
    commands = hand.request(now_ms, id_, "m", None)
    while not any(isinstance(c, DropWorker) for c in commands):
        loads = [c for c in commands if isinstance(c, Load)]
        if loads:
            now_ms += 8
            commands = hand.ok(now_ms, loads[0])
            continue
        wakeup_ns = hand.scheduler.next_wakeup_ns()
        assert wakeup_ns is not None
        now_ms = wakeup_ns / MS
        commands = hand.scheduler.schedule(wakeup_ns)
    assert hand.scheduler.status().workers == ()
    return now_ms


def rejoin(hand: Hand, now_ms: float) -> list[Command]:
    """The worker joins again, empty, and prepares what it is told to."""
    commands = hand.feed(now_ms, WorkerJoined("w0", "gpu", 8))
    return [c for action in commands for c in hand.ok(now_ms + 1, action)]


def test_a_model_two_of_whose_infers_were_never_heard_of_is_known_to_take_that_long() -> None:
    hand, now_ms = slow_hand(), 100.0
    for id_, least_ms in ((1, 50), (2, 2000)):
        now_ms = overdue(hand, now_ms, id_)
        assert rejoin(hand, now_ms + 1) == []
        (load,) = hand.request(now_ms + 10, 9 + id_, "m", None)
        assert isinstance(load, Load)
        (infer,) = hand.ok(now_ms + 18, load)
        assert isinstance(infer, Infer)
        assert least_ms <= infer.predicted_duration_ns / MS <= 2 * least_ms
        if id_ == 1:
            hand.feed(now_ms + 19, WorkerLeft("w0", "gone"))
            rejoin(hand, now_ms + 20)
            now_ms += 100


def test_a_model_that_costs_a_worker_its_place_again_and_again_is_given_up_there() -> None:
    hand, now_ms = slow_hand(), 100.0
    for id_ in (1, 2, 3):
        assert not hand.scheduler.status().models[0].failed_on
        now_ms = overdue(hand, now_ms, id_) + 1
        rejoin(hand, now_ms)
        now_ms += 10
    assert hand.scheduler.status().models[0].failed_on
    assert reasons(hand.request(now_ms, 9, "m", None)) == [Reason.NO_WORKER]


def overrun(hand: Hand, now_ms: float, id_: int) -> tuple[list[Command], float]:
    """A request's INFER is ended by the worker; return what comes of it, and when."""
    commands = hand.request(now_ms, id_, "m", None)
    if loads := [c for c in commands if isinstance(c, Load)]:
        now_ms += 8
        commands = hand.ok(now_ms, loads[0])
    (infer,) = [c for c in commands if isinstance(c, Infer)]
    return hand.end(now_ms + 1600, infer, Status.OVERRUN, "it was ended"), now_ms + 1601


def test_an_infer_that_was_ended_is_not_tried_again_and_teaches_no_estimate() -> None:
    hand = slow_hand()
    commands, now_ms = overrun(hand, 100, 1)
    assert reasons(commands) == [Reason.BAD_VALUES]
    assert [c.detail for c in commands if isinstance(c, Reject)] == ["it was ended"]
    (infer,) = [c for c in hand.request(now_ms, 2, "m", None) if isinstance(c, Infer)]
    assert infer.predicted_duration_ns == 50 * MS


def test_a_model_whose_infers_are_ended_again_and_again_is_given_up_while_its_worker_goes_on() -> None:
    hand, now_ms = slow_hand(), 100.0
    for id_ in (1, 2):
        _, now_ms = overrun(hand, now_ms, id_)
    (infer,) = [c for c in hand.request(now_ms, 3, "m", None) if isinstance(c, Infer)]
    hand.ok(now_ms + 50, infer)
    now_ms += 60
    for id_ in (4, 5, 6):
        assert not hand.scheduler.status().models[0].failed_on
        commands, now_ms = overrun(hand, now_ms, id_)
    assert [type(c) for c in commands] == [Unload, Reject]
    hand.ok(now_ms, commands[0])
    assert hand.scheduler.status().models[0].failed_on == (f"w0: {OVERDUE}",)
    assert len(hand.scheduler.status().workers) == 1
    assert reasons(hand.request(now_ms, 9, "m", None)) == [Reason.NO_WORKER]


def test_a_model_is_given_up_only_once_nothing_is_outstanding_on_it() -> None:
    """An UNLOAD beside an INFER would be refused; what waits for the model is answered."""
    hand, now_ms = slow_hand(), 100.0
    for id_ in (1, 2):
        _, now_ms = overrun(hand, now_ms, id_)
    (first,) = [c for c in hand.request(now_ms, 3, "m", 60_000) if isinstance(c, Infer)]
    hand.request(now_ms + 1, 4, "m", 60_000)
    (second,) = [c for c in until(hand, now_ms + 49) if isinstance(c, Infer)]
    hand.request(now_ms + 49, 5, "m", 60_000)
    assert reasons(hand.end(now_ms + 1600, first, Status.OVERRUN)) == [Reason.BAD_VALUES]
    commands = hand.end(now_ms + 1601, second, Status.TOO_LATE)
    assert [c.model for c in commands if isinstance(c, Unload)] == ["m"]
    assert Reason.NO_WORKER in reasons(commands)


def test_a_stopping_worker_is_asked_once_and_others_take_over() -> None:
    simulation = Simulation(
        SchedulerConfig(), [spec("m")], [("w0", "gpu", 8), ("w1", "gpu", 8)], validate_every=1
    )
    simulation.request(100 * MS, 1, "m", 1, None)
    simulation.run(900 * MS)
    (name,) = [c.worker for _, c in simulation.commands if isinstance(c, Load)]
    for index in range(20):
        slo_ns = 300 * MS if index % 2 else None
        simulation.request((1000 + 50 * index) * MS, 100 + index, "m", 1, slo_ns)
    simulation.workers[name].core.stop(simulation.now_ns)
    simulation.run(4000 * MS)
    asked = [t for t, c in simulation.commands if isinstance(c, Infer) and c.worker == name and t > 900 * MS]
    assert len(asked) == 1
    assert all(outcome.in_time for outcome in simulation.outcomes.values())
    simulation.feed(5000 * MS, WorkerLeft(name, "it stopped"))
    simulation.run(6000 * MS)


def test_a_lost_worker_is_freed_without_a_garbage_collection() -> None:
    hand = Hand(spec("m"))
    gone = weakref.ref(hand.scheduler._state.cluster.workers["w0"].prepare_queue)
    gc.disable()
    try:
        hand.feed(10, WorkerLeft("w0", "died"))
        until(hand, 100_000)
        assert gone() is None
    finally:
        gc.enable()


def test_a_model_whose_files_have_changed_is_prepared_anew_where_its_loads_failed() -> None:
    hand, infer, now_ms = broken_hand()
    hand.end(now_ms + 20, infer, Status.NOT_RESIDENT)
    (release,) = hand.feed(now_ms + 21, ModelRestored("w0", "m"))
    assert isinstance(release, Release)
    assert hand.feed(now_ms + 22, ModelRestored("w0", "m")) == [], "it is under way"
    assert reasons(hand.request(now_ms + 23, 7, "m", 100)) == [Reason.MODEL_NOT_READY]
    (prepare,) = hand.ok(now_ms + 24, release)
    assert isinstance(prepare, Prepare)
    assert [type(c) for c in hand.ok(now_ms + 25, prepare)] == [Load], "the request that was refused wants it"
    assert hand.scheduler.status().models[0].failed_on == ()


def test_a_model_whose_files_changed_before_it_was_given_up_is_prepared_anew_too() -> None:
    hand = Hand(spec("m"))
    (load,) = [c for c in hand.request(0, 1, "m", 20) if isinstance(c, Load)]
    assert hand.feed(5, ModelRestored("other", "m")) == []
    hand.end(9, load, Status.ENGINE_ERROR, "altered")
    commands = [*hand.feed(9, ModelRestored("w0", "m")), *until(hand, 40)]
    for infer in [c for c in commands if isinstance(c, Infer)]:
        commands += hand.end(41, infer, Status.NOT_RESIDENT)
    (release,) = [c for c in commands if isinstance(c, Release)]
    assert [type(c) for c in hand.ok(42, release)] == [Prepare]


def test_what_works_is_left_alone_when_files_change() -> None:
    hand = Hand(spec("m"))
    assert hand.feed(1, ModelRestored("w0", "m")) == []
    assert hand.feed(1, ModelRestored("w0", "unknown")) == []
    assert [type(c) for c in hand.request(2, 1, "m", 100)][:1] == [Load]
