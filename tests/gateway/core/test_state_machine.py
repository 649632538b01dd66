"""The request table: every request gets exactly one reply, in any interleaving of what can happen."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.core.effects import (
    Accepted,
    Answer,
    Arrive,
    Connection,
    Effect,
    Push,
    Refuse,
    Withdraw,
)
from mainspring.gateway.core.state_machine import ARRIVAL_RETRY_NS, GatewayCore
from mainspring.gateway.core.validation import Signature
from mainspring.messages.codes import Reason
from mainspring.messages.peers import Dispatch, Output, Rejected
from tests.gateway.fakes import make_spec

MS = 1_000_000
ALICE = Connection("zeromq", b"alice")
BOB = Connection("http", b"bob")
SIGNATURE = Signature(make_spec("m"))
OUTPUTS = (bytes(16), bytes(4))


def accepted(slo_ms: int | None = 50, rows: int = 1, outputs: tuple[int, ...] = (0, 1)) -> Accepted:
    slo_ns = None if slo_ms is None else slo_ms * MS
    return Accepted("m", rows, slo_ns, (0,), outputs, SIGNATURE)


def core_with(number: int | None = 5, **options: Any) -> GatewayCore:
    core = GatewayCore(GatewayConfig(**options))
    if number is not None:
        core.controller_welcomed(0, number)
    return core


def submit(core: GatewayCore, key: int = 1, now_ns: int = 0, slo_ms: int | None = 50) -> list[Effect]:
    core.submit(now_ns, ALICE, key, accepted(slo_ms), [bytes(16)])
    return core.drain()


def arrival(effects: list[Effect]) -> Arrive:
    [effect] = effects
    assert isinstance(effect, Arrive)
    return effect


def refusal(effects: list[Effect]) -> Refuse:
    [effect] = [each for each in effects if isinstance(each, Refuse)]
    return effect


def dispatch(
    core: GatewayCore, request_id: int, action_id: int = 1, now_ns: int = 0, worker: str = "w"
) -> list[Effect]:
    core.dispatched(now_ns, Dispatch(action_id, worker, (request_id,), (False,), 4))
    return core.drain()


def test_a_request_from_arrival_to_answer() -> None:
    core = core_with()
    sent = arrival(submit(core, key=9, now_ns=1_000))
    assert sent.request_id >> 40 == 5
    assert sent.deadline_ns == 1_000 + 50 * MS
    [push] = dispatch(core, sent.request_id, 7, 2_000)
    assert isinstance(push, Push)
    assert (push.worker, push.message.action_id, push.message.withdrawn) == ("w", 7, False)
    assert push.frames == (bytes(16),)
    core.outputs(11_000, Output(7, sent.request_id, 300), OUTPUTS)
    [answer] = core.drain()
    assert isinstance(answer, Answer)
    assert (answer.connection, answer.key) == (ALICE, 9)
    assert [header.shape for header in answer.outputs] == [(1, 4), (1,)]
    assert answer.timing.total_ns == 10_000
    assert answer.timing.queue_ns == 1_000
    assert answer.timing.left_ns == 50 * MS - 10_000
    assert answer.timing.batch_size == 4
    assert core.in_flight == 0
    assert core.next_wakeup_ns() is None
    core.validate()


def test_ids_carry_the_gateways_number_and_never_repeat() -> None:
    core = core_with(5)
    ids = [arrival(submit(core, key)).request_id for key in range(3)]
    assert ids == [5 << 40, 5 << 40 | 1, 5 << 40 | 2]


def test_times_out_at_the_deadline_plus_the_grace_and_no_earlier() -> None:
    core = core_with(grace_ms=100.0)
    submit(core, slo_ms=50)
    assert core.next_wakeup_ns() == 150 * MS
    core.tick(150 * MS - 1)
    assert core.drain() == []
    core.tick(150 * MS)
    refuse = refusal(core.drain())
    assert refuse.reason is Reason.TIMED_OUT
    assert "150 ms" in refuse.detail
    core.validate()


def test_best_effort_has_a_limit_of_its_own() -> None:
    core = core_with(best_effort_timeout_ms=700.0)
    submit(core, slo_ms=None)
    assert core.next_wakeup_ns() == 700 * MS
    core.tick(700 * MS)
    assert refusal(core.drain()).reason is Reason.TIMED_OUT


def test_without_one_it_waits_for_as_long_as_it_takes() -> None:
    core = core_with()
    request_id = arrival(submit(core, slo_ms=None)).request_id
    for minute in range(1, 60):
        core.tick(minute * 60_000 * MS)
        assert core.drain() == []
    dispatch(core, request_id)
    core.outputs(10**13, Output(1, request_id, 1), OUTPUTS)
    assert [type(each) for each in core.drain()][-1] is Answer
    core.validate()


def test_what_was_dispatched_and_is_not_heard_of_is_submitted_again_and_never_given_up() -> None:
    core = core_with()
    first = arrival(submit(core, slo_ms=None)).request_id
    dispatch(core, first)
    core.drain()
    for second in (61, 122, 183):
        core.tick(second * 1_000 * MS)
    withdraw, arrive = core.drain()
    assert withdraw == Withdraw(first)
    assert isinstance(arrive, Arrive)
    assert arrive.deadline_ns is None
    core.outputs(10**12, Output(1, first, 1), OUTPUTS)
    assert [type(each) for each in core.drain()][-1] is Answer, "outputs that come late are as good"
    core.validate()


def test_a_time_out_withdraws_the_request_and_late_outputs_are_counted() -> None:
    core = core_with()
    request_id = arrival(submit(core)).request_id
    dispatch(core, request_id)
    core.tick(10**12)
    withdraw, refuse = core.drain()
    assert withdraw == Withdraw(request_id)
    assert isinstance(refuse, Refuse)
    core.outputs(10**12, Output(1, request_id, 1), OUTPUTS)
    core.rejected(0, Rejected(request_id, Reason.DEADLINE_PASSED, ""))
    assert core.drain() == []
    assert core.counts["late_outputs"] == core.counts["late_rejections"] == 1


def test_the_dispatch_of_an_answered_request_withdraws_its_input() -> None:
    core = core_with()
    request_id = arrival(submit(core)).request_id
    core.cancel(ALICE, 1)
    assert refusal(core.drain()).reason is Reason.CANCELLED
    [push] = dispatch(core, request_id)
    assert isinstance(push, Push)
    assert push.message.withdrawn
    assert push.frames == ()


def test_inputs_are_kept_and_sent_again() -> None:
    core = core_with()
    request_id = arrival(submit(core)).request_id
    for action_id, worker in ((1, "w"), (2, "v")):
        [push] = dispatch(core, request_id, action_id, worker=worker)
        assert isinstance(push, Push)
        assert (push.worker, push.frames) == (worker, (bytes(16),))
    core.outputs(5, Output(1, request_id, 1), OUTPUTS)
    # The first worker came through after all: the second one's work is called off.
    withdraw, answer = core.drain()
    assert withdraw == Withdraw(request_id)
    assert isinstance(answer, Answer)
    assert answer.timing.worker == "w"
    core.outputs(6, Output(2, request_id, 1), OUTPUTS)
    assert core.drain() == []


def test_a_rejection_is_passed_on() -> None:
    core = core_with()
    request_id = arrival(submit(core)).request_id
    core.rejected(0, Rejected(request_id, Reason.DEADLINE_UNREACHABLE, "no plan", 5 * MS))
    refuse = refusal(core.drain())
    assert (refuse.reason, refuse.detail, refuse.earliest_finish_left_ns) == (
        Reason.DEADLINE_UNREACHABLE,
        "no plan",
        5 * MS,
    )


@pytest.mark.parametrize("frames", [(), (bytes(16),), (bytes(16), bytes(5)), (bytes(16), bytes(4), b"")])
def test_outputs_of_the_wrong_size_fail_the_request(frames: tuple[bytes, ...]) -> None:
    core = core_with()
    request_id = arrival(submit(core)).request_id
    dispatch(core, request_id)
    core.outputs(1, Output(1, request_id, 1), frames)
    refuse = refusal(core.drain())
    assert refuse.reason is Reason.WORKER_FAILED
    assert "[16, 4]" in refuse.detail


def test_outputs_of_an_action_that_never_was_are_ignored() -> None:
    core = core_with()
    request_id = arrival(submit(core)).request_id
    core.outputs(1, Output(1, request_id, 1), OUTPUTS)
    assert core.drain() == []
    assert core.counts["unexpected_outputs"] == 1
    assert core.in_flight == 1


def test_a_second_request_of_the_same_key_is_refused_and_the_first_lives() -> None:
    core = core_with()
    request_id = arrival(submit(core, key=1)).request_id
    assert refusal(submit(core, key=1)).reason is Reason.DUPLICATE_KEY
    dispatch(core, request_id)
    core.outputs(1, Output(1, request_id, 1), OUTPUTS)
    assert isinstance(core.drain()[0], Answer)
    arrival(submit(core, key=1))


@pytest.mark.parametrize(
    "options",
    [{"max_in_flight": 2}, {"max_in_flight_per_connection": 2}, {"max_in_flight_bytes": 40}],
    ids=str,
)
def test_bounds_refuse_as_overloaded_until_there_is_room(options: dict[str, int]) -> None:
    core = core_with(**options)
    for key in (1, 2):
        arrival(submit(core, key))
    refuse = refusal(submit(core, 3))
    assert refuse.reason is Reason.OVERLOADED
    core.cancel(ALICE, 1)
    core.drain()
    arrival(submit(core, 3))
    core.validate()


def test_what_could_not_be_sent_to_the_controller_is_sent_again_while_the_deadline_allows() -> None:
    core = core_with()
    core.arrival_unsent(0, arrival(submit(core, slo_ms=50)).request_id)
    assert core.drain() == []
    core.validate()
    core.tick(ARRIVAL_RETRY_NS)
    again = arrival(core.drain())
    core.validate()
    core.arrival_unsent(45 * MS, again.request_id)
    assert refusal(core.drain()).reason is Reason.CONTROLLER_UNREACHABLE
    core.validate()


def test_what_waits_to_be_sent_again_is_refused_when_the_controller_is_gone() -> None:
    core = core_with()
    core.arrival_unsent(0, arrival(submit(core, slo_ms=50)).request_id)
    core.controller_lost(MS)
    core.tick(60 * MS)
    assert refusal(core.drain()).reason is Reason.CONTROLLER_UNREACHABLE
    core.validate()


def test_a_welcome_anew_submits_what_is_pending_under_new_ids() -> None:
    core = core_with(5)
    waiting, sent = (arrival(submit(core, key, slo_ms=900)).request_id for key in (1, 2))
    dispatch(core, sent)
    core.controller_lost(10 * MS)
    assert core.drain() == []
    core.controller_welcomed(11 * MS, 6)
    again = core.drain()
    assert [effect.request_id for effect in again if isinstance(effect, Arrive)] == [6 << 40 | 2, 6 << 40 | 3]
    assert [effect.deadline_ns for effect in again if isinstance(effect, Arrive)] == [900 * MS, 900 * MS]
    # What the old controller had dispatched may still come: it is as good, and called off at the new one.
    core.outputs(12 * MS, Output(1, sent, 1), OUTPUTS)
    withdraw, answer = core.drain()
    assert withdraw == Withdraw(6 << 40 | 3)
    assert isinstance(answer, Answer)
    [push] = dispatch(core, waiting)
    assert isinstance(push, Push)
    assert push.message.withdrawn
    core.validate()


def test_a_controller_that_forgot_without_being_missed_gets_everything_again() -> None:
    core = core_with(5)
    old = arrival(submit(core)).request_id
    core.controller_welcomed(MS, 5)
    assert core.drain() == [Withdraw(old), Arrive(5 << 40 | 1, "m", 1, 50 * MS)]
    core.validate()


def test_what_cannot_wait_for_a_controller_is_refused_at_once() -> None:
    core = core_with(hello_interval_ms=200.0)
    submit(core, key=1, slo_ms=100)
    submit(core, key=2, slo_ms=1_000)
    core.controller_lost(0)
    refuse = refusal(core.drain())
    assert (refuse.key, refuse.reason) == (1, Reason.CONTROLLER_UNREACHABLE)
    assert refusal(submit(core, key=3, slo_ms=100)).reason is Reason.CONTROLLER_UNREACHABLE
    core.tick(1_000 * MS)
    late = refusal(core.drain())
    assert (late.key, late.reason) == (2, Reason.CONTROLLER_UNREACHABLE)
    core.validate()


def test_nothing_waits_for_a_controller_longer_than_the_limit() -> None:
    core = core_with(None, controller_wait_ms=3_000.0)
    assert submit(core, slo_ms=None) == []
    assert core.next_wakeup_ns() == 3_000 * MS
    core.tick(3_000 * MS)
    assert refusal(core.drain()).reason is Reason.CONTROLLER_UNREACHABLE


def test_what_was_dispatched_to_a_worker_that_died_is_submitted_anew() -> None:
    core = core_with(5)
    first, second = (arrival(submit(core, key)).request_id for key in (1, 2))
    dispatch(core, first, 1, worker="dead")
    dispatch(core, second, 2, worker="alive")
    core.worker_lost(MS, "dead")
    assert core.drain() == [Withdraw(first), Arrive(5 << 40 | 2, "m", 1, 50 * MS)]
    # The controller's own second dispatch, under the old id, crossed ours.
    [push] = dispatch(core, first, 3, worker="alive")
    assert isinstance(push, Push)
    assert push.message.withdrawn
    core.worker_lost(60 * MS, "alive")
    assert core.drain() == []
    core.validate()


def test_a_client_that_left_gets_no_replies() -> None:
    core = core_with()
    request_id = arrival(submit(core)).request_id
    core.forget_connection(ALICE)
    assert core.drain() == [Withdraw(request_id)]
    assert core.counts["abandoned"] == 1
    core.validate()


def test_shutting_down_refuses_new_ones_and_abandoning_answers_the_rest() -> None:
    core = core_with()
    submit(core, 1)
    core.shut_down()
    assert refusal(submit(core, 2)).reason is Reason.SHUTTING_DOWN
    core.abandon()
    assert refusal(core.drain()).reason is Reason.SHUTTING_DOWN
    assert core.in_flight == 0
    core.validate()


def test_timers_of_answered_requests_do_not_pile_up() -> None:
    core = core_with()
    for key in range(20_000):
        submit(core, key, slo_ms=None)
        core.cancel(ALICE, key)
        core.drain()
    assert len(core._table.timers._heap) < 2_000
    core.validate()
