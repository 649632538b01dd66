"""Requests of equal inputs: one execution, and still exactly one reply each, whatever happens."""

from __future__ import annotations

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.core.cache import PredictionCache
from mainspring.gateway.core.effects import Accepted, Answer, Arrive, Connection, Effect, Refuse, Withdraw
from mainspring.gateway.core.sharing import MOST_RANKS
from mainspring.gateway.core.state_machine import GatewayCore
from mainspring.gateway.core.validation import Signature
from mainspring.messages.codes import Reason
from mainspring.messages.peers import Dispatch, Output, Rejected
from tests.gateway.fakes import make_spec

MS = 1_000_000
ALICE = Connection("zeromq", b"alice")
BOB = Connection("http", b"bob")
SIGNATURE = Signature(make_spec("m"))
OUTPUTS = (b"o" * 16, b"p" * 4)


def accepted(slo_ms: int | None = 50, outputs: tuple[int, ...] = (0, 1), priority: int = 0) -> Accepted:
    slo_ns = None if slo_ms is None else slo_ms * MS
    return Accepted("m", 1, slo_ns, (0,), outputs, SIGNATURE, priority=priority)


def core_with(number: int | None = 5) -> GatewayCore:
    core = GatewayCore(GatewayConfig(), {"m": SIGNATURE}, PredictionCache(1 << 20, ["m"]))
    if number is not None:
        core.controller_welcomed(0, number)
    return core


def submit(
    core: GatewayCore,
    key: int,
    slo_ms: int | None = 50,
    *,
    now_ns: int = 0,
    value: int = 7,
    connection: Connection = ALICE,
    outputs: tuple[int, ...] = (0, 1),
    priority: int = 0,
) -> list[Effect]:
    request = accepted(slo_ms, outputs, priority)
    frames = [bytes([value]) * 16]
    core.submit(now_ns, connection, key, request, list(frames), core._cache.digest(request, frames))
    core.validate()
    return core.drain()


def arrival(effects: list[Effect]) -> int:
    [effect] = [each for each in effects if isinstance(each, Arrive)]
    return effect.request_id


def replies(effects: list[Effect]) -> dict[int, Answer | Refuse]:
    return {each.key: each for each in effects if isinstance(each, Answer | Refuse)}


def run(core: GatewayCore, request_id: int, now_ns: int = MS) -> list[Effect]:
    core.dispatched(now_ns, Dispatch(1, "w", (request_id,), (False,), 4))
    core.outputs(now_ns, Output(1, request_id, 300), OUTPUTS)
    core.validate()
    return core.drain()


def test_equal_requests_share_one_execution_and_the_next_one_needs_none() -> None:
    core = core_with()
    first = arrival(submit(core, 1))
    assert submit(core, 2, 60, connection=BOB, outputs=(1,)) == []
    assert submit(core, 3, None) == []
    assert arrival(submit(core, 4, value=8)) != first
    sent = replies(run(core, first, 5 * MS))
    assert sorted(sent) == [1, 2, 3]
    assert all(isinstance(each, Answer) for each in sent.values())
    second = sent[2]
    assert isinstance(second, Answer)
    assert (second.connection, second.frames) == (BOB, (OUTPUTS[1],))
    assert second.timing.left_ns == 55 * MS
    assert (second.timing.worker, second.timing.cached) == ("w", False)
    [hit] = submit(core, 5, now_ns=6 * MS, outputs=(1, 0))
    assert isinstance(hit, Answer)
    assert hit.frames == (OUTPUTS[1], OUTPUTS[0])
    assert [header.name for header in hit.outputs] == ["sum", "twice"]
    assert (hit.timing.cached, hit.timing.left_ns, hit.timing.worker) == (True, 50 * MS, "")
    counts = core._cache.counts_of("m")
    assert (counts.hits, counts.misses, counts.shared) == (1, 4, 2)
    assert core.in_flight == 1


def test_a_more_urgent_request_does_not_wait_for_work_that_is_planned_later() -> None:
    core = core_with()
    patient = arrival(submit(core, 1, 500))
    urgent = arrival(submit(core, 2, 50))
    assert submit(core, 3, 100) == []
    effects = run(core, urgent)
    assert sorted(replies(effects)) == [1, 2, 3]
    assert Withdraw(patient) in effects


def test_a_request_of_a_higher_priority_does_not_wait_behind_one_of_a_lower() -> None:
    core = core_with()
    plain = arrival(submit(core, 1, 50))
    second = submit(core, 2, 50, priority=2)
    first = submit(core, 3, 50, priority=1)
    assert [each.priority for each in [*second, *first] if isinstance(each, Arrive)] == [2, 1]
    for key, priority in ((4, 0), (5, 1), (6, 2), (7, 3)):
        assert submit(core, key, 60, priority=priority) == []
    effects = run(core, arrival(first))
    assert sorted(replies(effects)) == [1, 2, 3, 4, 5, 6, 7]
    assert Withdraw(plain) in effects


