"""What the core does around a policy: admission, queues, idle time, a second try."""

import msgspec
import pytest

from mainspring.cluster.workers import Worker
from mainspring.messages.actions import Command, Infer, Load, Prepare, Reject, Result
from mainspring.messages.codes import Reason, Status
from mainspring.messages.events import (
    GatewayLeft,
    OperatorAsked,
    RequestArrived,
    RequestCancelled,
    Wakeup,
    WorkerJoined,
    WorkerLeft,
)
from mainspring.messages.model import Profile
from mainspring.messages.operating import LoadOn
from mainspring.scheduler.core import ALARMS_PER_CALL
from mainspring.scheduler.policies.base import Batch
from mainspring.scheduler.policies.baselines.edf import Edf
from mainspring.scheduler.policies.registry import policy_names
from tests.scheduler.hand import MS, Hand, reasons, spec


def test_a_hopeless_request_is_rejected_at_once_with_the_earliest_finish() -> None:
    hand = Hand(spec("m"))
    hand.warm("m")
    (reject,) = hand.request(20, 1, "m", 5)
    assert isinstance(reject, Reject)
    assert reject.reason is Reason.DEADLINE_UNREACHABLE
    assert reject.earliest_finish_ns == int(25.5 * MS), "0.5 ms there, 4 ms EXEC, 1 ms back"
    assert isinstance(hand.request(20, 2, "m", 5.5)[0], Infer), "what is just possible is done"


def slow_runs(hand: Hand, count: int) -> None:
    """Let a model's executions take 100 ms, so many times."""
    for run in range(count):
        now_ms = 50 + 110 * run
        (infer,) = hand.request(now_ms, run, "m", 200)
        assert isinstance(infer, Infer)
        hand.feed(now_ms + 100, Result(infer.action_id, "w0", Status.OK, now_ms * MS, (now_ms + 100) * MS))


def test_one_slow_run_turns_nobody_away() -> None:
    hand = Hand(spec("m"))
    hand.warm("m")
    slow_runs(hand, 1)
    assert isinstance(hand.request(200, 2, "m", 50)[0], Infer)


def test_slow_runs_do_not_shut_a_model_out_for_ever() -> None:
    hand = Hand(spec("m"))
    hand.warm("m")
    slow_runs(hand, 3)
    assert reasons(hand.request(380, 3, "m", 50)) == [Reason.DEADLINE_UNREACHABLE]
    assert isinstance(hand.request(1400, 4, "m", 50)[0], Infer)


def test_while_an_execution_takes_too_long_nobody_asks_again_and_again() -> None:
    """What is behind it moves on with the time, so no instant is the one to look at it."""
    hand = Hand(*map(spec, "abc"), lookahead_ms=3.999)
    for model, now_ms in zip("abc", (0, 30, 60), strict=True):
        hand.warm(model, now_ms)
    sent = [command for id_, model in enumerate("abc") for command in hand.request(100, id_, model, 500)]
    turns, now_ns = 0, 100 * MS
    while (wakeup_ns := hand.scheduler.next_wakeup_ns()) is not None and wakeup_ns <= 140 * MS:
        now_ns = max(now_ns, wakeup_ns)
        sent += hand.scheduler.schedule(now_ns)
        turns += 1
        assert turns < 20
    first, *_ = infers = [command for command in sent if isinstance(command, Infer)]
    assert len(infers) == 2
    assert hand.ok(140, first) == []
    assert hand.scheduler.next_wakeup_ns() == int(140.001 * MS), "the second ends 4 ms after the first"
    (third,) = hand.scheduler.schedule(int(140.001 * MS))
    assert isinstance(third, Infer)


def test_while_nothing_waits_nobody_asks_what_comes_next() -> None:
    hand = Hand(spec("m", single_ms=40), lookahead_ms=5)
    hand.warm("m")
    # What was set while the model was loaded has passed.
    hand.scheduler.schedule(190 * MS)
    (infer,) = hand.request(200, 1, "m", 500)
    assert isinstance(infer, Infer)
    end_ns = infer.predicted_begin_ns + infer.predicted_duration_ns
    wakeup_ns = hand.scheduler.next_wakeup_ns()
    assert wakeup_ns is None or wakeup_ns > end_ns, "then a result is owed"
    assert hand.request(210, 2, "m", 500) == []
    assert hand.scheduler.next_wakeup_ns() == end_ns - 5 * MS, "EXEC is free within the lookahead"
    (second,) = hand.scheduler.schedule(end_ns - 5 * MS)
    assert isinstance(second, Infer)
    assert second.predicted_begin_ns >= end_ns


