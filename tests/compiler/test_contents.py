"""Models that are too large for one message: written with their weights beside them, and compiled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from mainspring.compiler import contents
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.contents import MODEL, WEIGHTS, Stored, read_back, serialise
from mainspring.compiler.pipeline import compile_file

MakeModel = Callable[..., onnx.ModelProto]
Run = Callable[..., list[Any]]


@pytest.fixture(autouse=True)
def little_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "LARGE_BYTES", 10_000)


def large_model(make_model: MakeModel) -> onnx.ModelProto:
    random = np.random.default_rng(1)
    weights = {"w": random.standard_normal((64, 64), np.float32), "b": random.standard_normal(64, np.float32)}
    return make_model(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"])], {"x": ["n", 64]}, {"y": ["n", 64]}, weights
    )


def test_weights_lie_beside_a_large_model(make_model: MakeModel) -> None:
    model = large_model(make_model)
    before = model.SerializeToString()
    content = serialise(model)
    assert isinstance(content, Stored)
    assert content.path.name == MODEL
    assert content.path.stat().st_size < 2_000
    assert content.path.with_name(WEIGHTS).stat().st_size == 64 * 64 * 4, "small ones stay in the model"
    assert model.SerializeToString() == before
    onnx.checker.check_model(str(content.path), full_check=True)
    found = read_back(content)
    assert [tensor.raw_data for tensor in found.graph.initializer] == [
        tensor.raw_data for tensor in model.graph.initializer
    ]


def test_its_folder_is_removed_with_it(make_model: MakeModel) -> None:
    content = serialise(large_model(make_model))
    assert isinstance(content, Stored)
    path = content.path
    del content
    assert not path.parent.exists()


def test_numbers_in_fields_of_their_type_are_written_as_bytes() -> None:
    tensor = helper.make_tensor("w", TensorProto.FLOAT, [2048], np.arange(2048.0).tolist())
    other = helper.make_tensor("v", TensorProto.FLOAT, [4096], np.ones(4096, np.float32).tobytes(), raw=True)
    graph = helper.make_graph([helper.make_node("Add", ["w", "w"], ["y"])], "g", [], [], [tensor, other])
    content = serialise(helper.make_model(graph))
    assert isinstance(content, Stored)
    np.testing.assert_array_equal(
        onnx.numpy_helper.to_array(read_back(content).graph.initializer[0]), np.arange(2048, dtype=np.float32)
    )


def test_a_large_model_compiles_as_a_small_one(
    store: Store, make_model: MakeModel, run_stored: Run, tmp_path: Path
) -> None:
    model = large_model(make_model)
    onnx.save_model(model, tmp_path / "m.onnx")
    manifest = compile_file(tmp_path / "m.onnx", "m", store, (1, 2)).manifest
    assert not manifest.unshared
    x = np.random.default_rng(2).standard_normal((2, 64), np.float32)
    w, b = (onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer)
    np.testing.assert_allclose(run_stored(store, manifest, [x])[0], x @ w + b, rtol=1e-4, atol=1e-4)
