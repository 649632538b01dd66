"""What clients may say of sequences, and states whose dimensions are open."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mainspring.gateway.core.effects import Accepted, Answer
from mainspring.gateway.core.validation import BadRequest, Signature, check_request, signature_of
from mainspring.messages.clients import InferRequest
from mainspring.messages.codes import Reason
from mainspring.messages.model import (
    ModelSpec,
    OpenDim,
    Symbol,
    TensorSpec,
    Term,
)
from mainspring.messages.peers import Output, TensorHeader
from mainspring.messages.sequencing import Sequencing, State
from tests.gateway.core.stateful import SEQUENCING, SIGNATURE, Table, accepted, added, adding, floats
from tests.gateway.fakes import make_spec


def asked(signature: Signature = SIGNATURE, **changes: Any) -> Accepted:
    header = TensorHeader("x", "float32", (1, 2))
    request = InferRequest(1, "m", (header,), None, **{"sequence_id": 7, **changes})
    return check_request(request, [8], lambda *_: signature, 10**9)


def test_clients_give_neither_states_nor_controls_and_get_no_states() -> None:
    assert [each.name for each in SIGNATURE.spec.inputs] == ["x"]
    assert [each.name for each in SIGNATURE.spec.outputs] == ["y"]
    found = asked(sequence_start=True).turn
    assert found is not None
    assert (found.sequence, found.start, found.end) == (7, True, False)
    with pytest.raises(BadRequest, match="there is no output 'next'; model 'm' gives 'y'"):
        asked(outputs=("next",))


def test_a_state_that_is_shown_can_be_asked_for() -> None:
    shown = Sequencing((State("past", "next", shown=True),), SEQUENCING.controls)
    signature = signature_of(adding(sequencing=shown))
    table = Table()
    table.submit(accepted(start=True, signature=signature))
    table.dispatch(table.arrived[0])
    outputs = added(table.pushed[table.arrived[0]])
    table.core.outputs(0, Output(table.arrived[0], table.arrived[0], 1), outputs)
    [answer] = [each for each in table.take() if isinstance(each, Answer)]
    assert [each.name for each in answer.outputs] == ["next", "y"]


@pytest.mark.parametrize("sequence", [0, "", -1, 1 << 64, "x" * 129])
def test_a_request_needs_an_id(sequence: int | str) -> None:
    with pytest.raises(BadRequest, match=r"correlation ID|sequence_id") as caught:
        asked(sequence_id=sequence)
    assert caught.value.reason is Reason.BAD_INPUT


def test_a_model_without_sequences_does_not_look_at_ids() -> None:
    request = InferRequest(1, "m", (TensorHeader("data", "float32", (1, 4)),), None, sequence_id=3)
    assert check_request(request, [16], lambda *_: Signature(make_spec("m")), 10**9).turn is None


# --- open dimensions ---


def growing(**changes: Any) -> ModelSpec:
    """Return a model whose state grows by as many columns as its input has."""
    seq, past = OpenDim(0, (Term(0),)), OpenDim(0, (Term(1),))
    return msgspec.structs.replace(
        make_spec("m"),
        inputs=(TensorSpec("x", "float32", (4,), (seq,)), TensorSpec("past", "float32", (8,), (past,))),
        outputs=(TensorSpec("next", "float32", (9,), (OpenDim(0, (Term(1, 1, 1),)),)),),
        symbols=(Symbol("seq", (4,)), Symbol("past", (4, 8))),
        sequencing=Sequencing((State("past", "next", **changes),)),
    )


def grow(table: Table, signature: Signature, *, start: bool) -> int:
    header = TensorHeader("x", "float32", (1, 2))
    request = InferRequest(1, "m", (header,), None, sequence_id=1, sequence_start=start)
    found = check_request(request, [8], lambda *_: signature, 10**9)
    return table.submit(found)


def test_a_state_may_grow_up_to_its_limit() -> None:
    table, signature = Table(), signature_of(growing())
    for size in range(1, 9):
        grow(table, signature, start=size == 1)
        request_id = table.arrived.pop()
        table.dispatch(request_id)
        assert len(table.pushed[request_id][1]) == 4 * size
        table.core.outputs(0, Output(request_id, request_id, 1), (floats(*range(size + 1)),))
        table.take()
    key = grow(table, signature, start=False)
    assert "past is 9; the model takes seq from 1 to 4, past from 1 to 8" in table.refusals[key].detail


def test_an_initial_state_has_the_dims_and_bytes_that_are_given() -> None:
    table = Table()
    signature = signature_of(growing(dims=(3,), initial=floats(1, 2, 3)))
    grow(table, signature, start=True)
    table.dispatch(table.arrived[0])
    assert table.pushed[table.arrived[0]][1] == floats(1, 2, 3)
