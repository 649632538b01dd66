"""A baked batch in merged axes, and in nodes besides Reshape: repaired where proven, else refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.manifest import Source
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import Compiled, compile_model

MakeModel = Callable[..., onnx.ModelProto]
Run = Callable[..., list[Any]]
RANDOM = np.random.default_rng(9)


def compile_here(model: onnx.ModelProto, store: Store) -> Compiled:
    return compile_model(model, "m", store, (1, 3), Source("onnx", "m.onnx"))


def check(store: Store, model: onnx.ModelProto, runs: tuple[Run, Run], rows: int = 1) -> Compiled:
    """Compile, and compare three rows with the original run on groups of its own batch."""
    compiled = compile_here(model, store)
    stock, stored = runs
    x = RANDOM.standard_normal((3 * rows, *compiled.manifest.inputs[0].shape), np.float32)
    expected = np.concatenate([stock(model, [x[k : k + rows]])[0] for k in range(0, len(x), rows)])
    for begin in range(0, len(x), 3):
        part = slice(begin, begin + 3)
        found = stored(store, compiled.manifest, [x[part]])[0]
        np.testing.assert_allclose(found, expected[part], rtol=1e-4, atol=1e-5)
    return compiled


@pytest.mark.parametrize("rows", [1, 2])
def test_tokens_merged_with_the_batch(
    store: Store, make_model: MakeModel, run_stock: Run, run_stored: Run, rows: int
) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Reshape", ["r", "flat"], ["m"], name="merge"),
        helper.make_node("Gemm", ["m", "w", "b"], ["g"]),
        helper.make_node("Softmax", ["g"], ["p"], axis=-1),
        helper.make_node("Reshape", ["p", "back"], ["y"], name="split"),
    ]
    weights = {
        "flat": np.array([rows * 5, 8], np.int64),
        "back": np.array([rows, 5, 4], np.int64),
        "w": RANDOM.standard_normal((8, 4), np.float32),
        "b": RANDOM.standard_normal(4, np.float32),
    }
    model = make_model(nodes, {"x": [rows, 5, 8]}, {"y": [rows, 5, 4]}, weights)
    compiled = check(store, model, (run_stock, run_stored), rows)
    assert set(compiled.repaired) == {"merge", "split"}


def test_attention_heads_merged_with_the_batch(
    store: Store, make_model: MakeModel, run_stock: Run, run_stored: Run
) -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["t", "flat"], ["q"], name="heads"),
        helper.make_node("Transpose", ["q"], ["k"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "k"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "q"], ["o"]),
        helper.make_node("Reshape", ["o", "back"], ["u"], name="apart"),
        helper.make_node("Transpose", ["u"], ["v"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["v", "rows"], ["y"], name="join"),
    ]
    weights = {
        "flat": np.array([2, 5, 4], np.int64),
        "back": np.array([1, 2, 5, 4], np.int64),
        "rows": np.array([1, 5, 8], np.int64),
    }
    model = make_model(nodes, {"x": [1, 5, 2, 4]}, {"y": [1, 5, 8]}, weights)
    compiled = check(store, model, (run_stock, run_stored))
    assert set(compiled.repaired) == {"heads", "apart", "join"}


def test_what_mixes_the_merged_axis_is_refused_by_name(store: Store, make_model: MakeModel) -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "flat"], ["m"], name="merge"),
        helper.make_node("Softmax", ["m"], ["p"], axis=0),
        helper.make_node("Reshape", ["p", "back"], ["y"], name="split"),
    ]
    weights = {"flat": np.array([5, 8], np.int64), "back": np.array([1, 5, 8], np.int64)}
    model = make_model(nodes, {"x": [1, 5, 8]}, {"y": [1, 5, 8]}, weights)
    with pytest.raises(CompileError, match="'split'"):
        compile_here(model, store)


@pytest.mark.parametrize("rows", [1, 3])
def test_sizes_of_a_resize(
    store: Store, make_model: MakeModel, run_stock: Run, run_stored: Run, rows: int
) -> None:
    nodes = [
        helper.make_node("Resize", ["x", "", "", "sizes"], ["r"], name="up", mode="nearest"),
        helper.make_node("Reshape", ["r", "s"], ["y"], name="flat"),
    ]
    weights = {"sizes": np.array([rows, 2, 8, 8], np.int64), "s": np.array([rows, 128], np.int64)}
    model = make_model(nodes, {"x": [rows, 2, 4, 4]}, {"y": [rows, 128]}, weights)
    assert check(store, model, (run_stock, run_stored), rows).repaired == ("up", "flat")


def test_a_class_token_that_was_expanded_to_the_batch(
    store: Store, make_model: MakeModel, run_stock: Run, run_stored: Run
) -> None:
    nodes = [
        helper.make_node("Concat", ["token", "x"], ["c"], name="prepend", axis=1),
        helper.make_node("Reshape", ["c", "s"], ["y"], name="flat"),
    ]
    token = RANDOM.standard_normal((1, 1, 4), np.float32)
    weights = {"token": token, "s": np.array([1, 24], np.int64)}
    model = make_model(nodes, {"x": [1, 5, 4]}, {"y": [1, 24]}, weights)
    assert check(store, model, (run_stock, run_stored)).repaired == ("prepend", "flat")


def test_different_constant_rows_are_refused(store: Store, make_model: MakeModel) -> None:
    node = helper.make_node("Concat", ["token", "x"], ["y"], name="prepend", axis=1)
    weights = {"token": RANDOM.standard_normal((2, 1, 4), np.float32)}
    model = make_model([node], {"x": [2, 5, 4]}, {"y": [2, 6, 4]}, weights)
    with pytest.raises(CompileError, match="prepend"):
        compile_here(model, store)


def test_an_expand_to_the_exporters_batch(
    store: Store, make_model: MakeModel, run_stock: Run, run_stored: Run
) -> None:
    node = helper.make_node("Expand", ["x", "s"], ["y"], name="widen")
    model = make_model([node], {"x": [2, 1, 4]}, {"y": [2, 3, 4]}, {"s": np.array([2, 3, 4], np.int64)})
    assert check(store, model, (run_stock, run_stored), rows=2).repaired == ("widen",)


def test_a_sum_of_the_batch_is_served_one_row_at_a_time(store: Store, make_model: MakeModel) -> None:
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["t"], keepdims=1),
        helper.make_node("Reshape", ["t", "s"], ["u"], name="scalar"),
        helper.make_node("Add", ["x", "u"], ["y"]),
    ]
    model = make_model(nodes, {"x": [1, 4]}, {"y": [1, 4]}, {"s": np.zeros(0, np.int64)})
    manifest = compile_here(model, store).manifest
    assert manifest.batch_sizes == (1,)
    assert "(ReduceSum) reduces over the batch" in manifest.unshared
