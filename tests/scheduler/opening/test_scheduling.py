"""OPENs by hand: when they are sent, what they cost, what their results change."""

from typing import Any

import msgspec
import pytest

from mainspring.cluster.device_kinds import UNKNOWN_OPEN_NS
from mainspring.cluster.placements import State
from mainspring.cluster.residency import find
from mainspring.messages.actions import Command, Infer, Load, LoadReason, Open, Prepare, Release
from mainspring.messages.codes import Reason, Status
from mainspring.messages.events import ModelAdded, ModelRemoved, OperatorAsked, Wakeup, WorkerLeft
from mainspring.messages.operating import DrainWorker, LoadOn, ResumeWorker
from tests.scheduler.hand import MS, Hand, reasons, spec

OPEN_MS = UNKNOWN_OPEN_NS / MS


def add(hand: Hand, now_ms: float, name: str, graph: str = "a new graph") -> list[Command]:
    """Add a model whose executable no worker has open, and have PREPAREs end so; return what follows."""
    model = msgspec.structs.replace(spec(name), executable=graph)
    found: list[Command] = []
    for action in hand.feed(now_ms, ModelAdded(model)):
        assert isinstance(action, Prepare)
        found += hand.end(now_ms, action, Status.NOT_OPEN)
    return found


def state(hand: Hand, name: str, worker: str = "w0") -> State:
    cluster = hand.scheduler.cluster
    placement = find(cluster, cluster.workers[worker], name, keep=False)
    assert placement is not None
    return placement.state


def warm(**config: Any) -> Hand:
    """A worker that holds ``m``, for which requests with a deadline have come lately."""
    hand = Hand(spec("m"), **config)
    hand.warm("m")
    return hand


def test_an_idle_cluster_opens_at_once_and_then_loads() -> None:
    hand = Hand(spec("m"))
    (action,) = add(hand, 1, "n")
    assert isinstance(action, Open)
    assert (action.model, action.predicted_duration_ns) == ("n", UNKNOWN_OPEN_NS)
    assert state(hand, "n") is State.OPENING
    assert reasons(hand.request(2, 1, "n", 5_000)) == [Reason.MODEL_NOT_READY]
    (load,) = hand.ok(30, action)
    assert isinstance(load, Load)
    assert load.model == "n"


def test_requests_are_planned_behind_it() -> None:
    hand = warm(open_patience_ms=0)
    (action,) = add(hand, 30, "n")
    assert isinstance(action, Open)
    (reject,) = hand.request(40, 1, "m", 100)
    assert reasons([reject]) == [Reason.DEADLINE_UNREACHABLE]
    assert hand.request(41, 2, "m", 2 * OPEN_MS) == []
    (infer,) = hand.ok(60, action)
    assert isinstance(infer, Infer)
    assert infer.request_ids == (2,)


def test_it_waits_as_long_as_its_time_would_refuse_requests() -> None:
    hand = warm(open_patience_ms=300)
    assert add(hand, 30, "n") == []
    # A request of 100 ms could not wait for it.
    assert hand.feed(250, Wakeup()) == []
    (action,) = hand.feed(331, Wakeup())
    assert isinstance(action, Open)


def test_nothing_that_was_accepted_is_made_late() -> None:
    hand = warm(open_patience_ms=0, open_within_ms=500)
    (first,) = hand.request(30, 1, "m", 100)
    (second,) = hand.request(30.1, 2, "m", 100)
    assert add(hand, 30.2, "n") == []
    # EXEC has work for the lookahead; behind it another request waits that an OPEN would make late.
    assert hand.request(30.3, 3, "m", 60) == []
    (third,) = hand.ok(35, first)
    assert isinstance(third, Infer)
    assert third.request_ids == (3,)
    hand.ok(39, second)
    (action,) = [each for each in hand.ok(44, third) + hand.feed(60, Wakeup()) if isinstance(each, Open)]
    assert action.predicted_begin_ns > 43 * MS


def test_it_does_not_wait_for_ever() -> None:
    hand = warm(open_patience_ms=0, open_within_ms=200)
    waiting = [*hand.request(30, 1, "m", 100), *hand.request(30.1, 2, "m", 100)]
    assert add(hand, 30.2, "n") == []
    now_ms, sent = 30.0, []
    for count in range(3, 100):
        now_ms += 4
        commands = hand.request(now_ms, count, "m", 60)
        if waiting:
            commands += hand.ok(now_ms, waiting.pop(0))
        sent += [each for each in commands if isinstance(each, Open)]
        waiting += [each for each in commands if isinstance(each, Infer)]
        if sent:
            break
    (action,) = sent
    assert 230 * MS <= action.earliest_ns <= 250 * MS


def test_one_opening_serves_all_models_of_the_executable() -> None:
    hand = Hand(spec("m"))
    (action,) = add(hand, 1, "n")
    assert add(hand, 2, "o") == []
    assert add(hand, 3, "p", "another graph") == []
    prepare, other = hand.ok(30, action)
    assert isinstance(prepare, Prepare)
    assert prepare.model.name == "o"
    assert isinstance(other, Open)
    assert other.model == "p"
    hand.ok(31, prepare)
    assert state(hand, "o") is State.PREPARED


def test_one_that_began_too_late_is_sent_again() -> None:
    hand = Hand(spec("m"))
    (action,) = add(hand, 1, "n")
    (again,) = hand.end(20, action, Status.TOO_LATE)
    assert isinstance(action, Open)
    assert isinstance(again, Open)
    assert again.action_id != action.action_id
    hand.ok(40, again)
    assert state(hand, "n") is State.PREPARED


