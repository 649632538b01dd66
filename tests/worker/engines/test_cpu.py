"""Kept bindings: each for its plan and its pages, the longest unused forgotten first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mainspring.compiler.artifact.errors import ExecutableError
from mainspring.compiler.artifact.executable import Executable, open_executable
from mainspring.compiler.artifact.manifest import Manifest
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.messages.model import PAGE_BYTES
from mainspring.worker.engines.artifacts import allocate
from mainspring.worker.engines.cpu import Placements

WIDTH = 8


def compiled(folder: Path, name: str, seed: int) -> Manifest:
    """Compile ``y = Relu(x @ w)`` with weights of its own."""
    weights = np.random.default_rng(seed).standard_normal((WIDTH, WIDTH), np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])],
        "dense",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", WIDTH])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, folder / f"{name}.onnx")
    return compile_file(folder / f"{name}.onnx", name, Store(folder / "store"), (1,)).manifest


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate("ab"):
        compiled(folder, name, seed)
    return Store(folder / "store")


@pytest.fixture
def executable(store: Store) -> Executable:
    return open_executable(store, store.manifest("a"))


def test_models_of_one_layout_share_a_plan_and_a_binding_serves_whose_weights_are_there(
    store: Store, executable: Executable
) -> None:
    a, b = store.manifest("a"), store.manifest("b")
    plan = executable.plan(a.tensors)
    assert executable.plan(b.tensors) is plan
    arena = allocate(PAGE_BYTES)
    bound = plan.bind(lambda offset: int(arena.ctypes.data) + offset)
    x = np.random.default_rng(2).standard_normal((1, WIDTH), np.float32)
    for manifest in (a, b):
        weights = np.fromfile(store.weights_path(manifest), np.uint8)
        arena[: len(weights)] = weights
        found = bound.run_arrays(1, [x])[0]
        fresh = executable.bind(manifest.tensors, lambda offset: int(arena.ctypes.data) + offset)
        np.testing.assert_array_equal(found, fresh.run_arrays(1, [x])[0])
        expected = np.maximum(x @ weights[: 4 * WIDTH * WIDTH].view(np.float32).reshape(WIDTH, WIDTH), 0)
        np.testing.assert_allclose(np.asarray(found, np.float32), expected, rtol=1e-4, atol=1e-5)


def test_a_plan_for_other_weights_is_refused(store: Store, executable: Executable) -> None:
    with pytest.raises(ExecutableError, match="has other weights than were bound"):
        executable.plan(())


def test_a_binding_is_found_by_plan_and_pages_alone(store: Store, executable: Executable) -> None:
    plan = executable.plan(store.manifest("a").tensors)
    other = open_executable(store, store.manifest("a")).plan(store.manifest("a").tensors)
    placements = Placements()
    bound = plan.bind(lambda offset: offset)
    placements.keep(plan, (1, 2), bound)
    assert placements.find(plan, (1, 2)) is bound
    assert placements.find(plan, (2, 1)) is None
    assert placements.find(plan, (1,)) is None
    assert placements.find(other, (1, 2)) is None


def test_beyond_the_limit_the_longest_unused_is_forgotten(store: Store, executable: Executable) -> None:
    plan = executable.plan(store.manifest("a").tensors)
    placements = Placements(limit=2)
    bound = plan.bind(lambda offset: offset)
    for page in (0, 1):
        placements.keep(plan, (page,), bound)
    assert placements.find(plan, (0,)) is bound
    placements.keep(plan, (2,), bound)
    assert len(placements) == 2
    assert [placements.find(plan, (page,)) is bound for page in range(3)] == [True, False, True]


def test_a_closed_executable_leaves_nothing_behind(store: Store, executable: Executable) -> None:
    manifest = store.manifest("a")
    plan = executable.plan(manifest.tensors)
    placements = Placements()
    placements.keep(plan, (0,), plan.bind(lambda offset: offset))
    placements.forget("another")
    assert len(placements) == 1
    placements.forget(manifest.executable)
    assert not len(placements)
