from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest

from mainspring.compiler.artifact.arrays import aligned_array
from mainspring.compiler.artifact.errors import ExecutableError
from mainspring.compiler.artifact.executable import (
    BoundModel,
    Executable,
    _may_take_any_time,
    open_executable,
)
from mainspring.compiler.artifact.manifest import Manifest, Source
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_model
from mainspring.compiler.zoo.catalogue import compile_zoo

MakeModel = Callable[..., onnx.ModelProto]
FLOAT = np.dtype(np.float32)


def weights_of(store: Store, manifest: Manifest) -> Any:
    content = np.frombuffer(store.weights_path(manifest).read_bytes(), np.uint8)
    memory = aligned_array((len(content),), np.dtype(np.uint8))
    memory[:] = content
    return memory


def bind(store: Store, manifest: Manifest, executable: Executable | None = None) -> tuple[BoundModel, Any]:
    memory = weights_of(store, manifest)
    executable = executable or open_executable(store, manifest)
    return executable.bind(manifest.tensors, lambda offset: memory.ctypes.data + offset), memory


def run(bound: BoundModel, x: Any) -> Any:
    x_memory, y_memory = aligned_array(x.shape, FLOAT), aligned_array((len(x), 3), FLOAT)
    x_memory[...] = x
    bound.run(len(x), [x_memory.ctypes.data], [y_memory.ctypes.data])
    return y_memory


@pytest.fixture
def manifests(store: Store, make_mlp: MakeModel) -> list[Manifest]:
    source = Source("onnx", "m.onnx")
    return [compile_model(make_mlp(seed), f"m{seed}", store, (1, 2), source).manifest for seed in (1, 2)]


def test_copies_share_an_open_executable(
    store: Store, manifests: list[Manifest], make_mlp: MakeModel, run_stock: Callable[..., Any]
) -> None:
    executable = open_executable(store, manifests[0])
    pairs = [bind(store, manifest, executable) for manifest in manifests]
    x = np.random.default_rng(0).standard_normal((2, 4), np.float32)
    for _ in range(2):
        for seed in (1, 2):
            expected = run_stock(make_mlp(seed), [x])[0]
            np.testing.assert_allclose(run(pairs[seed - 1][0], x), expected, rtol=1e-5)


def test_weights_are_read_where_they_are_and_not_copied(store: Store, manifests: list[Manifest]) -> None:
    memory = weights_of(store, manifests[0])
    bound = open_executable(store, manifests[0]).bind(
        manifests[0].tensors, lambda offset: memory.ctypes.data + offset
    )
    bound.warm((1, 2))
    x = np.ones((1, 4), np.float32)
    before = run(bound, x).copy()
    memory[:] = 0
    assert before.any()
    assert not run(bound, x).any()


def test_rows_beyond_the_request_do_not_change_it(store: Store, manifests: list[Manifest]) -> None:
    memory = weights_of(store, manifests[0])
    bound = open_executable(store, manifests[0]).bind(
        manifests[0].tensors, lambda offset: memory.ctypes.data + offset
    )
    x = np.random.default_rng(0).standard_normal((2, 4), np.float32)
    both = run(bound, x).copy()
    x[1] = np.nan
    np.testing.assert_array_equal(run(bound, x)[0], both[0])


def test_weights_of_another_executable_are_refused(store: Store, manifests: list[Manifest]) -> None:
    other = msgspec.structs.replace(manifests[0].tensors[0], shape=(1, 1))
    with pytest.raises(ExecutableError, match="has other weights than were bound"):
        open_executable(store, manifests[0]).bind((other, *manifests[0].tensors[1:]), lambda offset: 0)


def test_a_file_that_is_no_graph_does_not_open(
    store: Store, manifests: list[Manifest], tmp_path: Path
) -> None:
    path = tmp_path / "graph.onnx"
    path.write_bytes(b"nothing")
    with pytest.raises(ExecutableError, match="does not open"):
        Executable(path, store.executable_info(manifests[0]))


def test_a_failing_run_is_an_error_and_the_next_one_works(store: Store, manifests: list[Manifest]) -> None:
    memory = weights_of(store, manifests[0])
    bound = open_executable(store, manifests[0]).bind(
        manifests[0].tensors, lambda offset: memory.ctypes.data + offset
    )
    x = np.ones((1, 4), np.float32)
    with pytest.raises(ExecutableError, match="failed at batch size 1"):
        bound.run(1, [x.ctypes.data], [])
    assert run(bound, x).any()


@pytest.mark.parametrize("native", [True, False])
def test_a_bound_model_computes_the_same_either_way(
    tmp_path: Path, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    manifest = next(compile_zoo(["digits"], store, batch_sizes=(1, 2))).manifest
    weights = np.fromfile(store.weights_path(manifest), np.uint8)
    executable = open_executable(store, manifest)
    rows = np.random.default_rng(0).standard_normal((2, *manifest.inputs[0].shape), np.float32)

    def outputs() -> np.ndarray:
        bound = executable.bind(manifest.tensors, lambda offset: int(weights.ctypes.data) + offset)
        return bound.run_arrays(2, [rows])[0]

    expected = outputs()
    if not native:
        monkeypatch.setattr("mainspring.compiler.artifact.executable._device", lambda *_: None)
    found = outputs()
    assert found.any()
    np.testing.assert_array_equal(found, expected)


def test_only_graphs_whose_values_decide_how_long_they_run_can_be_ended(
    store: Store, manifests: list[Manifest], tmp_path: Path
) -> None:
    """To be ready for that costs a run of any other graph 25 us."""
    plain = store.executable_path(manifests[0])
    assert not _may_take_any_time(plain)
    assert not _may_take_any_time(plain.read_bytes())
    node = onnx.helper.make_node("Loop", ["n", "", "x"], ["y"], body=onnx.GraphProto(name="body"))
    loop = onnx.ModelProto(graph=onnx.GraphProto(node=[node]))
    (tmp_path / "loop.onnx").write_bytes(loop.SerializeToString())
    assert _may_take_any_time(tmp_path / "loop.onnx")
    assert not _may_take_any_time(tmp_path / "none.onnx")
