"""Requests for models whose rows are not in front: read along each tensor's own axis, answered alike."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from mainspring.gateway.core.effects import Accepted
from mainspring.gateway.core.validation import BadRequest, Signature, check_request, header_rows, rows_of
from mainspring.gateway.memory import answer_bytes
from mainspring.gateway.oip.classification import rows_of as rows_in_front
from mainspring.gateway.oip.metadata import model_metadata
from mainspring.gateway.oip.model_config import ROWS, model_config
from mainspring.messages.clients import InferRequest
from mainspring.messages.model import (
    ModelSpec,
    OpenDim,
    Symbol,
    TensorSpec,
    Term,
)
from mainspring.messages.peers import TensorHeader
from mainspring.messages.sequences import check_sequencing, first_rows
from mainspring.messages.sequencing import Sequencing, State

TIME = OpenDim(0, (Term(0),))


def recurrent() -> ModelSpec:
    return ModelSpec(
        name="m",
        weights_hash="w",
        executable="e",
        batch_sizes=(1, 4),
        weights_bytes=0,
        extents=(),
        inputs=(
            TensorSpec("x", "float32", (64, 3), (TIME,), rows_axis=1),
            TensorSpec("h", "float32", (2, 5), rows_axis=1),
            TensorSpec("bias", "float32", (5,)),
        ),
        outputs=(
            TensorSpec("y", "float32", (64, 2, 5), (TIME,), rows_axis=2),
            TensorSpec("last", "float32", (5,)),
        ),
        profiles={},
        symbols=(Symbol("T", (16, 64), 2),),
    )


def headers(*shapes: tuple[int, ...]) -> tuple[TensorHeader, ...]:
    return tuple(
        TensorHeader(name, "float32", shape) for name, shape in zip(("x", "h", "bias"), shapes, strict=True)
    )


def check(*shapes: tuple[int, ...]) -> Accepted:
    signature = Signature(recurrent())
    sizes = [4 * int(np.prod(shape)) for shape in shapes]
    request = InferRequest(1, "m", headers(*shapes), None, None)
    return check_request(request, sizes, lambda *_: signature, 10**9)


def test_rows_and_sizes_are_read_along_each_tensors_own_axis() -> None:
    accepted = check((7, 3, 3), (2, 3, 5), (3, 5))
    assert (accepted.rows, accepted.sizes) == (3, (7,))


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        (((7, 3, 3), (2, 2, 5), (3, 5)), "'h' has 2 rows and input 'x' has 3"),
        (((7, 3, 3), (2, 2, 5), (3, 5)), "axis 1 of 'h' and axis 1 of 'x'"),
        (((7, 3, 3), (2, 3, 5), (2, 5)), "axis 0 of 'bias' and axis 1 of 'x'"),
        (((7, 3, 3), (3, 2, 5), (3, 5)), "'h' has shape [3, 2, 5]; model 'm' takes [2, rows, 5]"),
        (((7, 0, 3), (2, 0, 5), (0, 5)), "at least one row"),
        (((1, 3, 3), (2, 3, 5), (3, 5)), "T is 1; the model takes T from 2 to 64"),
        (((7, 5, 3), (2, 5, 5), (5, 5)), "5 rows are more than model 'm' takes at once (4)"),
        (((7, 3, 4), (2, 3, 5), (3, 5)), "takes [7, rows, 3]"),
        (((7, 1, 3), (2, 5), (1, 5)), "put the rows' axis as axis 1, for one row [2, 1, 5]"),
        (((7,), (2, 1, 5), (1, 5)), "takes ["),
    ],
)
def test_other_shapes_are_refused_with_what_is_right(shapes: tuple[tuple[int, ...], ...], said: str) -> None:
    with pytest.raises(BadRequest) as caught:
        check(*shapes)
    assert said in caught.value.detail


def test_rows_that_nothing_has_checked_yet() -> None:
    signature = Signature(recurrent())
    x = recurrent().inputs[0]
    assert [rows_of(signature, x, shape) for shape in ((7, 3, 3), (7, 5, 3), (7, -3, 3), (3,), ())] == [
        *(3, 0, 0, 0, 0)
    ]
    assert header_rows(signature, headers((7, 3, 3), (2, 3, 5), (3, 5))) == 3
    assert header_rows(signature, headers((7,), (), ())) == 1
    # Three rows of y of length 7, and of last.
    assert answer_bytes(signature, headers((7, 3, 3), (2, 3, 5), (3, 5)), text=False) == 3 * 4 * (70 + 5)


def test_metadata_and_configuration_say_where_the_rows_are() -> None:
    metadata = model_metadata("m", recurrent(), (1,))
    assert [each.shape for each in (*metadata.inputs, *metadata.outputs)] == [
        *((-1, -1, 3), (2, -1, 5), (-1, 5), (-1, 2, -1, 5), (-1, 5))
    ]
    config = model_config("m", recurrent())
    # Triton's batch sizes stand for a first axis.
    assert (config["max_batch_size"], "dynamic_batching" in config) == (0, False)
    assert [each["dims"] for each in config["input"]] == [[-1, -1, 3], [2, -1, 5], [-1, 5]]
    assert json.loads(config["parameters"][ROWS]["string_value"]) == {
        "most": 4,
        "axes": {"x": 1, "h": 1, "bias": 0, "y": 2, "last": 0},
    }


def test_a_model_with_rows_in_front_is_described_as_ever() -> None:
    plain = msgspec.structs.replace(recurrent(), inputs=(TensorSpec("x", "float32", (3,)),), symbols=())
    plain = msgspec.structs.replace(plain, outputs=(TensorSpec("y", "float32", (3,)),))
    config = model_config("m", plain)
    assert (config["max_batch_size"], config["input"][0]["dims"]) == (4, [3])
    assert ROWS not in config["parameters"]
    assert (plain.rows_in_front, plain.artifact.rows_axes) == (True, ())


def test_a_model_with_another_layout_is_another_to_its_workers() -> None:
    other = msgspec.structs.replace(
        recurrent(), inputs=tuple(msgspec.structs.replace(each, rows_axis=0) for each in recurrent().inputs)
    )
    assert other.artifact != recurrent().artifact


def test_a_state_begins_in_the_layout_that_clients_have() -> None:
    fed = TensorSpec("h", "float32", (2, 3), rows_axis=1)
    one = np.arange(6, dtype=np.float32).reshape(2, 3)
    first = np.frombuffer(first_rows(State("h", "h_out", initial=one.tobytes()), fed, 4), np.float32)
    np.testing.assert_array_equal(first.reshape(2, 4, 3), np.repeat(one[:, None], 4, axis=1))
    assert first_rows(State("h", "h_out"), fed, 4) == bytes(4 * 24)


def test_a_state_has_one_layout_where_it_is_taken_and_fed() -> None:
    fed, taken = TensorSpec("h", "float32", (2, 3), rows_axis=1), TensorSpec("o", "float32", (2, 3))
    spec = msgspec.structs.replace(
        recurrent(), inputs=(fed,), outputs=(taken,), sequencing=Sequencing((State("h", "o"),)), symbols=()
    )
    with pytest.raises(ValueError, match="where it is fed"):
        check_sequencing(spec)


def test_classes_are_those_of_rows() -> None:
    values: Any = np.arange(24).reshape(2, 3, 4)
    assert rows_in_front(values, 1, whole=False).shape == (3, 2, 4)
    np.testing.assert_array_equal(rows_in_front(values, 1, whole=False)[2], values[:, 2])
    assert rows_in_front(values, 0, whole=False) is values
    assert rows_in_front(values, 1, whole=True).shape == (1, 24)
