"""A recurrent net with its state among inputs and outputs, and what it makes of a stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

INPUTS, HIDDEN, OUTPUTS = 6, 5, 2


def recurrent(*, layers_first: bool = False) -> onnx.ModelProto:
    """Return a GRU of one step: ``x`` and ``h`` to ``y`` and ``h_out``, with an open batch first.

    With ``layers_first`` it is behind the number of layers in ``h`` and ``h_out``.
    """
    drawn = np.random.default_rng(20201104)
    shapes = {"w": (1, 3 * HIDDEN, INPUTS), "r": (1, 3 * HIDDEN, HIDDEN), "b": (1, 6 * HIDDEN)}
    shapes["v"] = (HIDDEN, OUTPUTS)
    weights = [
        numpy_helper.from_array((drawn.standard_normal(shape) * 0.4).astype(np.float32), name)
        for name, shape in shapes.items()
    ]

    def rows(name: str, columns: int) -> onnx.ValueInfoProto:
        layers = [1] if layers_first and name.startswith("h") else []
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [*layers, "N", columns])

    nodes = [
        helper.make_node("Unsqueeze", ["x", "zero"], ["x1"]),
        helper.make_node(
            "Identity" if layers_first else "Unsqueeze", ["h", "zero"][: 2 - layers_first], ["h1"]
        ),
        helper.make_node("GRU", ["x1", "w", "r", "b", "", "h1"], ["y1", "h2"], hidden_size=HIDDEN),
        helper.make_node("Squeeze", ["h2", "zero"], ["h3"]),
        helper.make_node("Identity", ["h2" if layers_first else "h3"], ["h_out"]),
        helper.make_node("MatMul", ["h3", "v"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "recurrent",
        [rows("x", INPUTS), rows("h", HIDDEN)],
        [rows("y", OUTPUTS), rows("h_out", HIDDEN)],
        [*weights, numpy_helper.from_array(np.array([0], np.int64), "zero")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def stream(seed: int, steps: int, rows: int = 1) -> list[NDArray[np.float32]]:
    """Return the inputs of a stream."""
    drawn = np.random.default_rng(seed)
    return [drawn.standard_normal((rows, INPUTS)).astype(np.float32) for _ in range(steps)]


class Reference:
    """ONNX Runtime on the file, in a loop that carries the state."""

    def __init__(self, path: Path) -> None:
        self._session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def of(
        self, inputs: list[NDArray[np.float32]], first: NDArray[np.float32] | None = None
    ) -> list[NDArray[Any]]:
        """Return the answer to each input of a stream; its ``first`` state is zeros unless it is given."""
        state = np.zeros((len(inputs[0]), HIDDEN), np.float32) if first is None else first
        found = []
        for x in inputs:
            y, state = self._session.run(["y", "h_out"], {"x": x, "h": state})
            found.append(y)
        return found


def check(found: list[NDArray[Any]], wanted: list[NDArray[Any]]) -> None:
    """Compare answers, of which none may be that of another state."""
    assert len(found) == len(wanted)
    for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
        np.testing.assert_allclose(one, other, 1e-3, 1e-5, err_msg=f"answer {place}")
