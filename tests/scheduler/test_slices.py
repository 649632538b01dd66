"""Joins, leaves and changes of models are worked off in parts where these are many, and come to the same.

What is decided meanwhile sees the state as if all had been done at once.
"""

from __future__ import annotations

from mainspring.cluster.apply import apply
from mainspring.cluster.deferred_join import ENTERED_AT_ONCE, DeferredJoin
from mainspring.cluster.residency import is_loadable, is_prepared_anywhere
from mainspring.cluster.validate import validate
from mainspring.cluster.workers import Joining
from mainspring.messages.actions import Command, Infer, Load, Prepare, Release, Result
from mainspring.messages.codes import Status
from mainspring.messages.events import ModelAdded, ModelRemoved, Wakeup, WorkerJoined, WorkerLeft
from mainspring.messages.model import ModelSpec
from mainspring.messages.snapshot import WorkerState
from mainspring.scheduler.preparing import SENT_AT_ONCE
from mainspring.scheduler.residency import TAKEN_OFF_AT_ONCE
from tests.cluster.described import described
from tests.cluster.test_apply import reader
from tests.scheduler.hand import Hand, spec

MANY = 12 * ENTERED_AT_ONCE
SPECS = [spec(f"m{number}") for number in range(MANY)]
PREPARED = {each.name: each.artifact for each in SPECS}


def hand_of_many() -> Hand:
    """A scheduler with many models, and no worker."""
    hand = Hand(workers=0)
    for each in SPECS:
        hand.scheduler.handle(0, ModelAdded(each))
    hand.scheduler.schedule(0)
    return hand


def drained(hand: Hand, now_ms: float, most: int = 100) -> tuple[list[Command], int]:
    """Call until there is nothing left to be done now; return what came out, and in how many calls."""
    commands: list[Command] = []
    calls = 0
    while hand.scheduler.next_wakeup_ns() == now_ms * 1_000_000:
        calls += 1
        assert calls < most, "it comes to no end"
        commands += hand.feed(now_ms, Wakeup())
    return commands, calls


def lacking(joining: Joining) -> list[str]:
    """Return the models whose turn is still to come and that nobody has asked about."""
    assert isinstance(joining, DeferredJoin)
    return [each.name for each in SPECS if joining.lacks(each.name)]


def test_a_join_is_entered_in_parts() -> None:
    hand = hand_of_many()
    assert hand.feed(1, WorkerJoined("w0", "gpu", 8, PREPARED)) == []
    worker = hand.scheduler.cluster.workers["w0"]
    assert worker.joining is not None
    assert worker.prepared < MANY
    commands, calls = drained(hand, 1)
    assert (commands, calls > 1) == ([], True), "no PREPARE: all is prepared"
    assert worker.joining is None
    assert worker.prepared == MANY
    assert hand.scheduler.cluster.joining == []


def test_what_is_asked_about_meanwhile_is_as_if_all_were_entered() -> None:
    hand = hand_of_many()
    hand.feed(1, WorkerJoined("w0", "gpu", 8, PREPARED))
    cluster = hand.scheduler.cluster
    worker = cluster.workers["w0"]
    assert worker.joining is not None
    first, second, third, *_ = lacking(worker.joining)
    assert is_loadable(cluster.models[first], worker)
    assert is_prepared_anywhere(cluster, cluster.models[second])
    (load,) = hand.request(1, 1, third, 100)
    assert isinstance(load, Load)
    assert worker.joining is not None, "the rest is still to come"
    assert {first, second, third}.isdisjoint(lacking(worker.joining))
    validate(cluster)


def test_a_reader_of_the_stream_has_the_same_state_once_all_is_entered() -> None:
    hand = hand_of_many()
    cluster = reader(hand.scheduler.config)
    for each in SPECS:
        apply(cluster, 0, ModelAdded(each))
    strange = {**PREPARED, "gone": SPECS[0].artifact, "m0": SPECS[1].artifact}
    joined = WorkerJoined("w0", "gpu", 8, strange)
    apply(cluster, 1_000_000, joined)
    commands = hand.feed(1, joined)
    commands += drained(hand, 1)[0]
    assert [type(each) for each in commands] == [Release, Release], "of what is not served, or not so"
    for command in commands:
        apply(cluster, 1_000_000, command)
    assert described(cluster) == described(hand.scheduler.cluster)


def test_questions_change_nothing_of_what_is_sent_and_when() -> None:
    asked, unasked = hand_of_many(), hand_of_many()
    strange = {"gone": SPECS[0].artifact, **PREPARED, "m0": SPECS[1].artifact}
    for hand in (asked, unasked):
        hand.feed(1, WorkerJoined("w0", "gpu", 8, strange))
    asked.scheduler.status()
    assert any(asked.scheduler.snapshot())
    worker = asked.scheduler.cluster.workers["w0"]
    assert worker.joining is not None
    assert not lacking(worker.joining), "all was entered for the snapshot"
    sent: list[Command] = []
    while unasked.scheduler.next_wakeup_ns() == 1_000_000:
        commands = unasked.feed(1, Wakeup())
        assert asked.feed(1, Wakeup()) == commands
        sent += commands
    assert asked.scheduler.next_wakeup_ns() == unasked.scheduler.next_wakeup_ns()
    assert [type(each) for each in sent] == [Release, Release]


