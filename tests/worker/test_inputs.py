"""Inputs that come before their action: bounded in number, bytes and age; rows in their places."""

from __future__ import annotations

import numpy as np
import pytest

from mainspring.messages.actions import Infer
from mainspring.worker.core.io_memory import slot_layout
from mainspring.worker.core.jobs import Reservation, Slot
from mainspring.worker.inputs import HeldInput, Inputs
from tests.worker.peers import infer, spec


def new_inputs(limit: int = 3, limit_bytes: int = 100, age_ns: int = 50) -> Inputs:
    return Inputs(np.full(1024, 255, np.uint8), limit, limit_bytes, age_ns)


def held(size: int = 12, since_ns: int = 0, sender: bytes = b"g", value: bytes = b"\1") -> HeldInput:
    return HeldInput(sender, [value * size], since_ns, size)


def opened(inputs: Inputs, action: Infer, offset: int = 64) -> list[tuple[int, HeldInput]]:
    layout = slot_layout(spec(), action.batch_size)
    return inputs.open(action, spec(), Reservation(Slot(offset, layout.size), layout))


def test_rows_of_requests_lie_in_order_and_padding_is_zero() -> None:
    memory = np.full(1024, 255, np.uint8)
    inputs = Inputs(memory, 3, 100, 50)
    action = infer(1, (7, 8), (1, 2), batch_size=4)
    opened(inputs, action)
    assert inputs.place(1, 8, held(24, value=b"\2")) == ""
    assert inputs.place(1, 7, held(12, value=b"\1")) == ""
    assert bytes(memory[64:112]) == b"\1" * 12 + b"\2" * 24 + bytes(12)
    assert set(memory[:64]) == {255}, "nothing may be written before the slot"


def test_withdrawn_rows_are_zero_and_want_no_outputs() -> None:
    memory = np.full(1024, 255, np.uint8)
    inputs = Inputs(memory, 3, 100, 50)
    opened(inputs, infer(1, (7, 8)))
    assert inputs.place(1, 7, HeldInput(b"g", None, 0, 0)) == ""
    assert inputs.place(1, 8, held()) == ""
    assert bytes(memory[64:76]) == bytes(12)
    assert [request_id for request_id, _, _ in inputs.outputs(1)] == [8]
    assert not inputs.expects(1, 7), "a withdrawn request's rows are settled"


def test_early_input_waits_for_its_action() -> None:
    inputs = new_inputs()
    assert inputs.hold(1, 7, held(sender=b"early")) == 0
    assert inputs.hold(1, 7, held(sender=b"again")) == 1
    [(request_id, found)] = opened(inputs, infer(1, (7, 8)))
    assert (request_id, found.sender) == (7, b"early")
    assert len(inputs._early) == 0


def test_early_inputs_are_bounded_in_number() -> None:
    inputs = new_inputs(limit=2)
    assert [inputs.hold(action_id, 1, held(1)) for action_id in (1, 2, 3)] == [0, 0, 1]
    assert opened(inputs, infer(1)) == [], "the oldest was dropped"
    assert len(opened(inputs, infer(2))) == 1


def test_early_inputs_are_bounded_in_bytes() -> None:
    inputs = new_inputs(limit_bytes=100)
    assert inputs.hold(1, 1, held(101)) == 1
    assert [inputs.hold(action_id, 1, held(40)) for action_id in (2, 3, 4)] == [0, 0, 1]
    assert len(inputs._early) == 2


def test_early_inputs_grow_old() -> None:
    inputs = new_inputs(age_ns=50)
    inputs.hold(1, 1, held(since_ns=0))
    inputs.hold(2, 1, held(since_ns=40))
    assert inputs.expire(60) == 1
    assert len(inputs._early) == 1


@pytest.mark.parametrize("end", ["close", "refuse"])
def test_inputs_of_ended_actions_are_not_held(end: str) -> None:
    inputs = new_inputs()
    getattr(inputs, end)(1)
    assert inputs.hold(1, 1, held()) == 1


def test_refusal_of_a_repeated_action_leaves_the_first_alone() -> None:
    inputs = new_inputs()
    opened(inputs, infer(1))
    inputs.refuse(1)
    assert inputs.expects(1, 1)


def test_clear_forgets_everything() -> None:
    inputs = new_inputs()
    opened(inputs, infer(1))
    inputs.hold(2, 1, held())
    inputs.close(3)
    inputs.clear()
    assert not inputs.expects(1, 1)
    assert len(inputs._early) == 0
    assert inputs.hold(3, 1, held()) == 0
