"""Small ONNX models, and stock sessions to compare with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from mainspring.compiler.artifact.arrays import aligned_array
from mainspring.compiler.artifact.executable import open_executable
from mainspring.compiler.artifact.manifest import Manifest
from mainspring.compiler.artifact.store import Store
from mainspring.messages.model import PAGE_BYTES

Array = Any
MakeModel = Callable[..., onnx.ModelProto]
RunStored = Callable[..., list[Array]]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def make_model() -> MakeModel:
    """Return a function that makes a model of nodes, inputs, outputs and arrays."""

    def make(
        nodes: Sequence[onnx.NodeProto],
        inputs: dict[str, Sequence[int | str]],
        outputs: dict[str, Sequence[int | str]],
        weights: dict[str, Array] | None = None,
        element: int = TensorProto.FLOAT,
        opset: int = 17,
    ) -> onnx.ModelProto:
        graph = helper.make_graph(
            list(nodes),
            "graph",
            [helper.make_tensor_value_info(name, element, shape) for name, shape in inputs.items()],
            [helper.make_tensor_value_info(name, element, shape) for name, shape in outputs.items()],
            [numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)

    return make


@pytest.fixture
def make_mlp(make_model: MakeModel) -> MakeModel:
    """Return a function that makes a two-layer network of seeded weights and any names."""

    def make(seed: int = 0, prefix: str = "", batch: int | str = "batch", units: int = 8) -> onnx.ModelProto:
        random = np.random.default_rng(seed)
        names = {name: prefix + name for name in ("x", "y", "a", "b", "c", "h", "r")}
        nodes = [
            helper.make_node(
                "Gemm", [names["x"], names["a"], names["b"]], [names["h"]], name=prefix + "first"
            ),
            helper.make_node("Relu", [names["h"]], [names["r"]], name=prefix + "second"),
            helper.make_node("MatMul", [names["r"], names["c"]], [names["y"]], name=prefix + "third"),
        ]
        weights = {
            names["a"]: random.standard_normal((4, units), np.float32),
            names["b"]: random.standard_normal(units, np.float32),
            names["c"]: random.standard_normal((units, 3), np.float32),
        }
        return make_model(nodes, {names["x"]: [batch, 4]}, {names["y"]: [batch, 3]}, weights)

    return make


@pytest.fixture
def run_stock() -> Callable[[onnx.ModelProto, Sequence[Array]], list[Array]]:
    """Return a function that runs a model in an ordinary ONNX Runtime session."""

    def run(model: onnx.ModelProto, arrays: Sequence[Array]) -> list[Array]:
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        names = [value.name for value in session.get_inputs()]
        return list(session.run(None, dict(zip(names, arrays, strict=True))))

    return run


@pytest.fixture
def run_stored() -> RunStored:
    """Return a function that runs a stored model as a worker does, its pages scattered over an arena."""

    def run(
        store: Store, manifest: Manifest, arrays: Sequence[Array], sizes: tuple[int, ...] = ()
    ) -> list[Array]:
        content = store.weights_path(manifest).read_bytes()
        arena = aligned_array(((manifest.pages * 2 + 1) * PAGE_BYTES,), np.dtype(np.uint8))
        pages: list[int] = []
        end = manifest.pages * 2 + 1
        for extent in manifest.extents:
            pages.extend(range(end - extent, end))
            end -= extent + 1
        for index, page in enumerate(pages):
            part = np.frombuffer(content[index * PAGE_BYTES : (index + 1) * PAGE_BYTES], np.uint8)
            arena[page * PAGE_BYTES : page * PAGE_BYTES + len(part)] = part

        def address_of(offset: int) -> int:
            return int(arena.ctypes.data) + pages[offset // PAGE_BYTES] * PAGE_BYTES + offset % PAGE_BYTES

        bound = open_executable(store, manifest).bind(manifest.tensors, address_of)
        return list(bound.run_arrays(len(arrays[0]), arrays, sizes))

    return run