def test_when_the_leader_ends_followers_that_do_not_lead_each_other_lead_both() -> None:
    core = core_with()
    first = arrival(submit(core, 1, 50, priority=1))
    submit(core, 2, 60, priority=3)
    submit(core, 3, 70, priority=2)
    submit(core, 4, 80, priority=2)
    submit(core, 5, 90)
    core.rejected(0, Rejected(first, Reason.DEADLINE_UNREACHABLE, "no plan"))
    core.validate()
    again = [each for each in core.drain() if isinstance(each, Arrive)]
    assert [(each.priority, each.deadline_ns) for each in again] == [(2, 70 * MS), (3, 60 * MS)]
    assert sorted(replies(run(core, again[0].request_id))) == [2, 3, 4, 5]


def test_priorities_beyond_those_that_are_looked_at_lead() -> None:
    core = core_with()
    submit(core, 0, 50, priority=1)
    for key in range(1, MOST_RANKS + 1):
        assert submit(core, key, 50, priority=key) == []
    assert arrival(submit(core, 100, 50, priority=100))
    assert submit(core, 101, 50, priority=MOST_RANKS) == []


def test_followers_that_come_and_go_leave_nothing_behind() -> None:
    core = core_with()
    submit(core, 0, 50)
    submit(core, 1, 60)
    for key in range(2, 1_000):
        submit(core, key, 500)
        core.cancel(ALICE, key)
        core.drain()
    [group] = core._sharing._groups.values()
    assert sum(map(len, group.heaps.values())) < 100


def test_when_the_leader_is_refused_the_most_urgent_follower_is_submitted() -> None:
    core = core_with()
    first = arrival(submit(core, 1, 50))
    submit(core, 2, 900)
    submit(core, 3, 80)
    core.rejected(0, Rejected(first, Reason.DEADLINE_UNREACHABLE, "no plan"))
    core.validate()
    effects = core.drain()
    assert isinstance(replies(effects)[1], Refuse)
    [again] = [each for each in effects if isinstance(each, Arrive)]
    assert again.deadline_ns == 80 * MS
    assert sorted(replies(run(core, again.request_id))) == [2, 3]


def test_when_the_leader_is_cancelled_or_leaves_its_followers_are_not_lost() -> None:
    core = core_with()
    submit(core, 1)
    submit(core, 2, connection=BOB)
    submit(core, 3, connection=BOB)
    core.cancel(ALICE, 1)
    effects = core.drain()
    assert list(replies(effects)) == [1]
    second = arrival(effects)
    core.forget_connection(BOB)
    core.validate()
    effects = core.drain()
    assert Withdraw(second) in effects
    assert replies(effects) == {}
    assert core.in_flight == 0


def test_a_cancelled_follower_leaves_the_leader_alone() -> None:
    core = core_with()
    first = arrival(submit(core, 1))
    submit(core, 2)
    core.cancel(ALICE, 2)
    [refuse] = core.drain()
    assert isinstance(refuse, Refuse)
    assert (refuse.key, refuse.reason) == (2, Reason.CANCELLED)
    assert list(replies(run(core, first))) == [1]


def test_a_follower_is_refused_by_its_own_deadline() -> None:
    core = core_with()
    first = arrival(submit(core, 1, 50))
    submit(core, 2, 50, now_ns=20 * MS)
    core.dispatched(MS, Dispatch(1, "w", (first,), (False,), 4))
    core.tick(150 * MS)
    core.validate()
    effects = core.drain()
    assert list(replies(effects)) == [1]
    # The leader's worker is silent; its deadline has passed, and so has the follower's.
    core.tick(170 * MS)
    last = replies(core.drain())[2]
    assert isinstance(last, Refuse)
    assert last.reason is Reason.TIMED_OUT


def test_outputs_that_are_no_good_answer_the_leader_alone() -> None:
    core = core_with()
    first = arrival(submit(core, 1))
    submit(core, 2)
    core.dispatched(0, Dispatch(1, "w", (first,), (False,), 4))
    core.outputs(1, Output(1, first, 1), ())
    effects = core.drain()
    assert list(replies(effects)) == [1]
    assert len(core._cache) == 0
    assert sorted(replies(run(core, arrival(effects)))) == [2]


def test_a_controller_that_comes_late_gets_the_leader_alone() -> None:
    core = core_with(None)
    submit(core, 1, 900)
    submit(core, 2, 900)
    core.controller_welcomed(100 * MS, 6)
    first = arrival(core.drain())
    assert sorted(replies(run(core, first, 200 * MS))) == [1, 2]


def test_a_follower_that_inherits_waits_for_a_lost_controller_like_any_other() -> None:
    core = core_with()
    submit(core, 1, None)
    submit(core, 2, None)
    core.controller_lost(100 * MS)
    core.cancel(ALICE, 1)
    core.validate()
    core.drain()
    assert core.next_wakeup_ns() == 100 * MS + 5_000 * MS
    core.tick(100 * MS + 5_000 * MS)
    last = replies(core.drain())[2]
    assert isinstance(last, Refuse)
    assert last.reason is Reason.CONTROLLER_UNREACHABLE


def test_a_stop_answers_followers_too() -> None:
    core = core_with()
    submit(core, 1)
    submit(core, 2)
    core.shut_down()
    core.abandon()
    core.validate()
    effects = core.drain()
    assert sorted(replies(effects)) == [1, 2]
    assert not [each for each in effects if isinstance(each, Arrive)]
