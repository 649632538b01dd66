"""Requests with more rows than a batch: one request to the client, several to the controller."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

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
from mainspring.gateway.core.validation import BadRequest, Signature, check_request, signature_of
from mainspring.messages.clients import InferRequest
from mainspring.messages.codes import Reason
from mainspring.messages.model import ModelSpec, TensorSpec
from mainspring.messages.peers import Dispatch, Output, Rejected, TensorHeader
from tests.gateway.core.interleaving import ALICE, BOB, WORKERS, Entered, Interleaving
from tests.gateway.core.stateful import adding

MS = 1_000_000


def spec(axis: int = 0) -> ModelSpec:
    """Return a model that takes 4 rows at once and doubles them; its rows may stand behind others."""
    tensor = (3, 2) if axis else (3,)
    return ModelSpec(
        *("m", "1" * 64, "2" * 64, (1, 2, 4), 0, ()),
        (TensorSpec("x", "float32", tensor, rows_axis=axis),),
        (TensorSpec("y", "float32", tensor, rows_axis=axis),),
        {},
    )


def accepted(rows: int, slo_ms: int | None = 50, axis: int = 0) -> Accepted:
    slo_ns = None if slo_ms is None else slo_ms * MS
    return Accepted("m", rows, slo_ns, (0,), (0,), Signature(spec(axis), 4_096))


def doubled(frames: Sequence[object]) -> tuple[bytes, ...]:
    return tuple((2 * np.frombuffer(frame, np.float32)).tobytes() for frame in frames)  # type: ignore[call-overload]


class Table:
    """A request table whose controller and workers the tests play."""

    def __init__(self, **options: float) -> None:
        self.core = GatewayCore(GatewayConfig(**options))  # type: ignore[arg-type]
        self.core.controller_welcomed(0, 5)
        self.pushed: dict[int, Push] = {}
        self.actions = 0

    def submit(self, rows: int, slo_ms: int | None = 50, axis: int = 0) -> Arrive:
        self.values = np.random.default_rng(rows).random((3, rows, 2) if axis else (rows, 3), np.float32)
        self.core.submit(0, ALICE, 1, accepted(rows, slo_ms, axis), [self.values.tobytes()])
        [arrive] = self.take(Arrive)
        assert isinstance(arrive, Arrive)
        return arrive

    def take(self, kind: type[Effect]) -> list[Effect]:
        effects = self.core.drain()
        self.core.validate()
        for each in effects:
            if isinstance(each, Push) and not each.message.withdrawn:
                self.pushed[each.message.request_id] = each
        return [each for each in effects if isinstance(each, kind)]

    def dispatch(self, request_id: int, worker: str = "w") -> int:
        self.actions += 1
        self.core.dispatched(MS, Dispatch(self.actions, worker, (request_id,), (False,), 4))
        self.take(Push)
        return self.actions

    def run(self, request_id: int) -> list[Effect]:
        return self.answer(self.dispatch(request_id), request_id)

    def answer(self, action_id: int, request_id: int) -> list[Effect]:
        self.core.outputs(2 * MS, Output(action_id, request_id, 1), doubled(self.pushed[request_id].frames))
        return self.take(Answer)

    def over(self) -> None:
        """Nothing is left of any request."""
        table = self.core._table
        assert self.core.in_flight == len(table.by_id) == table._input_bytes == 0
        assert self.core.next_wakeup_ns() is None


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("rows", [5, 8, 11])
def test_pieces_that_end_in_any_order_are_answered_in_the_order_of_the_rows(rows: int, axis: int) -> None:
    table = Table()
    arrive = table.submit(rows, axis=axis)
    assert arrive.rows == rows
    assert [piece.rows for piece in arrive.pieces] == [4] * (rows // 4) + [rows % 4] * (rows % 4 > 0)
    *others, last = reversed(arrive.pieces)
    for piece in others:
        assert table.run(piece.request_id) == []
    [answer] = table.run(last.request_id)
    assert isinstance(answer, Answer)
    assert b"".join(answer.frames) == (2 * table.values).tobytes()  # type: ignore[arg-type]
    assert answer.outputs[0].shape == table.values.shape
    assert answer.timing.total_ns == 2 * MS
    table.over()


def test_inputs_are_cut_and_not_copied() -> None:
    table = Table()
    data = bytearray(8 * 12)
    table.core.submit(0, ALICE, 1, accepted(8), [data])
    [arrive] = table.take(Arrive)
    assert isinstance(arrive, Arrive)
    for piece in arrive.pieces:
        table.dispatch(piece.request_id)
        (frame,) = table.pushed[piece.request_id].frames
        assert isinstance(frame, memoryview)
        assert frame.obj is data


def test_the_client_has_one_request_in_flight() -> None:
    table = Table(max_in_flight_per_connection=2)
    table.submit(40)
    assert table.core.connection_in_flight(ALICE) == 1
    table.core.submit(0, ALICE, 1, accepted(8), [bytes(96)])
    [refused] = table.take(Refuse)
    assert isinstance(refused, Refuse)
    assert refused.reason is Reason.DUPLICATE_KEY


@pytest.mark.parametrize("of_piece", [False, True])
def test_a_rejection_of_the_query_or_of_a_piece_ends_all(of_piece: bool) -> None:
    table = Table()
    arrive = table.submit(12)
    table.run(arrive.pieces[0].request_id)
    rejected = arrive.pieces[1].request_id if of_piece else arrive.request_id
    table.core.rejected(0, Rejected(rejected, Reason.DEADLINE_PASSED, "late", 7))
    effects = table.take(object)  # type: ignore[arg-type]
    assert [type(each) for each in effects] == [Withdraw, Refuse] if of_piece else [Refuse]
    table.over()


def test_a_cancellation_is_told_to_the_controller_once() -> None:
    table = Table()
    arrive = table.submit(12)
    table.core.cancel(ALICE, 1)
    effects = table.take(object)  # type: ignore[arg-type]
    assert effects[0] == Withdraw(arrive.request_id)
    assert [type(each) for each in effects] == [Withdraw, Refuse]
    table.over()


def test_only_what_a_lost_worker_had_is_submitted_again() -> None:
    table = Table()
    first, second, third = table.submit(12).pieces
    table.run(first.request_id)
    table.dispatch(second.request_id, "lost")
    table.dispatch(third.request_id)
    table.core.worker_lost(MS, "lost")
    withdraw, again = table.take(object)  # type: ignore[arg-type]
    assert withdraw == Withdraw(second.request_id)
    assert isinstance(again, Arrive)
    assert (again.rows, again.pieces, again.query & ~(5 << 40)) == (4, (), 0)
    table.answer(3, third.request_id)
    assert len(table.run(again.request_id)) == 1
    table.over()


def test_a_new_controller_is_told_of_what_is_left() -> None:
    table = Table()
    pieces = table.submit(12).pieces
    table.run(pieces[1].request_id)
    table.core.controller_lost(MS)
    table.take(Withdraw)
    table.core.controller_welcomed(2 * MS, 6)
    [arrive] = table.take(Arrive)
    assert isinstance(arrive, Arrive)
    assert len(arrive.pieces) == 2
    assert {piece.request_id >> 40 for piece in arrive.pieces} == {6}
    assert table.run(arrive.pieces[0].request_id) == []
    assert len(table.run(arrive.pieces[1].request_id)) == 1
    table.over()


def test_what_could_not_be_sent_is_sent_again() -> None:
    table = Table()
    arrive = table.submit(12)
    table.core.arrival_unsent(0, arrive.request_id)
    table.core.tick(ARRIVAL_RETRY_NS)
    [again] = table.take(Arrive)
    assert isinstance(again, Arrive)
    assert len(again.pieces) == 3
    assert again.request_id != arrive.request_id


def test_outputs_of_a_piece_that_make_no_sense_end_all() -> None:
    table = Table()
    piece = table.submit(12).pieces[0]
    action_id = table.dispatch(piece.request_id)
    table.core.outputs(MS, Output(action_id, piece.request_id, 1), (b"",))
    [refused] = table.take(Refuse)
    assert isinstance(refused, Refuse)
    assert refused.reason is Reason.WORKER_FAILED
    table.over()


# --- validation ---


def refusal(spec: ModelSpec, rows: int, most: int = 32) -> str:
    tensor = spec.inputs[0]
    header = TensorHeader("x", "float32", tensor.with_rows(rows))
    signature = signature_of(spec, most)
    bytes_ = [rows * tensor.row_bytes]
    with pytest.raises(BadRequest) as caught:
        check_request(InferRequest(1, "m", (header,), None), bytes_, lambda *_: signature, 10**9)
    assert caught.value.reason is Reason.TOO_MANY_ROWS
    return caught.value.detail


def test_the_bound_is_named_by_its_key() -> None:
    assert "(32), by the gateway's max_rows_per_request" in refusal(spec(), 33)


def test_rows_that_are_never_split_say_why() -> None:
    unshared = msgspec.structs.replace(spec(), unshared="a row's outputs depend on the others")
    assert "(4), a row's outputs depend on the others" in refusal(unshared, 5)
    assert signature_of(adding(), 4_096).most_rows == adding().max_rows


@given(rows=st.integers(1, 40), most=st.integers(0, 64))
def test_any_number_of_rows_up_to_the_bound_is_taken(rows: int, most: int) -> None:
    signature = signature_of(spec(), most)
    header = TensorHeader("x", "float32", (rows, 3))
    request = InferRequest(1, "m", (header,), None)
    if rows <= max(4, most):
        assert check_request(request, [12 * rows], lambda *_: signature, 10**9).rows == rows
    else:
        refusal(spec(), rows, most)


# --- in any order ---


class AnyInterleaving(Interleaving):
    """Requests of one batch and of many, dispatches, outputs, rejections, losses and time in any order."""

    @initialize()
    def start(self) -> None:
        config = GatewayConfig(max_in_flight=12, max_in_flight_per_connection=8, controller_wait_ms=400.0)
        self.begin(GatewayCore(config))
        self.entered: list[Entered] = []
        self.known: list[int] = []
        self.rows: dict[int, int] = {}

    def all_entered(self) -> list[Entered]:
        return self.entered

    def all_known(self) -> list[int]:
        return self.known

    @rule(
        connection=st.sampled_from([ALICE, BOB]),
        slo_ms=st.sampled_from([None, 1, 50, 500]),
        rows=st.integers(1, 14),
    )
    def submit(self, connection: Connection, slo_ms: int | None, rows: int) -> None:
        self.next_key += 1
        self.entered.append((connection, self.next_key))
        request = accepted(rows, slo_ms)
        self.core.submit(self.now_ns, connection, self.next_key, request, [bytes(12 * rows)])

    @rule(data=st.data(), count=st.integers(1, 4), worker=WORKERS)
    def dispatch(self, data: st.DataObject, count: int, worker: str) -> None:
        if self.rows:
            self.next_action += 1
            ids = tuple(data.draw(st.sampled_from(list(self.rows))) for _ in range(count))
            message = Dispatch(self.next_action, worker, ids, (False,) * count, 4)
            self.core.dispatched(self.now_ns, message)

    @rule(data=st.data(), count=st.integers(1, 4), good=st.integers(0, 7))
    def outputs(self, data: st.DataObject, count: int, good: int) -> None:
        for _ in range(count if self.pushed else 0):
            action_id, request_id = data.draw(st.sampled_from(self.pushed))
            frames = (bytes(12 * self.rows[request_id]),) if good else ()
            self.core.outputs(self.now_ns, Output(action_id, request_id, 1), frames)

    def drain(self) -> None:
        for effect in self.core.drain():
            match effect:
                case Arrive(pieces=()):
                    self.known.append(effect.request_id)
                    self.rows[effect.request_id] = effect.rows
                case Arrive():
                    self.known.append(effect.request_id)
                    self.known += [piece.request_id for piece in effect.pieces]
                    self.rows |= {piece.request_id: piece.rows for piece in effect.pieces}
                case Push() if not effect.message.withdrawn:
                    self.pushed.append((effect.message.action_id, effect.message.request_id))
                case Answer() | Refuse():
                    self.replies[effect.connection, effect.key] += 1


AnyInterleaving.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnyInterleaving = AnyInterleaving.TestCase
