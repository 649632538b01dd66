"""Batches that the exporter baked in: repaired where that is provably right, refused otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.manifest import Source
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import Compiled, compile_file, compile_model

MakeModel = Callable[..., onnx.ModelProto]
Run = Callable[..., list[Any]]


def reshape_model(
    make_model: MakeModel, shape: Sequence[int], rows: int = 1, **attributes: Any
) -> onnx.ModelProto:
    """Return a model of a fixed batch that reshapes (rows, 2, 6) to ``shape`` and flattens it again."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Reshape", ["r", "shape"], ["v"], name="to-v"),
        helper.make_node("Mul", ["v", "a"], ["m"]),
        helper.make_node("Flatten", ["m"], ["y"]),
    ]
    weights = {"shape": np.array(shape, np.int64), "a": np.array([2.0], np.float32)}
    return make_model(nodes, {"x": [rows, 2, 6]}, {"y": [rows, 12]}, weights)


def compile_here(model: onnx.ModelProto, store: Store) -> Compiled:
    return compile_model(model, "m", store, (1, 3), Source("onnx", "m.onnx"))


@pytest.mark.parametrize("shape", [[1, 12], [1, 3, 4], [1, -1], [1, 4, -1], [1, 12, 1]])
def test_a_leading_1_becomes_the_batch(
    store: Store, make_model: MakeModel, run_stock: Run, run_stored: Run, shape: list[int]
) -> None:
    model = reshape_model(make_model, shape)
    compiled = compile_here(model, store)
    assert compiled.repaired == ("to-v",)
    x = np.random.default_rng(0).standard_normal((3, 2, 6), np.float32)
    expected = np.concatenate([run_stock(model, [row[None]])[0] for row in x])
    np.testing.assert_array_equal(run_stored(store, compiled.manifest, [x])[0], expected)


def test_a_larger_baked_batch_is_repaired_too(
    store: Store, make_model: MakeModel, run_stock: Run, run_stored: Run
) -> None:
    model = reshape_model(make_model, [4, 12], rows=4)
    compiled = compile_here(model, store)
    assert compiled.repaired == ("to-v",)
    x = np.random.default_rng(0).standard_normal((4, 2, 6), np.float32)
    np.testing.assert_array_equal(run_stored(store, compiled.manifest, [x])[0], run_stock(model, [x])[0])


def test_reshapes_one_after_the_other_are_all_repaired(store: Store, make_model: MakeModel) -> None:
    shapes = {
        f"s{k}": np.array(shape, np.int64) for k, shape in enumerate([[1, 12], [1, 3, 4], [1, 4, 3], [1, -1]])
    }
    nodes = [helper.make_node("Reshape", [f"v{k}", f"s{k}"], [f"v{k + 1}"], name=f"r{k}") for k in range(4)]
    model = make_model(nodes, {"v0": [1, 2, 6]}, {"v4": [1, 12]}, shapes)
    assert compile_here(model, store).repaired == ("r0", "r1", "r2", "r3")


def test_a_shape_that_two_nodes_share_is_changed_only_where_it_means_the_batch(
    store: Store, make_model: MakeModel
) -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "s"], ["v"], name="rows"),
        helper.make_node("Reshape", ["a", "s"], ["w"], name="weight"),
        helper.make_node("Add", ["v", "w"], ["y"]),
    ]
    weights = {"s": np.array([1, 12], np.int64), "a": np.arange(12, dtype=np.float32)}
    model = make_model(nodes, {"x": [1, 2, 6]}, {"y": [1, 12]}, weights)
    assert compile_here(model, store).repaired == ("rows",)


def test_a_batch_merged_with_another_axis_is_refused_by_the_name_of_its_node(
    store: Store, make_model: MakeModel
) -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        helper.make_node("Reshape", ["t", "s"], ["v"], name="merge"),
        helper.make_node("Reshape", ["v", "u"], ["y"], name="split"),
    ]
    weights = {"s": np.array([2, 6], np.int64), "u": np.array([1, 12], np.int64)}
    model = make_model(nodes, {"x": [1, 2, 6]}, {"y": [1, 12]}, weights)
    with pytest.raises(CompileError, match=r"merge.*in the shape of Reshape 'split'"):
        compile_here(model, store)


def test_nothing_is_repaired_in_a_model_whose_batch_is_open(store: Store, make_model: MakeModel) -> None:
    model = reshape_model(make_model, [0, 12])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "n"
    assert compile_here(model, store).repaired == ()


def test_inputs_of_different_fixed_batches_are_refused(store: Store, make_model: MakeModel) -> None:
    nodes = [helper.make_node("Add", ["a", "b"], ["y"])]
    model = make_model(nodes, {"a": [1, 3], "b": [4, 3]}, {"y": [4, 3]})
    with pytest.raises(CompileError, match=r"first axes are \{'a': 1, 'b': 4\}"):
        compile_here(model, store)


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize(
    ("operators", "shape", "left"),
    [
        (("Relu", "Squeeze"), ("N", 1, 5), (5,)),
        (("Squeeze", "Relu"), ("N", 1, 5), (5,)),
        (("Relu", "Squeeze"), ("N", 1), ()),
        (("Squeeze", "Relu"), ("N", 3, 5), (3, 5)),
    ],
)
def test_a_squeeze_of_all_axes_of_one_leaves_the_batch(
    store: Store,
    make_model: MakeModel,
    run_stored: Run,
    opset: int,
    operators: tuple[str, str],
    shape: tuple[str, *tuple[int, ...]],
    left: tuple[int, ...],
) -> None:
    """As its author means it; for one row ONNX Runtime would take the batch away, too."""
    nodes = [
        helper.make_node(operators[0], ["x"], ["h"]),
        helper.make_node(operators[1], ["h"], ["y"]),
    ]
    model = make_model(nodes, {"x": shape}, {"y": ["N", *map(str, left)]}, opset=opset)
    manifest = compile_here(model, store).manifest
    assert (manifest.batch_sizes, manifest.outputs[0].shape) == ((1, 3), left)
    for rows in (1, 2, 3):
        x = np.random.default_rng(rows).standard_normal((rows, *shape[1:])).astype(np.float32)
        (found,) = run_stored(store, manifest, [x])
        np.testing.assert_array_equal(found, np.maximum(x, 0).reshape(rows, *left))


def test_a_fixed_batch_of_one_that_is_squeezed_away_is_served_as_it_is(
    store: Store, make_model: MakeModel, tmp_path: Path, run_stored: Run
) -> None:
    nodes = [helper.make_node("Squeeze", ["x"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    path = tmp_path / "m.onnx"
    onnx.save(make_model(nodes, {"x": [1, 1, 5]}, {"y": [5]}), path)
    compiled = compile_file(path, "m", store)
    assert compiled.whole_because.startswith("the file fixes a batch of 1, which can't be opened: ")
    assert [each.shape for each in compiled.manifest.outputs] == [(5,)]
    x = np.arange(-2, 3, dtype=np.float32).reshape(1, 1, 5)
    np.testing.assert_array_equal(
        run_stored(store, compiled.manifest, [x[None]])[0][0], np.maximum(x[0, 0], 0)
    )
