"""Signatures of models, arrays for them and answers of theirs, for the tests of the protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from mainspring.gateway.core.effects import Answer, Connection
from mainspring.gateway.core.validation import Signature
from mainspring.gateway.oip.request import Wanted
from mainspring.gateway.oip.response import Body, render, render_small
from mainspring.gateway.oip.steps import whole
from mainspring.messages.clients import Timing
from mainspring.messages.model import TensorSpec
from mainspring.messages.peers import TensorHeader
from tests.gateway.fakes import make_spec

TIMING = Timing(
    total_ns=9, queue_ns=2, execute_ns=3, left_ns=4, batch_size=8, cold_start=True, worker="worker-0"
)
NUMBERS = (
    *("bool", "float16", "float32", "float64", "bfloat16"),
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, max_side=4)


def signature(*inputs: TensorSpec, outputs: Sequence[TensorSpec] = ()) -> Signature:
    """Return the signature of a model ``m`` with these tensors, of up to eight rows."""
    return Signature(msgspec.structs.replace(make_spec("m"), inputs=inputs, outputs=tuple(outputs)))


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)


@st.composite
def arrays(draw: st.DrawFn, *, finite: bool = False) -> tuple[str, NDArray[Any]]:
    """Draw one of our dtypes and an array of rows of it."""
    dtype = draw(st.sampled_from(NUMBERS))
    shape = (draw(st.integers(1, 8)), *draw(SHAPES))
    if dtype == "bfloat16":
        floats = draw(hnp.arrays(np.float32, shape, elements=st.floats(-(2**120), 2**120, width=32)))
        return dtype, floats.astype(ml_dtypes.bfloat16)
    kind = numpy_dtype(dtype)
    numbers = (
        hnp.from_dtype(kind, allow_nan=not finite, allow_infinity=not finite) if kind.kind == "f" else None
    )
    return dtype, draw(hnp.arrays(kind, shape, elements=numbers))


def equal(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether the arrays are equal, NaN being equal to NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype.kind in "fV":
        return bool(((one == other) | (np.isnan(one) & np.isnan(other))).all())
    return bool((one == other).all())


def answer_of(header: TensorHeader, frame: Any) -> Answer:
    return Answer(Connection("test", b"1"), 1, (header,), (frame,), TIMING)


def rendered(header: TensorHeader, frame: Any, wanted: Wanted) -> Body:
    """Return the body of an answer with one output."""
    answer = answer_of(header, frame)
    body = whole(render("m", "3", wanted, answer))
    small = render_small("m", "3", wanted, answer)
    assert small in (None, body)
    return body