class Waiting(Edf):
    """From 100 ms on, keeps EXEC free for 20 ms more whenever there is a batch."""

    def next_batch(self, now_ns: int, worker: Worker, available_ns: int) -> Batch | None:
        batch = super().next_batch(now_ns, worker, available_ns)
        if batch is None or now_ns < 100 * MS:
            return batch
        self.state.hold(now_ns + 20 * MS, worker)
        return None


def test_what_waits_behind_a_batch_that_is_gone_is_served() -> None:
    """EXEC is kept free for a batch that is then cancelled; best-effort work is behind it."""
    hand = Hand(spec("m"), spec("n"), policy=f"{__name__}:Waiting")  # type: ignore[arg-type]
    hand.warm("m")
    hand.warm("n", 30)
    assert hand.request(100, 1, "m", 80) == hand.request(110, 2, "m", 80) == []
    assert hand.request(111, 3, "n", None) == []
    for id_ in (1, 2):
        hand.feed(112, RequestCancelled(id_))
    sent: list[Command] = []
    while not sent and (wakeup_ns := hand.scheduler.next_wakeup_ns()) is not None:
        sent += hand.scheduler.schedule(wakeup_ns)
    assert isinstance(sent[0], Infer)
    assert (sent[0].request_ids, sent[0].earliest_ns) == ((3,), 131 * MS)


def test_work_that_was_sent_counts_against_a_new_request() -> None:
    hand = Hand(spec("m"), spec("other"))
    hand.warm("m")
    hand.warm("other", 30)
    for id_ in (1, 2):
        assert isinstance(hand.request(60, id_, "other", 100)[0], Infer)
    assert reasons(hand.request(60, 3, "m", 13)) == [Reason.DEADLINE_UNREACHABLE]
    assert reasons(hand.request(60, 4, "m", 14)) == []


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (RequestArrived(1, "nobody", 1, 10**9), Reason.UNKNOWN_MODEL),
        (RequestArrived(1, "m", 5, 10**9), Reason.TOO_MANY_ROWS),
        (RequestArrived(1, "m", 0, 10**9), Reason.TOO_MANY_ROWS),
        (RequestArrived(1, "huge", 1, 10**9), Reason.NO_WORKER),
        (RequestArrived(1, "huge", 1, None), Reason.NO_WORKER),
    ],
)
def test_what_can_never_be_served_is_refused(request_: RequestArrived, reason: Reason) -> None:
    assert reasons(Hand(spec("m"), spec("huge", pages=9)).feed(0, request_)) == [reason]


def test_without_workers_nothing_is_promised() -> None:
    assert reasons(Hand(spec("m"), workers=0).request(0, 1, "m", 1000)) == [Reason.NO_WORKER]


def test_an_unprepared_model_is_prepared_first() -> None:
    hand = Hand(*[spec(f"m{i}") for i in range(6)], workers=0)
    first = hand.feed(0, WorkerJoined("w0", "gpu", 8))
    assert [c.model.name for c in first if isinstance(c, Prepare)] == ["m0", "m1"]
    assert reasons(hand.request(1, 1, "m5", 100)) == [Reason.MODEL_NOT_READY]
    after = hand.ok(2, first[0])
    assert [c.model.name for c in after if isinstance(c, Prepare)] == ["m5"]


def test_a_model_that_no_worker_can_prepare_says_why() -> None:
    hand = Hand(spec("m"), workers=0)
    (prepare,) = hand.feed(0, WorkerJoined("w0", "gpu", 8))
    waiting = hand.request(1, 1, "m", None)
    assert reasons(waiting) == []
    rejected = hand.end(2, prepare, Status.ENGINE_ERROR, "the weights file is gone")
    assert reasons(rejected) == [Reason.NO_WORKER]
    (reject,) = hand.request(3, 2, "m", 100)
    assert isinstance(reject, Reject)
    assert "the weights file is gone" in reject.detail


def test_queues_are_bounded() -> None:
    hand = Hand(spec("m"), spec("n"), max_queued_requests_per_model=2, max_queued_requests=3)
    answers = [reasons(hand.request(0, id_, "m", 500)) for id_ in (1, 2, 3)]
    assert answers == [[], [], [Reason.OVERLOADED]]
    answers = [reasons(hand.request(0, id_, "n", 500)) for id_ in (4, 5)]
    assert answers == [[], [Reason.OVERLOADED]]


