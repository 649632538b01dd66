"""A body that is the model's one input, without JSON."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from mainspring.gateway.core.validation import Signature, check_request
from mainspring.gateway.oip import request
from mainspring.gateway.oip.datatypes import Unfit
from mainspring.messages.clients import InferRequest
from mainspring.messages.model import ModelSpec, OpenDim, Symbol, TensorSpec, Term
from tests.gateway.fakes import make_spec

HEIGHT, WIDTH = OpenDim(0, (Term(0),)), OpenDim(1, (Term(1),))
SYMBOLS = (Symbol("height", (64,)), Symbol("width", (64,)))


def model(
    shape: tuple[int, ...], *opened: OpenDim, dtype: str = "float32", whole: bool = False, rows_axis: int = 0
) -> ModelSpec:
    tensor = TensorSpec("x", dtype, shape, open=opened, rows_axis=rows_axis)
    symbols = SYMBOLS[: len(opened)]
    return msgspec.structs.replace(make_spec("m"), inputs=(tensor,), symbols=symbols, whole=whole)


def taken(spec: ModelSpec, body: bytes) -> tuple[int, ...]:
    """Return the shape that a body is taken for, which passes the checks of every request."""
    signature = Signature(spec)
    parsed = request.parse(signature, memoryview(body), 0, 1 << 20)
    asked = InferRequest(1, "m", parsed.inputs, None)
    check_request(asked, [len(parsed.frames[0])], lambda *_: signature, 1 << 60)
    return parsed.inputs[0].shape


@pytest.mark.parametrize(
    ("spec", "count", "shape"),
    [
        (model((4,)), 12, (3, 4)),
        (model((64,), HEIGHT), 7, (1, 7)),
        (model((64, 8, 3), HEIGHT), 5 * 24, (1, 5, 8, 3)),
        (model((64, 3), HEIGHT, rows_axis=1), 5 * 3, (5, 1, 3)),
    ],
)
def test_the_size_says_the_rows_or_the_dimension_that_is_open(
    spec: ModelSpec, count: int, shape: tuple[int, ...]
) -> None:
    assert taken(spec, np.zeros(count, np.float32).tobytes()) == shape


def test_a_model_without_rows() -> None:
    whole = msgspec.structs.replace(model((1, 64), OpenDim(1, (Term(0),)), whole=True), batch_sizes=(1,))
    assert taken(whole, bytes(4 * 9)) == (1, 9)


def test_two_open_dimensions_are_said() -> None:
    with pytest.raises(Unfit, match="2 dimensions of a row of input 'x' are open"):
        taken(model((64, 64), HEIGHT, WIDTH), bytes(64))


@pytest.mark.parametrize("count", [0, 25, 95])
def test_a_size_that_makes_no_row_is_said_with_what_would(count: int) -> None:
    with pytest.raises(Unfit, match=r"not one row of input 'x', of .*<=64, 8, 3.*multiple of 96 bytes"):
        taken(model((64, 8, 3), HEIGHT), bytes(count))


def test_a_dimension_beyond_its_limit_is_refused_as_in_any_request() -> None:
    with pytest.raises(Exception, match="height"):
        taken(model((64,), HEIGHT), bytes(4 * 65))


def test_a_text_where_there_may_be_several() -> None:
    assert taken(model((64,), HEIGHT, dtype="S8"), b"abc") == (1, 1)
