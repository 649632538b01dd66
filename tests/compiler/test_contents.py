"""Models that are too large for one message: written with their weights beside them, and compiled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.compiler.reading import contents, model_file
from mainspring.compiler.reading.contents import (
    WEIGHTS,
    Stored,
    array_of,
    beside,
    forget,
    read_back,
    serialise,
    whole,
)
from mainspring.compiler.reading.model_file import read_model

MakeModel = Callable[..., onnx.ModelProto]
Run = Callable[..., list[Any]]


@pytest.fixture(autouse=True)
def little_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "LARGE_BYTES", 10_000)


def large_model(make_model: MakeModel) -> onnx.ModelProto:
    random = np.random.default_rng(1)
    weights = {
        "w": random.standard_normal((160, 160), np.float32),
        "b": random.standard_normal(160, np.float32),
    }
    return make_model(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"])], {"x": ["n", 160]}, {"y": ["n", 160]}, weights
    )


def test_weights_lie_beside_a_large_model(make_model: MakeModel) -> None:
    model = large_model(make_model)
    before = model.SerializeToString()
    content = serialise(model)
    assert isinstance(content, Stored)
    assert content.path.stat().st_size < 2_000
    assert content.path.with_name(WEIGHTS).stat().st_size == 160 * 160 * 4, "small ones stay in the model"
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
    tensor = helper.make_tensor("w", TensorProto.FLOAT, [32768], np.arange(32768.0).tolist())
    other = helper.make_tensor(
        "v", TensorProto.FLOAT, [32768], np.ones(32768, np.float32).tobytes(), raw=True
    )
    graph = helper.make_graph([helper.make_node("Add", ["w", "w"], ["y"])], "g", [], [], [tensor, other])
    content = serialise(helper.make_model(graph))
    assert isinstance(content, Stored)
    np.testing.assert_array_equal(
        onnx.numpy_helper.to_array(read_back(content).graph.initializer[0]),
        np.arange(32768, dtype=np.float32),
    )


def test_a_large_model_compiles_as_a_small_one(
    store: Store, make_model: MakeModel, run_stored: Run, tmp_path: Path
) -> None:
    model = large_model(make_model)
    onnx.save_model(model, tmp_path / "m.onnx")
    manifest = compile_file(tmp_path / "m.onnx", "m", store, (1, 2)).manifest
    assert not manifest.unshared
    assert not list(store.root.glob(".writing-*")), "the folder of its tensors is removed"
    x = np.random.default_rng(2).standard_normal((2, 160), np.float32)
    w, b = (onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer)
    np.testing.assert_allclose(run_stored(store, manifest, [x])[0], x @ w + b, rtol=1e-4, atol=1e-4)


def test_a_large_model_is_the_same_artifact_as_read_into_memory(
    store: Store, make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = large_model(make_model)
    onnx.save_model(model, tmp_path / "within.onnx")
    far = tmp_path / "far" / "m.onnx"
    far.parent.mkdir()
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    onnx.save_model(copy, far, save_as_external_data=True, location="data", size_threshold=0)
    constant = onnx.ModelProto.FromString(model.SerializeToString())
    value = constant.graph.initializer.pop(0)
    constant.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=value))
    onnx.save_model(constant, tmp_path / "constant.onnx")
    paths = (tmp_path / "within.onnx", far, tmp_path / "constant.onnx")
    large = [compile_file(path, f"m{index}", store, (1, 2)).manifest for index, path in enumerate(paths)]
    monkeypatch.setattr(contents, "LARGE_BYTES", 1 << 30)
    small = compile_file(tmp_path / "within.onnx", "small", store, (1, 2)).manifest
    hashes = (small.executable, small.weights_hash)
    assert [(each.executable, each.weights_hash) for each in large] == [hashes] * 3
    assert large[0].source.sha256 == small.source.sha256


def test_a_large_file_is_read_once(
    store: Store, make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save_model(
        large_model(make_model), path, save_as_external_data=True, location="data", size_threshold=0
    )
    read: list[Path] = []
    content_of = model_file._content_of

    def counted(path: Path) -> bytes:
        read.append(path)
        return content_of(path)

    monkeypatch.setattr(model_file, "_content_of", counted)
    with beside(store.temporary):
        first, digest = read_model(path)
        first.graph.node[0].name = "changed"
        again, same = read_model(path)
    assert (digest, len(read)) == (same, 1)
    assert again.graph.node[0].name != "changed"


def test_tensors_beside_a_model_are_mapped_and_can_be_forgotten(
    store: Store, make_model: MakeModel, tmp_path: Path
) -> None:
    model = large_model(make_model)
    onnx.save_model(model, tmp_path / "m.onnx")
    w = onnx.numpy_helper.to_array(model.graph.initializer[0])
    with beside(store.temporary):
        read, _ = read_model(tmp_path / "m.onnx")
        assert read.ByteSize() < 2_000
        array = array_of(read.graph.initializer[0])
        forget(array)
        np.testing.assert_array_equal(array, w)
        assert not array.flags.writeable
        assert whole(read).graph.initializer[0].raw_data == w.tobytes()
        with beside(store.temporary):
            np.testing.assert_array_equal(array_of(read.graph.initializer[0]), w, "the outer block's folder")