def test_a_queued_request_is_rejected_once_nothing_can_save_it() -> None:
    """Three models want a device for 10 ms each, two of them within 30 ms."""
    hand = Hand(*[spec(name, single_ms=10) for name in "abc"])
    for index, name in enumerate("abc"):
        hand.warm(name, 100 * index)
    assert isinstance(hand.request(500, 1, "a", 100)[0], Infer)
    assert hand.request(500, 2, "b", 30) == []
    assert hand.request(500, 3, "c", 30) == []
    assert [c.model for c in hand.scheduler.schedule(506 * MS) if isinstance(c, Infer)] == ["b"]
    last_start_ns = int((500 + 30 - 1 - 10 - 0.5) * MS)
    assert hand.scheduler.schedule(last_start_ns) == []
    (reject,) = hand.scheduler.schedule(last_start_ns + 1)
    assert isinstance(reject, Reject)
    assert (reject.request_id, reject.reason) == (3, Reason.DEADLINE_PASSED)
    assert reject.earliest_finish_ns is not None
    assert reject.earliest_finish_ns > 530 * MS


def until_settled(hand: Hand, now_ms: int) -> list[list[Command]]:
    """Call the scheduler for as long as it wants to be called now."""
    calls = [hand.scheduler.schedule(now_ms * MS)]
    while (wakeup_ns := hand.scheduler.next_wakeup_ns()) is not None and wakeup_ns <= now_ms * MS:
        calls.append(hand.scheduler.schedule(now_ms * MS))
    return calls


def test_a_thousand_requests_that_expire_together_are_rejected_in_short_calls() -> None:
    hand = Hand(spec("m"))
    hand.warm("m")
    for id_ in range(1, 1_001):
        hand.scheduler.handle(50 * MS, RequestArrived(id_, "m", 1, 1_000 * MS))
    calls = until_settled(hand, 2_000)
    hand.scheduler.validate()
    assert max(len(commands) for commands in calls) <= ALARMS_PER_CALL
    rejected = [
        command.request_id for commands in calls for command in commands if isinstance(command, Reject)
    ]
    assert rejected == list(range(1, 1_001))


def test_many_loads_are_decided_in_short_calls() -> None:
    names = [f"m{index}" for index in range(20)]
    hand = Hand(*[spec(name) for name in names], workers=20)
    for id_, name in enumerate(names):
        hand.scheduler.handle(10 * MS, RequestArrived(id_, name, 1, 110 * MS))
    calls = until_settled(hand, 10)
    hand.scheduler.validate()
    loads = [[command.model for command in commands if isinstance(command, Load)] for commands in calls]
    assert [len(each) for each in loads] == [3, 3, 3, 3, 3, 3, 2]
    assert sorted(name for each in loads for name in each) == sorted(names)


def test_best_effort_batches_are_kept_short_beside_tight_deadlines() -> None:
    hand = Hand(spec("slow", single_ms=10), spec("tight", single_ms=2))
    hand.warm("slow")
    hand.warm("tight", 40)
    assert isinstance(hand.request(100, 1, "tight", 20)[0], Infer)
    for id_ in range(2, 7):
        hand.request(100, id_, "slow", None)
    commands = hand.scheduler.schedule(103 * MS)
    assert [c.batch_size for c in commands if isinstance(c, Infer)] == [2], (
        "15 ms fit 20 - 1 - 2 - 0.5; 25 do not"
    )
    for id_ in range(10, 15):
        hand.request(3000, id_, "slow", None)
    later = [c for c in hand.scheduler.schedule(3000 * MS) if isinstance(c, Infer)]
    assert later == [], "the executor is busy with the first of them"


def test_best_effort_requests_yield_to_deadlines() -> None:
    hand = Hand(spec("m"))
    hand.warm("m")
    assert isinstance(hand.request(50, 1, "m", None)[0], Infer)
    assert hand.request(50, 2, "m", None) == []
    (urgent,) = hand.request(50, 3, "m", 50)
    assert isinstance(urgent, Infer)
    assert urgent.request_ids == (3,)


def test_a_cancelled_request_is_not_run() -> None:
    hand = Hand(spec("m"))
    (load,) = hand.request(0, 1, "m", 100)
    hand.request(0, 2, "m", 100)
    hand.feed(1, RequestCancelled(1))
    infers = [c for c in hand.ok(9, load) if isinstance(c, Infer)]
    assert [c.request_ids for c in infers] == [(2,)]


