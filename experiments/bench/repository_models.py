"""Repositories of many small models for benchmarks and tests: a few architectures, each with many weights.

A model of architecture ``a`` multiplies its input ``x``, of `COLUMNS` numbers, by its own factor, through
``a + 1`` elementwise steps, so that its answer tells which content it was compiled from.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

COLUMNS = 64
_OPSET, _IR = 17, 8


def net(factor: float, architecture: int = 0) -> onnx.ModelProto:
    """Return a model whose output ``y`` is its input ``x`` times a factor; its weights are a matrix."""
    last = f"h{architecture}"
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h0"])]
    nodes += [helper.make_node("Relu", [f"h{step}"], [f"h{step + 1}"]) for step in range(architecture)]
    nodes.append(helper.make_node("Add", [last, "b"], ["y"]))
    shape: list[str | int | None] = ["batch", COLUMNS]
    graph = helper.make_graph(
        nodes,
        f"architecture{architecture}",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [
            numpy_helper.from_array(np.eye(COLUMNS, dtype=np.float32) * np.float32(factor), "w"),
            numpy_helper.from_array(np.zeros(COLUMNS, np.float32), "b"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)


def name_of(number: int) -> str:
    """Return the name of a model."""
    return f"net{number:05d}"


def put(repository: Path, model: str, content: onnx.ModelProto, version: int = 1) -> None:
    """Put a version into a repository, aside first and then in one step."""
    folder = repository / model / str(version)
    folder.mkdir(parents=True, exist_ok=True)
    aside = repository / f".{model}-{version}"
    aside.write_bytes(content.SerializeToString())
    aside.rename(folder / "model.onnx")


def fill(repository: Path, models: int, architectures: int) -> None:
    """Put so many models into a repository, each with a factor of its own: its number and one."""
    for number in range(models):
        put(repository, name_of(number), net(number + 1.0, number % architectures))