def test_a_model_that_can_not_be_opened_is_given_up_there() -> None:
    hand = Hand(spec("m"))
    (action,) = add(hand, 1, "n")
    assert hand.end(20, action, Status.ENGINE_ERROR, "no kernel image") == []
    assert state(hand, "n") is State.FAILED
    (reject,) = hand.request(21, 1, "n", 100)
    assert reasons([reject]) == [Reason.NO_WORKER]
    assert "no kernel image" in reject.detail  # type: ignore[union-attr]


@pytest.mark.parametrize("status", [Status.OK, Status.TOO_LATE, Status.ENGINE_ERROR])
def test_a_model_that_is_removed_meanwhile_is_released(status: Status) -> None:
    hand = Hand(spec("m"))
    (action,) = add(hand, 1, "n")
    assert hand.feed(2, ModelRemoved("n")) == []
    commands = hand.end(20, action, status)
    if status is Status.ENGINE_ERROR:
        assert commands == []
    else:
        (release,) = commands
        assert isinstance(release, Release)
        assert hand.ok(21, release) == []
    assert "n" not in hand.scheduler.cluster.workers["w0"].placements


def test_a_model_that_is_removed_before_is_not_opened() -> None:
    hand = warm(open_patience_ms=300)
    assert add(hand, 30, "n") == []
    (release,) = hand.feed(40, ModelRemoved("n"))
    assert isinstance(release, Release)
    assert hand.ok(41, release) == []
    assert hand.feed(400, Wakeup()) == []


def test_few_workers_open_at_a_time() -> None:
    hand = Hand(spec("m"), workers=2, open_patience_ms=0)
    for now_ms, worker in ((1, "w0"), (21, "w1")):
        (load,) = hand.feed(now_ms, OperatorAsked("a person", LoadOn("m", worker)))
        hand.ok(now_ms + 9, load)
    assert all(worker.lru for worker in hand.scheduler.cluster.workers.values())
    (first,) = add(hand, 100, "n")
    assert isinstance(first, Open)
    (second,) = hand.ok(150, first)
    assert isinstance(second, Open)
    assert second.worker != first.worker
    # What the first one took is known now.
    assert second.predicted_duration_ns == first.predicted_duration_ns


def test_a_drained_worker_opens_once_it_is_resumed() -> None:
    hand = warm(open_patience_ms=0)
    hand.feed(25, OperatorAsked("a person", DrainWorker("w0")))
    prepares = hand.feed(30, ModelAdded(msgspec.structs.replace(spec("n"), executable="a new graph")))
    assert prepares == []
    (prepare,) = hand.feed(31, OperatorAsked("a person", ResumeWorker("w0")))
    hand.feed(32, OperatorAsked("a person", DrainWorker("w0")))
    assert hand.end(33, prepare, Status.NOT_OPEN) == []
    (action,) = hand.feed(40, OperatorAsked("a person", ResumeWorker("w0")))
    assert isinstance(action, Open)


def test_what_a_lost_worker_was_to_open_is_forgotten() -> None:
    hand = Hand(spec("m"), workers=2)
    opens = add(hand, 1, "n")
    assert [type(each) for each in opens] == [Open, Open]
    assert hand.feed(2, WorkerLeft("w0", "silent")) == []
    assert hand.ok(30, opens[0]) == []
    hand.ok(31, opens[1])
    assert state(hand, "n", "w1") is State.PREPARED


def test_a_worker_that_opens_for_long_is_not_dropped_as_one_that_executes() -> None:
    hand = Hand(spec("m"), action_timeout_ms=100, prepare_timeout_ms=5_000)
    (action,) = add(hand, 1, "n")
    for now_ms in range(100, 4_000, 100):
        assert hand.feed(now_ms, Wakeup()) == []
    hand.ok(4_000, action)
    assert state(hand, "n") is State.PREPARED


def test_what_only_one_worker_holds_is_loaded_elsewhere_before_it_opens() -> None:
    hand = Hand(spec("m"), workers=2, open_patience_ms=300)
    hand.warm("m")
    commands = add(hand, 30, "n")
    loads = [each for each in commands if isinstance(each, Load)]
    assert [(each.model, each.worker) for each in loads] == [("m", "w1")]
    (copy,) = loads
    assert copy.evidence is not None
    assert copy.evidence.reason is LoadReason.REPLICATION


def test_no_copy_is_made_for_an_opening_that_requests_can_wait_for() -> None:
    hand = Hand(spec("m"), workers=2)
    (load,) = hand.request(0, 1, "m", 2 * OPEN_MS)
    (infer,) = [each for each in hand.ok(9, load) if isinstance(each, Infer)]
    hand.ok(14, infer)
    assert [type(each) for each in add(hand, 30, "n")] == [Open, Open]


def test_what_can_not_wait_for_an_opening_is_loaded_elsewhere_meanwhile() -> None:
    hand = Hand(spec("m"), workers=2, open_patience_ms=0, open_within_ms=0)
    hand.warm("m")
    hand.feed(25, OperatorAsked("a person", DrainWorker("w1")))
    assert [(type(each), each.worker) for each in add(hand, 30, "n") if isinstance(each, Open)] == [
        (Open, "w0")
    ]
    hand.feed(35, OperatorAsked("a person", ResumeWorker("w1")))
    loads = [each for each in hand.request(40, 1, "m", 100) if isinstance(each, Load)]
    assert [each.worker for each in loads] == ["w1"]