def test_a_gateways_requests_go_with_it() -> None:
    hand = Hand(spec("m"))
    (load,) = hand.request(0, (1 << 40) + 1, "m", 100)
    hand.request(0, (2 << 40) + 1, "m", 100)
    hand.feed(1, GatewayLeft(1))
    infers = [c for c in hand.ok(9, load) if isinstance(c, Infer)]
    assert [c.request_ids for c in infers] == [((2 << 40) + 1,)]


def test_a_failed_action_is_tried_again_and_given_up_in_the_end() -> None:
    hand = Hand(spec("m"), max_attempts=2)
    hand.warm("m")
    (infer,) = hand.request(50, 1, "m", 400)
    (again,) = hand.end(55, infer, Status.ENGINE_ERROR, "out of memory")
    assert isinstance(again, Infer)
    (reject,) = hand.end(60, again, Status.ENGINE_ERROR, "out of memory")
    assert isinstance(reject, Reject)
    assert reject.reason is Reason.WORKER_FAILED
    assert "out of memory" in reject.detail


def test_values_that_a_model_fails_on_are_refused_at_once_and_harm_no_mate() -> None:
    hand = Hand(spec("m"))
    hand.warm("m")
    sent = [hand.request(50, number, "m", 400) for number in (1, 2)]
    assert [hand.request(50, number, "m", 400) for number in (3, 4)] == [[], []], "they wait"
    (both,) = hand.ok(55, sent[0][0])
    assert isinstance(both, Infer)
    assert both.request_ids == (3, 4)
    assert hand.ok(60, sent[1][0]) == []
    first, second = hand.end(65, both, Status.BAD_VALUES, "node Gather: idx=99")
    assert isinstance(first, Infer)
    assert isinstance(second, Infer)
    assert [(each.request_ids, each.batch_size) for each in (first, second)] == [((3,), 1), ((4,), 1)]
    (reject,) = hand.end(70, first, Status.BAD_VALUES, "node Gather: idx=99")
    assert isinstance(reject, Reject)
    assert (reject.request_id, reject.reason, reject.detail) == (3, Reason.BAD_VALUES, "node Gather: idx=99")
    assert hand.ok(75, second) == []
    (status,) = hand.scheduler.status().models
    assert (status.finished, status.rejected, status.queued) == (4, 1, 0), "one was served before"


def test_values_of_a_cancelled_request_are_refused_to_nobody() -> None:
    hand = Hand(spec("m"))
    hand.warm("m")
    (infer,) = hand.request(50, 1, "m", 400)
    hand.feed(52, RequestCancelled(1))
    assert hand.end(55, infer, Status.BAD_VALUES, "node Gather: idx=99") == []


def test_a_request_that_is_tried_again_does_not_shorten_best_effort_batches() -> None:
    """What is left of its time when its worker dies does not tell how long new requests can wait."""
    hand = Hand(spec("m"), workers=2)
    hand.warm("m")
    (holder,) = hand.scheduler.status().models[0].resident_on
    (other,) = {"w0", "w1"} - {holder}
    (load,) = hand.feed(30, OperatorAsked("ann", LoadOn("m", other)))
    hand.ok(40, load)
    (infer,) = hand.request(100, 1, "m", 100)
    assert isinstance(infer, Infer)
    (again,) = hand.feed(188, WorkerLeft(infer.worker, "gone"))
    assert all(hand.request(189, id_, "m", None) == [] for id_ in range(2, 6))
    (batch,) = hand.ok(193, again)
    assert isinstance(batch, Infer)
    assert len(batch.request_ids) == 4


@pytest.mark.parametrize("policy", policy_names())
def test_a_worker_that_says_that_nothing_took_any_time_stops_no_policy(policy: str) -> None:
    free = msgspec.structs.replace(spec("m"), profiles={"gpu": Profile({1: 0, 2: 0, 4: 0}, 8 * MS)})
    hand = Hand(free, policy=policy)  # type: ignore[arg-type]
    sent = hand.request(20, 1, "m", 100) + hand.request(20, 2, "m", 100)
    done = 0
    for now_ms in range(21, 60):
        due, sent = sent, hand.feed(now_ms, Wakeup()) + hand.request(now_ms, now_ms, "m", 50)
        for action in due:
            assert isinstance(action, Load | Infer)
            done += isinstance(action, Infer)
            sent += hand.feed(now_ms, Result(action.action_id, "w0", Status.OK, now_ms * MS, now_ms * MS))
    assert done
