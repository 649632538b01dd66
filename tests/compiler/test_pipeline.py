"""Whole compilations against stock ONNX Runtime, and the refusals that need a running model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.manifest import Manifest, Source
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import check_batch_sizes, compile_file, compile_model, parse_batch_sizes
from mainspring.compiler.program import compiled as artifact
from mainspring.compiler.reading.stock import optimise
from mainspring.compiler.zoo import build
from mainspring.messages.model import PAGE_BYTES

MakeModel = Callable[..., onnx.ModelProto]
Run = Callable[..., list[Any]]
SOURCE = Source("onnx", "m.onnx")
SIZES = (1, 2, 5)


def compile_here(
    model: onnx.ModelProto, store: Store, sizes: tuple[int, ...] = SIZES, name: str = "m"
) -> Manifest:
    return compile_model(model, name, store, sizes, SOURCE).manifest


def node(operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, inputs, outputs, name=f"the-{operator}", **attributes)


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_outputs_are_those_of_stock_onnxruntime(
    store: Store, make_mlp: MakeModel, run_stock: Run, run_stored: Run, rows: int
) -> None:
    model = make_mlp(3)
    manifest = compile_here(model, store)
    x = np.random.default_rng(rows).standard_normal((rows, 4), np.float32)
    np.testing.assert_allclose(run_stored(store, manifest, [x])[0], run_stock(model, [x])[0], rtol=1e-5)


def test_squeezenet_from_a_file_with_a_batch_of_1(
    store: Store, tmp_path: Path, run_stock: Run, run_stored: Run
) -> None:
    model = build("squeezenet", 7)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save_model(model, tmp_path / "s.onnx")
    compiled = compile_file(tmp_path / "s.onnx", "s", store, (4, 1))
    manifest = compiled.manifest
    assert manifest.batch_sizes == (1, 4)
    assert set(manifest.profiles["cpu"].infer_ns) == {1, 4}
    assert min(manifest.profiles["cpu"].infer_ns.values()) > 0
    assert manifest.profiles["cpu"].load_ns > 0
    assert manifest.workspace_bytes > 0
    assert manifest.inputs[0].shape == (3, 224, 224)
    assert manifest.source.path == str(tmp_path / "s.onnx")
    x = np.random.default_rng(0).standard_normal((4, 3, 224, 224), np.float32)
    expected = np.concatenate([run_stock(model, [row[None]])[0] for row in x])
    np.testing.assert_allclose(run_stored(store, manifest, [x])[0], expected, rtol=1e-4, atol=1e-7)


def test_other_weights_and_other_names_share_the_executable(store: Store, make_mlp: MakeModel) -> None:
    first = compile_model(make_mlp(1), "first", store, SIZES, SOURCE)
    model = make_mlp(2, "other/")
    model.doc_string = "a person's words"
    model.graph.node[0].doc_string = "more of them"
    model.producer_name = "an exporter"
    second = compile_model(model, "second", store, SIZES, SOURCE)
    assert (first.shared, second.shared) == (False, True)
    assert second.manifest.executable == first.manifest.executable
    assert second.manifest.weights_hash != first.manifest.weights_hash
    assert second.manifest.profiles == first.manifest.profiles
    assert [tensor.name for tensor in second.manifest.inputs] == ["other/x"]
    graph = store.executable_path(second.manifest).read_bytes()
    assert b"other/" not in graph
    assert b"person" not in graph
    assert not [tensor for tensor in onnx.load_from_string(graph).graph.initializer if tensor.data_type == 1]


def test_another_architecture_has_another_executable(store: Store, make_mlp: MakeModel) -> None:
    first = compile_here(make_mlp(1), store, name="first")
    assert compile_here(make_mlp(1, units=9), store, name="second").executable != first.executable


def test_a_tensor_larger_than_a_page_takes_adjacent_pages(
    store: Store, make_model: MakeModel, run_stock: Run, run_stored: Run
) -> None:
    random = np.random.default_rng(0)
    weights = {
        "a": random.standard_normal((64, 70_000), np.float32),
        "b": random.standard_normal(70_000, np.float32),
        "c": random.standard_normal((70_000, 3), np.float32),
    }
    nodes = [node("Gemm", ["x", "a", "b"], ["h"]), node("MatMul", ["h", "c"], ["y"])]
    model = make_model(nodes, {"x": ["n", 64]}, {"y": ["n", 3]}, weights)
    manifest = compile_here(model, store, (1, 2))
    assert weights["a"].nbytes > PAGE_BYTES
    assert manifest.extents == (2,)
    x = random.standard_normal((2, 64), np.float32)
    np.testing.assert_allclose(
        run_stored(store, manifest, [x])[0], run_stock(model, [x])[0], rtol=1e-4, atol=1e-2
    )


def test_several_inputs_and_outputs_of_several_types(
    store: Store, make_model: MakeModel, run_stock: Run, run_stored: Run
) -> None:
    nodes = [
        node("Gather", ["table", "ids"], ["rows"]),
        node("Mul", ["rows", "scale"], ["scaled"]),
        node("ReduceSum", ["scaled", "axes"], ["total"], keepdims=0),
        node("ArgMax", ["scaled"], ["best"], axis=2, keepdims=0),
    ]
    table = np.random.default_rng(1).standard_normal((10, 6), np.float32)
    weights = {"table": table, "axes": np.array([1, 2], np.int64)}
    model = make_model(nodes, {"scale": ["n", 5, 1]}, {"total": ["n"]}, weights)
    model.graph.input.append(helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", 5]))
    model.graph.output.append(helper.make_tensor_value_info("best", TensorProto.INT64, ["n", 5]))
    manifest = compile_here(model, store)
    assert [(spec.name, spec.dtype, spec.shape) for spec in (*manifest.inputs, *manifest.outputs)] == [
        ("scale", "float32", (5, 1)),
        ("ids", "int64", (5,)),
        ("total", "float32", ()),
        ("best", "int64", (5,)),
    ]
    random = np.random.default_rng(2)
    arrays = [random.standard_normal((5, 5, 1), np.float32), random.integers(0, 10, (5, 5))]
    for found, expected in zip(run_stored(store, manifest, arrays), run_stock(model, arrays), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_16_bit_floats(store: Store, make_model: MakeModel) -> None:
    weight = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float16)
    nodes = [node("MatMul", ["x", "a"], ["y"])]
    model = make_model(nodes, {"x": ["n", 4]}, {"y": ["n", 3]}, {"a": weight}, TensorProto.FLOAT16)
    assert compile_here(model, store).outputs[0].dtype == "float16"


def test_a_model_without_weights(store: Store, make_model: MakeModel) -> None:
    model = make_model([node("Relu", ["x"], ["y"])], {"x": ["n", 4]}, {"y": ["n", 4]})
    manifest = compile_here(model, store)
    assert manifest.tensors == ()
    assert manifest.extents == (1,)
    store.verify("m")


def test_rows_that_influence_each_other_are_run_one_at_a_time(store: Store, make_model: MakeModel) -> None:
    nodes = [node("Softmax", ["x"], ["y"], axis=0)]
    manifest = compile_here(make_model(nodes, {"x": ["n", 4]}, {"y": ["n", 4]}), store)
    assert manifest.batch_sizes == manifest.spec().batch_sizes == (1,)
    assert manifest.spec().unshared == "node 'the-Softmax' (Softmax) normalises over the batch"


def test_an_output_without_rows_is_refused(store: Store, make_model: MakeModel) -> None:
    nodes = [node("ReduceSum", ["x"], ["y"], keepdims=0)]
    with pytest.raises(CompileError, match=r"output 'y' is .* its first axis isn't the batch"):
        compile_here(make_model(nodes, {"x": ["n", 4]}, {"y": []}), store)


def test_an_output_whose_shape_depends_on_values_is_refused(store: Store, make_model: MakeModel) -> None:
    nodes = [node("ConstantOfShape", ["x"], ["y"])]
    model = make_model(nodes, {"x": [2]}, {"y": ["a", "b"]}, element=TensorProto.INT64)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    with pytest.raises(CompileError, match="values of input 'x' decide the shape"):
        compile_here(model, store)


def test_a_constant_output_is_refused(store: Store, make_mlp: MakeModel) -> None:
    model = make_mlp(1)
    model.graph.output.append(helper.make_tensor_value_info("c", TensorProto.FLOAT, [8, 3]))
    with pytest.raises(CompileError, match="output 'c'"):
        compile_here(model, store)


def test_a_model_that_onnxruntime_refuses_is_refused_with_its_reason(
    store: Store, make_model: MakeModel
) -> None:
    model = make_model([node("NoSuchOperator", ["x"], ["y"])], {"x": ["n", 4]}, {"y": ["n", 4]})
    with pytest.raises(CompileError, match=r"stock ONNX Runtime refuses the model.*NoSuchOperator"):
        compile_here(model, store)


def test_weights_that_differ_from_the_original_are_found(
    store: Store, make_mlp: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoiled(content: bytes, *how: Any) -> onnx.ModelProto:
        optimised = optimise(content, *how)
        tensor = next(t for t in optimised.graph.initializer if list(t.dims) == [8, 3])
        array = onnx.numpy_helper.to_array(tensor).copy()
        array[4, 1] *= 1.1
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
        return optimised

    monkeypatch.setattr(artifact, "optimise", spoiled)
    with pytest.raises(
        CompileError, match=r"output 'y' at batch size 1 differs .* by .* in row 0, element \(1,\)"
    ):
        compile_here(make_mlp(1), store)
    assert not store.root.exists()


def test_compiling_again_gives_the_same_bytes(store: Store, tmp_path: Path, make_mlp: MakeModel) -> None:
    first = compile_here(make_mlp(1), store)
    second = compile_here(make_mlp(1), Store(tmp_path / "other"))
    assert (first.executable, first.weights_hash) == (second.executable, second.weights_hash)
    assert (first.tensors, first.extents) == (second.tensors, second.extents)


@pytest.mark.parametrize("sizes", [(), (0,), (-1, 2), (5000,)])
def test_batch_sizes_that_can_not_be(sizes: tuple[int, ...]) -> None:
    with pytest.raises(CompileError, match="can't be"):
        check_batch_sizes(sizes)


def test_batch_sizes_as_text() -> None:
    assert parse_batch_sizes("4, 1,4") == (1, 4)
    with pytest.raises(CompileError, match="'1,two' aren't numbers"):
        parse_batch_sizes("1,two")
