"""Tiny models whose answers tell which version gave them, and repositories of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

COLUMNS = 4


def scaling(factor: float, columns: int | str = COLUMNS, batch: int | str = "batch") -> onnx.ModelProto:
    """Return a model whose output ``y`` is its input ``x`` times a factor, which is a weight."""
    size = columns if isinstance(columns, int) else 1
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["y"])],
        "scaling",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, columns])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, columns])],
        [numpy_helper.from_array(np.full(size, factor, np.float32), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def put(repository: Path, model: str, version: int, content: onnx.ModelProto | bytes | float) -> Path:
    """Put a version into a repository as a careful person does, in one step; return its file."""
    if isinstance(content, float):
        content = scaling(content)
    folder = repository / model / str(version)
    folder.mkdir(parents=True, exist_ok=True)
    data = content if isinstance(content, bytes) else content.SerializeToString()
    aside = repository / f".{model}-{version}"
    aside.write_bytes(data)
    aside.rename(folder / "model.onnx")
    return folder / "model.onnx"


def configure(repository: Path, model: str, text: str) -> None:
    """Write a model's configuration."""
    folder = repository / model
    folder.mkdir(parents=True, exist_ok=True)
    aside = repository / f".{model}-config"
    aside.write_text(text)
    aside.rename(folder / "config.pbtxt")
