"""Rows that clients have behind other axes: put in front in IO memory, and back, byte for byte."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mainspring.messages.model import OpenDim, Symbol, TensorSpec, Term, array_dtype
from mainspring.worker.core.jobs import Reservation, Slot
from mainspring.worker.core.residency import slot_layout
from mainspring.worker.inputs import HeldInput, Inputs, from_rows, to_rows
from tests.worker.peers import infer, spec

DTYPES = st.sampled_from(["bool", "int8", "float16", "float32", "float64", "bfloat16", "S3", "S24"])


@st.composite
def tensors(draw: st.DrawFn) -> TensorSpec:
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    return TensorSpec("x", draw(DTYPES), shape, rows_axis=draw(st.integers(1, len(shape))))


def drawn(tensor: TensorSpec, rows: int, seed: int) -> Any:
    """Return a client's tensor of random bytes, which are 0 and 1 for truth values."""
    dtype, shape = array_dtype(tensor.dtype), tensor.with_rows(rows)
    content = np.random.default_rng(seed).integers(0, 256, int(np.prod(shape)) * dtype.itemsize, np.uint8)
    if tensor.dtype == "bool":
        content &= 1
    return content.view(np.dtype((np.void, dtype.itemsize))).reshape(shape)


@given(tensors(), st.integers(1, 5), st.integers(0, 9))
def test_rows_come_in_front_and_go_back(tensor: TensorSpec, rows: int, seed: int) -> None:
    given_ = drawn(tensor, rows, seed)
    memory = np.zeros(rows * tensor.row_bytes, np.uint8)
    to_rows(memory, tensor, given_.tobytes())
    for row in range(rows):
        own = memory[row * tensor.row_bytes : (row + 1) * tensor.row_bytes]
        assert own.tobytes() == np.take(given_, row, axis=tensor.rows_axis).tobytes()
    assert from_rows(memory, tensor).tobytes() == given_.tobytes()


def test_one_row_is_the_same_in_both_layouts() -> None:
    tensor = TensorSpec("x", "float32", (3, 2), rows_axis=1)
    memory = np.zeros(tensor.row_bytes, np.uint8)
    assert from_rows(memory, tensor) is memory


@given(tensors(), tensors(), st.lists(st.integers(1, 3), min_size=1, max_size=4), st.integers(0, 9))
def test_requests_that_share_a_batch_keep_their_rows_apart(
    into: TensorSpec, out: TensorSpec, counts: list[int], seed: int
) -> None:
    model = msgspec.structs.replace(spec(), inputs=(into,), outputs=(msgspec.structs.replace(out, name="y"),))
    used, ids = sum(counts), tuple(range(len(counts)))
    batch_size = used + seed % 2
    layout = slot_layout(model, batch_size)
    memory = np.full(layout.size + 64, 255, np.uint8)
    inputs = Inputs(memory, 3, 1 << 20, 50)
    inputs.open(
        infer(1, ids, tuple(counts), batch_size=batch_size), model, Reservation(Slot(64, layout.size), layout)
    )
    asked = [drawn(into, count, seed + number) for number, count in enumerate(counts)]
    for number, tensor in enumerate(asked):
        assert inputs.place(1, number, HeldInput(b"g", [tensor.tobytes()], 0, tensor.nbytes)) == ""
    start = 64 + layout.inputs[0]
    in_front = [np.moveaxis(tensor, into.rows_axis, 0).tobytes() for tensor in asked]
    assert memory[start : start + used * into.row_bytes].tobytes() == b"".join(in_front)
    answers = [drawn(out, count, seed - number - 1 + 50) for number, count in enumerate(counts)]
    written = b"".join(np.moveaxis(each, out.rows_axis, 0).tobytes() for each in answers)
    start = 64 + layout.outputs[0]
    memory[start : start + len(written)] = np.frombuffer(written, np.uint8)
    found = {number: frame.tobytes() for number, _, (frame,) in inputs.outputs(1)}
    assert found == {number: each.tobytes() for number, each in enumerate(answers)}


def test_smaller_requests_are_padded_and_cut_where_rows_are_behind_time() -> None:
    time = OpenDim(0, (Term(0),))
    tensor = TensorSpec("x", "float32", (4, 2), (time,), rows_axis=1)
    model = msgspec.structs.replace(
        spec(),
        inputs=(tensor,),
        outputs=(msgspec.structs.replace(tensor, name="y"),),
        symbols=(Symbol("T", (4,)),),
        pad={"x": 7.0},
    )
    layout = slot_layout(model, 5, (3,))
    memory = np.zeros(layout.size, np.uint8)
    inputs = Inputs(memory, 3, 1 << 20, 50)
    action = msgspec.structs.replace(
        infer(1, (0, 1), (2, 3), batch_size=5), sizes=(3,), request_sizes=((2,), (3,))
    )
    inputs.open(action, model, Reservation(Slot(0, layout.size), layout))
    small, large = (
        np.random.default_rng(seed).random((length, rows, 2)).astype(np.float32)
        for seed, length, rows in ((1, 2, 2), (2, 3, 3))
    )
    for number, each in enumerate((small, large)):
        assert inputs.place(1, number, HeldInput(b"g", [each.tobytes()], 0, each.nbytes)) == ""
    batch = memory[: 5 * 3 * 2 * 4].view(np.float32).reshape(5, 3, 2)
    np.testing.assert_array_equal(batch[:2, :2], np.moveaxis(small, 1, 0))
    np.testing.assert_array_equal(batch[:2, 2], 7)
    np.testing.assert_array_equal(batch[2:], np.moveaxis(large, 1, 0))
    start = layout.outputs[0]
    memory[start : start + batch.nbytes] = memory[: batch.nbytes]
    found = {number: frame.tobytes() for number, _, (frame,) in inputs.outputs(1)}
    assert found == {0: small.tobytes(), 1: large.tobytes()}
