"""Sequences at the request table: order, state, bounds, and what becomes of them when requests fail."""

from __future__ import annotations

import numpy as np
import pytest

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.core.sequences import Sequences
from mainspring.gateway.core.validation import signature_of
from mainspring.messages.codes import Reason
from mainspring.messages.peers import Output
from mainspring.messages.sequencing import Control, Sequencing
from tests.gateway.core.stateful import ALICE, BOB, MS, SEQUENCING, Table, accepted, added, adding


def test_the_state_goes_from_each_request_to_the_next() -> None:
    table = Table()
    for key, start in ((1, True), (2, False), (3, False)):
        assert table.submit(accepted(start=start), 1.0, 10.0) == key
        table.run()
    assert table.answers == {1: [1.0, 10.0], 2: [2.0, 20.0], 3: [3.0, 30.0]}
    table.submit(accepted(end=True))
    table.run()
    assert table.answers[4] == [4.0, 30.0]
    assert (len(table.core.sequences), table.core.sequences.bytes) == (0, 0)
    assert table.core.sequences.counts == {"sequences_begun": 1, "sequences_ended": 1}


def test_requests_that_come_at_once_run_one_after_the_other() -> None:
    table = Table()
    for number in range(4):
        table.submit(accepted(start=number == 0, end=number == 3))
    assert len(table.arrived) == 1
    table.run()
    assert [table.answers[key][0] for key in (1, 2, 3, 4)] == [1.0, 2.0, 3.0, 4.0]


def test_different_sequences_are_submitted_side_by_side() -> None:
    table = Table()
    for sequence in (1, 2, "1", "two"):
        table.submit(accepted(sequence, start=True), float(len(table.arrived)), 0.0)
    assert len(table.arrived) == 4
    table.run()
    for sequence in (1, 2, "1", "two"):
        table.submit(accepted(sequence), 0.0, 0.0)
    table.run()
    assert [table.answers[key][0] for key in (5, 6, 7, 8)] == [0.0, 1.0, 2.0, 3.0]


def test_controls_say_where_in_its_sequence_a_request_is() -> None:
    table = Table()
    named = Sequencing(SEQUENCING.states, (*SEQUENCING.controls, Control("name", "id")))
    signature = signature_of(adding(sequencing=named))
    for start in (True, False):
        table.submit(accepted(9, start=start, signature=signature))
        request_id = table.arrived[0]
        table.run()
        _, _, started, name = table.pushed[request_id]
        assert np.frombuffer(started, np.int32).tolist() == [int(start)]
        assert np.frombuffer(name, np.uint64).tolist() == [9]
    refused = table.submit(accepted("nine", start=True, signature=signature))
    assert "input 'name' takes whole numbers up to 18446744073709551615" in table.refusals[refused].detail


def test_a_start_begins_an_active_sequence_again() -> None:
    table = Table()
    table.submit(accepted(start=True))
    table.submit(accepted())
    table.submit(accepted(start=True), 5.0, 0.0)
    table.submit(accepted())
    table.run()
    assert [table.answers[key][0] for key in (1, 2, 3, 4)] == [1.0, 2.0, 5.0, 6.0]
    assert len(table.core.sequences) == 1


def test_a_sequence_that_nobody_began_is_told_at_once() -> None:
    table = Table()
    key = table.submit(accepted("call-5"))
    assert table.refusals[key].reason is Reason.UNKNOWN_SEQUENCE
    said = "sequence 'call-5' to model 'm' must specify the START flag on the first request of the sequence"
    assert said in table.refusals[key].detail
    assert table.arrived == []


def test_after_its_end_a_sequence_is_unknown() -> None:
    table = Table()
    table.submit(accepted(start=True, end=True))
    late = table.submit(accepted())
    table.run()
    assert table.refusals[late].reason is Reason.UNKNOWN_SEQUENCE
    assert table.answers[1] == [1.0, 0.0]
    assert len(table.core.sequences) == 0


@pytest.mark.parametrize("how", ["reject", "cancel", "time out"])
def test_a_request_without_outputs_leaves_the_state_as_it_was(how: str) -> None:
    table = Table()
    table.submit(accepted(start=True))
    table.run()
    failing = table.submit(accepted(slo_ms=50), 100.0, 0.0)
    after = table.submit(accepted(end=True))
    request_id = table.arrived.pop()
    if how == "reject":
        table.reject(request_id)
    elif how == "cancel":
        table.core.cancel(ALICE, failing)
        table.take()
    else:
        table.dispatch(request_id)
        table.wait(200)
    assert table.refusals[failing].detail.endswith("the state of sequence 7 is as before this request")
    table.run()
    assert table.answers[after] == [2.0, 0.0]


