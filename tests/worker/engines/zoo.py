"""Inputs for a model of the zoo, and whether outputs are those of stock ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from mainspring.compiler.choosing.tolerances import RELATIVE_TOLERANCE, SCALE_TOLERANCE
from mainspring.messages.model import ModelSpec
from mainspring.traces.inputs import random_tensor

Arrays = dict[str, npt.NDArray[Any]]


def random_inputs(spec: ModelSpec, rows: int, rng: np.random.Generator) -> Arrays:
    """Return a request's inputs by name."""
    inputs = {tensor.name: random_tensor(tensor.dtype, (rows, *tensor.shape), rng) for tensor in spec.inputs}
    for name, value in inputs.items():
        if "mask" in name:
            # Any other number would be multiplied to scores in which float32 loses what it compares.
            inputs[name] = np.mod(value, 2)
    return inputs


def check_outputs(stock: onnxruntime.InferenceSession, inputs: Arrays, found: Arrays) -> None:
    """Fail if outputs are not what stock ONNX Runtime computes of these inputs."""
    for name, right in zip(found, stock.run(list(found), inputs), strict=True):
        scale = SCALE_TOLERANCE * float(np.abs(right).max())
        np.testing.assert_allclose(found[name], right, rtol=RELATIVE_TOLERANCE, atol=scale, err_msg=name)


def check_that_inputs_matter(one: Arrays, other: Arrays) -> None:
    """Fail if two outputs are equal: those that ignore the inputs would be equal to anything's."""
    assert any(not np.array_equal(one[name], other[name]) for name in one)