def test_a_worker_that_leaves_while_a_snapshot_is_made_leaves_nothing() -> None:
    hand = hand_of_many()
    hand.feed(1, WorkerJoined("w0", "gpu", 8, PREPARED))
    parts = hand.scheduler.snapshot()
    for part in parts:
        if not part:
            break
    hand.feed(1, WorkerLeft("w0", "gone"))
    assert not any(isinstance(entry, WorkerState) for part in parts for entry in part)
    drained(hand, 1)
    assert not any(model.prepared for model in hand.scheduler.cluster.models.values())


def test_a_model_that_comes_while_a_worker_joins_replaces_what_that_has_of_its_name() -> None:
    hand = hand_of_many()
    hand.feed(1, WorkerJoined("w0", "gpu", 8, PREPARED))
    worker = hand.scheduler.cluster.workers["w0"]
    assert worker.joining is not None
    name = lacking(worker.joining)[0]
    (release,) = hand.feed(1, ModelAdded(spec(name, version="2")))
    assert isinstance(release, Release)
    drained(hand, 1)
    (prepare,) = hand.ok(2, release)
    assert isinstance(prepare, Prepare)
    assert prepare.model.artifact == spec(name, version="2").artifact


def test_a_worker_that_leaves_while_it_joins_leaves_nothing() -> None:
    hand = hand_of_many()
    hand.feed(1, WorkerJoined("w0", "gpu", 8, PREPARED))
    hand.feed(1, WorkerLeft("w0", "gone"))
    cluster = hand.scheduler.cluster
    assert cluster.joining == []
    drained(hand, 1)
    assert not any(model.prepared for model in cluster.models.values())
    hand.feed(2, WorkerJoined("new", "gpu", 8, {}))
    assert cluster.workers["new"].bit == 1, "the seat is free again"


def test_a_seat_is_given_again_only_once_nothing_is_left_of_who_had_it() -> None:
    hand = hand_of_many()
    hand.feed(1, WorkerJoined("w0", "gpu", 8, PREPARED))
    drained(hand, 1)
    hand.feed(2, WorkerLeft("w0", "gone"))
    hand.feed(2, WorkerJoined("new", "gpu", 8, {}))
    cluster = hand.scheduler.cluster
    new = cluster.workers["new"]
    assert new.bit != 1
    assert not any(is_loadable(model, new) for model in cluster.models.values())


def test_a_worker_that_has_nothing_prepares_all_in_the_order_in_which_models_came() -> None:
    hand = Hand(*SPECS[:40], workers=0)
    commands = hand.feed(1, WorkerJoined("w0", "gpu", 8))
    order: list[str] = []
    while commands:
        (action,) = commands[:1]
        assert isinstance(action, Prepare)
        order.append(action.model.name)
        commands = commands[1:] + hand.ok(1, action)
    assert order == [each.name for each in SPECS[:40]]


def test_what_a_request_asks_for_is_prepared_next() -> None:
    hand = hand_of_many()
    first, second = hand.feed(1, WorkerJoined("w0", "gpu", 8))
    hand.request(1, 1, "m900", 100)
    hand.request(1, 2, "m800", 100)
    (prepare,) = hand.ok(2, first)
    assert isinstance(prepare, Prepare)
    assert prepare.model.name == "m800"
    (prepare,) = hand.ok(2, second)
    assert isinstance(prepare, Prepare)
    assert prepare.model.name == "m900"


def of_many_workers(*specs: ModelSpec) -> tuple[Hand, int]:
    hand = Hand(*specs, workers=0)
    workers = 3 * max(SENT_AT_ONCE, TAKEN_OFF_AT_ONCE)
    prepared = {each.name: each.artifact for each in specs}
    for index in range(workers):
        hand.feed(0, WorkerJoined(f"w{index}", "gpu", 8, prepared))
    return hand, workers


def test_a_new_model_is_prepared_everywhere_by_and_by() -> None:
    hand, workers = of_many_workers(SPECS[0])
    commands = hand.feed(1, ModelAdded(SPECS[1]))
    assert 0 < len(commands) < workers
    more, calls = drained(hand, 1)
    assert calls > 1
    sent = [each.worker for each in [*commands, *more] if isinstance(each, Prepare)]
    assert sorted(sent) == sorted(f"w{index}" for index in range(workers))


def test_a_model_is_taken_off_everywhere_by_and_by_and_at_once_nobody_uses_it() -> None:
    hand, workers = of_many_workers(SPECS[0], SPECS[1])
    (load, *_) = hand.request(1, 1, "m0", 100)
    assert isinstance(load, Load)
    commands = hand.feed(2, ModelRemoved("m0"))
    assert not any(isinstance(each, Infer) for each in commands)
    assert 0 < sum(isinstance(each, Release) for each in commands) < workers
    more, _ = drained(hand, 2)
    released = [each.worker for each in [*commands, *more] if isinstance(each, Release)]
    assert len(released) == workers - 1, "all but where its LOAD is under way"
    end_ns = 9_000_000
    after = hand.feed(9, Result(load.action_id, load.worker, Status.OK, 0, end_ns, 0, ""))
    assert [type(each).__name__ for each in after] == ["Unload", "Release"]
    assert {*released, load.worker} == {f"w{index}" for index in range(workers)}