def test_one_that_waits_behind_another_has_its_own_deadline() -> None:
    table = Table(grace_ms=100.0)
    table.submit(accepted(start=True))
    waiting = table.submit(accepted(slo_ms=50))
    third = table.submit(accepted())
    table.wait(149)
    assert waiting not in table.refusals
    table.wait(1)
    assert table.refusals[waiting].reason is Reason.TIMED_OUT
    table.run()
    assert [table.answers[key][0] for key in (1, third)] == [1.0, 2.0]


def test_outputs_that_come_too_late_for_their_client_do_not_change_the_state() -> None:
    table = Table()
    table.submit(accepted(start=True))
    table.run()
    late = table.submit(accepted(slo_ms=5, late_outputs=False))
    request_id = table.arrived.pop()
    table.dispatch(request_id)
    table.now_ns += 6 * MS
    table.answer(request_id)
    assert table.refusals[late].reason is Reason.TIMED_OUT
    last = table.submit(accepted())
    table.run()
    assert table.answers[last] == [2.0, 0.0]


@pytest.mark.parametrize("waits", [False, True])
def test_what_follows_a_start_that_failed_does_not_go_on_with_what_was_before(waits: bool) -> None:
    table = Table()
    table.submit(accepted(start=True))
    if not waits:
        table.run()
    start, behind = table.submit(accepted(start=True)), table.submit(accepted())
    table.core.cancel(ALICE, start)
    table.take()
    assert table.refusals[start].detail.endswith("sequence 7 is not begun")
    table.run()
    assert table.refusals[behind].reason is Reason.UNKNOWN_SEQUENCE
    assert table.refusals[table.submit(accepted())].reason is Reason.UNKNOWN_SEQUENCE
    assert len(table.core.sequences) == 0


def test_a_long_line_of_failures_is_told_without_end_of_stack() -> None:
    table = Table()
    table.submit(accepted(start=True))
    keys = [table.submit(accepted()) for _ in range(1_200)]
    table.reject(table.arrived.pop())
    assert all(table.refusals[key].reason is Reason.UNKNOWN_SEQUENCE for key in keys)


def test_a_client_that_leaves_takes_its_requests_along_and_others_go_on() -> None:
    table = Table()
    table.submit(accepted(start=True))
    table.run()
    table.submit(accepted(), 100.0, 0.0)
    table.submit(accepted(), 100.0, 0.0)
    other = table.submit(accepted(), connection=BOB)
    table.core.forget_connection(ALICE)
    table.take()
    table.run()
    assert table.answers[other] == [2.0, 0.0]


def test_a_client_that_leaves_in_the_middle_of_a_start_is_forgotten_once() -> None:
    table = Table()
    table.submit(accepted(start=True))
    for _ in range(3):
        table.submit(accepted())
    table.core.forget_connection(ALICE)
    table.take()
    assert (table.core.in_flight, len(table.core.sequences)) == (0, 0)


def test_a_sequence_outlives_its_worker() -> None:
    table = Table()
    table.submit(accepted(start=True))
    table.run()
    key = table.submit(accepted())
    request_id = table.arrived.pop()
    table.dispatch(request_id, "w")
    table.core.worker_lost(table.now_ns, "w")
    table.take()
    [again] = table.arrived
    assert again != request_id
    table.run()
    assert table.answers[key] == [2.0, 0.0]


def test_a_lost_controller_is_waited_for() -> None:
    table = Table()
    table.submit(accepted(start=True))
    behind = table.submit(accepted())
    table.arrived.clear()
    table.core.controller_lost(table.now_ns)
    table.take()
    table.core.controller_welcomed(table.now_ns, 2)
    table.take()
    table.run()
    assert table.answers == {1: [1.0, 0.0], behind: [2.0, 0.0]}


def test_without_a_controller_the_whole_line_is_refused() -> None:
    table = Table(controller_wait_ms=500.0)
    table.submit(accepted(start=True))
    behind = table.submit(accepted())
    table.core.controller_lost(table.now_ns)
    table.wait(500)
    assert table.refusals[1].reason is Reason.CONTROLLER_UNREACHABLE
    assert table.refusals[behind].reason is Reason.UNKNOWN_SEQUENCE
    assert table.core.in_flight == 0


def test_idle_sequences_are_dropped() -> None:
    table = Table(sequence_idle_ms=1_000.0)
    table.submit(accepted(start=True))
    table.wait(5_000)
    table.run()
    assert table.core.next_wakeup_ns() == table.now_ns + 1_000 * MS
    table.wait(999)
    table.submit(accepted())
    table.run()
    table.wait(999)
    assert len(table.core.sequences) == 1
    table.wait(1)
    assert (len(table.core.sequences), table.core.next_wakeup_ns()) == (0, None)
    assert table.refusals[table.submit(accepted())].reason is Reason.UNKNOWN_SEQUENCE


