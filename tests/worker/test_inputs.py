"""Inputs that come before their action: bounded in number, bytes and age; rows in their places."""

from __future__ import annotations

import struct

import msgspec
import numpy as np
import pytest

from mainspring.messages.actions import Infer, Result
from mainspring.messages.codes import Status
from mainspring.messages.model import FOUND_BYTES, TensorSpec
from mainspring.messages.peers import OutputTimes
from mainspring.worker.core.jobs import Reservation, Slot
from mainspring.worker.core.residency import slot_layout
from mainspring.worker.inputs import HeldInput, Inputs
from tests.worker.peers import infer, spec, spec_of_lengths


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


def test_truth_values_are_zero_or_one_in_memory() -> None:
    memory = np.full(1024, 255, np.uint8)
    inputs = Inputs(memory, 3, 100, 50)
    truths = msgspec.structs.replace(spec(), inputs=(TensorSpec("data", "bool", (12,)),))
    layout = slot_layout(truths, 1)
    inputs.open(infer(1, (7,)), truths, Reservation(Slot(64, layout.size), layout))
    assert inputs.place(1, 7, HeldInput(b"g", [bytes([0, 1, 2, 255] * 3)], 0, 12)) == ""
    assert bytes(memory[64:76]) == bytes([0, 1, 1, 1] * 3)


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


def ended(action_id: int, begin_ns: int, end_ns: int) -> Result:
    return Result(action_id, "w", Status.OK, begin_ns, end_ns)


def cold(action_id: int, request_ids: tuple[int, ...], *which: bool) -> Infer:
    ones = (1,) * len(request_ids)
    return Infer(action_id, "w", "m", len(ones), request_ids, ones, which, 0, 1_000, 0, 1)


def test_durations_of_a_requests_steps() -> None:
    inputs = new_inputs()
    opened(inputs, infer(1, (7, 8)))
    inputs.placed(1, 7, 100, 130)
    inputs.placed(1, 8, 130, 190)
    result = ended(1, 250, 400)
    assert inputs.times(410, result, 7, {}) == OutputTimes(30, 120, 10)
    assert inputs.times(425, result, 8, {}) == OutputTimes(60, 60, 25)
    assert inputs.times(425, result, 9, {}) is None, "nothing of it was placed"
    inputs.close(1)
    assert inputs.times(430, result, 7, {}) is None, "an action that has ended is forgotten"


def test_only_a_request_that_found_the_model_nowhere_reports_its_load() -> None:
    inputs = new_inputs()
    opened(inputs, cold(2, (7, 8), True, False))
    inputs.placed(2, 7, 1_100, 1_110)
    inputs.placed(2, 8, 1_100, 1_110)
    result, loads = ended(2, 1_650, 1_700), {"m": (1_000, 1_600)}
    assert inputs.times(1_705, result, 7, loads) == OutputTimes(10, 540, 5, 600, 50)
    assert inputs.times(1_705, result, 8, loads) == OutputTimes(10, 540, 5)
    assert inputs.times(1_705, result, 7, {}) == OutputTimes(10, 540, 5), "the load has been undone"


def test_smaller_requests_are_padded_and_their_outputs_cut() -> None:
    memory = np.full(4096, 255, np.uint8)
    inputs = Inputs(memory, 3, 4096, 50)
    model = msgspec.structs.replace(spec_of_lengths(), pad={"x": -1.5})
    layout = slot_layout(model, 4, (5,))
    action = infer(1, (7, 8), (1, 2), batch_size=4, sizes=(5,), request_sizes=((5,), (2,)))
    inputs.open(action, model, Reservation(Slot(64, layout.size), layout))
    long = np.arange(15, dtype=np.float32).reshape(1, 5, 3)
    short = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    refused = inputs.place(1, 8, HeldInput(b"g", [long.tobytes()], 0, 60))
    assert refused == "x has 60 bytes, 2 rows have 48"
    assert inputs.place(1, 7, HeldInput(b"g", [long.tobytes()], 0, 60)) == ""
    assert inputs.place(1, 8, HeldInput(b"h", [short.tobytes()], 0, 48)) == ""
    placed = memory[64 : 64 + 4 * 60].view(np.float32).reshape(4, 5, 3)
    assert np.array_equal(placed[:1], long)
    assert np.array_equal(placed[1:3, :2], short)
    assert (placed[1:3, 2:] == -1.5).all()
    assert not placed[3].any(), "rows without a request are zeros"
    outputs = memory[64 + layout.outputs[0] :][: 4 * 6 * 8].view(np.float32).reshape(4, 6, 2)
    outputs[...] = np.arange(48, dtype=np.float32).reshape(4, 6, 2)
    found = {request_id: bytes(frames[0]) for request_id, _, frames in inputs.outputs(1)}
    assert found == {7: outputs[:1].tobytes(), 8: outputs[1:3, :3].tobytes()}


def test_what_follows_from_no_size_is_not_padded() -> None:
    memory = np.full(4096, 255, np.uint8)
    inputs = Inputs(memory, 3, 4096, 50)
    opened = spec_of_lengths()
    fixed = TensorSpec("z", "int64", (2,))
    model = msgspec.structs.replace(opened, inputs=(*opened.inputs, fixed), pad={"x": 0.0})
    layout = slot_layout(model, 2, (3,))
    action = infer(1, (7, 8), sizes=(3,), request_sizes=((3,), (2,)))
    inputs.open(action, model, Reservation(Slot(0, layout.size), layout))
    frames = [bytes(24), np.array([4, 5]).tobytes()]
    assert inputs.place(1, 8, HeldInput(b"g", frames, 0, 40)) == ""
    assert memory[layout.inputs[1] :][16:32].view(np.int64).tolist() == [4, 5]


def test_of_an_output_that_varies_only_what_was_written_is_sent() -> None:
    memory = np.full(1024, 255, np.uint8)
    inputs = Inputs(memory, 3, 100, 50)
    model = msgspec.structs.replace(
        spec(), outputs=(TensorSpec("y", "float32", (2, 9), varies=(1,)), TensorSpec("z", "uint8", (2,)))
    )
    layout = slot_layout(model, 1)
    assert layout.outputs[1] - layout.outputs[0] >= FOUND_BYTES + 2 * 9 * 4
    action = infer(1, (7,), (1,), batch_size=1)
    inputs.open(action, model, Reservation(Slot(64, layout.size), layout))
    assert inputs.place(1, 7, held()) == ""
    memory[64 + layout.outputs[0] :][:FOUND_BYTES] = np.frombuffer(struct.pack("<q56x", 3), np.uint8)
    ((_, _, outputs),) = inputs.outputs(1)
    assert [len(each) for each in outputs] == [FOUND_BYTES + 2 * 3 * 4, 2]
