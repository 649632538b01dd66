"""Random inputs: right shape and dtype, made once, shared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mainspring.messages.model import array_dtype
from mainspring.traces import inputs as inputs_module
from mainspring.traces.inputs import Inputs, InputsError, random_tensor


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "int64", "int32", "uint8", "int8", "bool", "S8", "bfloat16"]
)
def test_a_random_tensor_has_its_dtype_shape_and_is_not_constant(dtype: str) -> None:
    tensor = random_tensor(dtype, (3, 50), rng())
    assert (tensor.dtype, tensor.shape) == (array_dtype(dtype), (3, 50))
    assert len(np.unique(tensor)) > 1
    assert np.isfinite(tensor.astype("float64")).all()
    if tensor.dtype.kind in "iu":
        assert 0 <= tensor.min() <= tensor.max() < 100


def test_a_dtype_that_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(InputsError, match="complex64"):
        random_tensor("complex64", (1,), rng())


def test_models_of_one_signature_share_their_inputs(make_spec: Any) -> None:
    inputs = Inputs([make_spec("a", (8, 8)), make_spec("b", (8, 8)), make_spec("c", (8,), "int64")], rng())
    headers, frames = inputs.get("a", 2)
    assert (headers[0].name, headers[0].shape) == ("x", (2, 8, 8))
    assert len(frames[0].buffer) == 2 * 64 * 4
    assert inputs.get("b", 2)[1][0] is frames[0]
    assert inputs.get("a", 2)[1] is frames
    assert inputs.get("a", 1)[1][0] is not frames[0]
    assert inputs.get("c", 1)[0][0].dtype == "int64"


def test_inputs_beyond_the_bound_are_refused(make_spec: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs_module, "MAX_BYTES", 1000)
    inputs = Inputs([make_spec("a", (100,))], rng())
    inputs.get("a", 1)
    with pytest.raises(InputsError, match="fewer models"):
        inputs.get("a", 2)