def test_a_model_may_say_how_long_its_sequences_may_be_idle() -> None:
    brief = Sequencing(SEQUENCING.states, SEQUENCING.controls, idle_ns=20 * MS)
    table = Table(sequence_idle_ms=1_000.0)
    table.submit(accepted(start=True, signature=signature_of(adding(sequencing=brief))))
    table.run()
    table.wait(20)
    assert len(table.core.sequences) == 0


def test_the_number_of_sequences_is_bounded() -> None:
    table = Table(max_sequences=2)
    for sequence in (1, 2, 3):
        table.submit(accepted(sequence, start=True))
    assert table.refusals[3].reason is Reason.OVERLOADED
    assert "2 sequences have a state here" in table.refusals[3].detail
    table.submit(accepted(1, end=True))
    table.run()
    table.submit(accepted(3, start=True))
    assert len(table.core.sequences) == 2


def test_the_bytes_of_sequences_are_bounded() -> None:
    table = Table(max_sequence_bytes=40)
    table.submit(accepted(1, start=True, rows=4))
    refused = table.submit(accepted(2, start=True, rows=2))
    assert "the states of sequences take 32 bytes and may take 40; this one needs 16" in (
        table.refusals[refused].detail
    )
    again = table.submit(accepted(1, start=True, rows=8))
    assert table.refusals[again].reason is Reason.OVERLOADED
    table.submit(accepted(2, start=True, rows=1))
    assert table.core.sequences.bytes == 40


def test_all_requests_of_a_sequence_have_as_many_rows() -> None:
    table = Table()
    table.submit(accepted(start=True, rows=2))
    table.run()
    key = table.submit(accepted())
    assert table.refusals[key].reason is Reason.BAD_INPUT
    assert "sequence 7 has 2 rows and this request 1" in table.refusals[key].detail
    key = table.submit(accepted(rows=2))
    table.run()
    assert table.answers[key] == [2.0, 0.0, 2.0, 0.0]


def test_a_model_that_is_replaced_or_removed_takes_its_sequences_along() -> None:
    table = Table()
    table.submit(accepted(start=True))
    table.run()
    other = signature_of(adding(weights_hash="2" * 64))
    key = table.submit(accepted(signature=other))
    assert table.refusals[key].reason is Reason.UNKNOWN_SEQUENCE
    table.core.sequences.forget("m")
    assert len(table.core.sequences) == 0


def test_a_gateway_that_stops_answers_all_once() -> None:
    table = Table()
    table.submit(accepted(start=True))
    for _ in range(3):
        table.submit(accepted())
    table.core.abandon()
    table.take()
    assert [each.reason for each in table.refusals.values()] == [Reason.SHUTTING_DOWN] * 4


def test_the_states_bytes_are_copied() -> None:
    table = Table()
    table.submit(accepted(start=True))
    request_id = table.arrived.pop()
    table.dispatch(request_id)
    outputs = [bytearray(each) for each in added(table.pushed[request_id])]
    table.core.outputs(0, Output(request_id, request_id, 1), tuple(outputs))
    table.take()
    outputs[0][:] = bytes(8)
    key = table.submit(accepted())
    table.run()
    assert table.answers[key] == [2.0, 0.0]


def test_timers_of_a_busy_sequence_do_not_pile_up() -> None:
    table = Table()
    table.submit(accepted(start=True))
    table.run()
    for _ in range(100):
        table.submit(accepted())
        table.run()
    assert len(table.core.sequences._timers) == 1
    for sequence in range(3_000):
        table.submit(accepted(sequence + 10, start=True))
        table.run()
        table.submit(accepted(sequence + 10, end=True))
        table.run()
    assert len(table.core.sequences._timers) < 1_100


def test_the_pure_table_needs_no_gateway() -> None:
    sequences = Sequences(GatewayConfig())
    assert (len(sequences), sequences.bytes, sequences.next_wakeup_ns()) == (0, 0, None)
    sequences.tick(1)
    sequences.validate({})


def test_what_became_of_sequences_is_counted_by_model() -> None:
    table = Table()
    for sequence in (1, 2, 3):
        table.submit(accepted(sequence, start=True))
    table.submit(accepted("never begun"))
    table.run()
    (model,) = table.core.sequences.models
    numbers = table.core.sequences.models[model].numbers
    each_bytes = table.core.sequences.bytes // 3
    assert each_bytes > 0
    assert numbers == {"begun": 3, "live": 3, "bytes": 3 * each_bytes, "unknown": 1}
    table.submit(accepted(1, end=True))
    table.run()
    assert (numbers["live"], numbers["bytes"], numbers["ended"]) == (2, 2 * each_bytes, 1)
    table.submit(accepted(2, end=True))
    table.core.sequences.forget(model)
    assert (numbers["live"], numbers["dropped"]) == (1, 1)
    table.run()
    assert table.core.sequences.models == {}, "its last request is answered"
    assert (numbers["live"], numbers["bytes"]) == (0, 0)
