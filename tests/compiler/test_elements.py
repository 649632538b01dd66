"""Models in the element types that are found in the wild: quantised, half precision, integers, booleans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.manifest import Manifest, Source
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_model
from mainspring.compiler.program import split

MakeModel = Callable[..., onnx.ModelProto]
Run = Callable[..., list[Any]]
RANDOM = np.random.default_rng(5)


def compile_here(model: onnx.ModelProto, store: Store) -> Manifest:
    return compile_model(model, "m", store, (1, 2, 3), Source("onnx", "m.onnx")).manifest


def weight_dtypes(manifest: Manifest) -> set[str]:
    return {tensor.dtype for tensor in manifest.tensors}


@pytest.fixture(params=[False, True], ids=["paged", "held"])
def held(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether weights that kernels pack stay in the graph, as few of them do; else all are in pages."""
    if not request.param:
        monkeypatch.setattr(split, "HELD_BYTES", 0)
    return bool(request.param)


def quantised(rows: int, columns: int) -> Any:
    return RANDOM.integers(-100, 100, (rows, columns), np.int8)


def compare(
    store: Store, model: onnx.ModelProto, arrays: Sequence[Any], runs: tuple[Run, Run], atol: float = 0.0
) -> Manifest:
    """Compile, run as a worker does, compare with a stock session."""
    manifest = compile_here(model, store)
    stock, stored = runs
    for found, expected in zip(stored(store, manifest, arrays), stock(model, arrays), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=atol)
    return manifest


def test_quantised_operators_keep_their_int8_weights_in_pages(
    store: Store, make_model: MakeModel, run_stock: Run, run_stored: Run, held: bool
) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("QLinearMatMul", ["q", "s", "z", "w", "ws", "wz", "ys", "yz"], ["p"]),
        helper.make_node("DequantizeLinear", ["p", "ys", "yz"], ["y"]),
    ]
    weights = {
        "s": np.float32(0.02),
        "z": np.uint8(128),
        "w": quantised(64, 32),
        "ws": np.float32(0.01),
        "wz": np.int8(0),
        "ys": np.float32(0.2),
        "yz": np.uint8(120),
    }
    model = make_model(nodes, {"x": ["n", 64]}, {"y": ["n", 32]}, weights)
    x = RANDOM.standard_normal((3, 64), np.float32)
    manifest = compare(store, model, [x], (run_stock, run_stored))
    assert ("int8" in weight_dtypes(manifest)) is not held


def test_a_model_with_quantise_and_dequantise_pairs(
    store: Store, make_model: MakeModel, run_stock: Run, run_stored: Run, held: bool
) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["dw"]),
        helper.make_node("Conv", ["d", "dw"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("QuantizeLinear", ["c", "ys", "z"], ["r"]),
        helper.make_node("DequantizeLinear", ["r", "ys", "z"], ["y"]),
    ]
    weights = {
        "s": np.float32(0.02),
        "z": np.uint8(128),
        "w": RANDOM.integers(-100, 100, (16, 8, 3, 3), np.int8),
        "ws": np.float32(0.01),
        "wz": np.int8(0),
        "ys": np.float32(0.1),
    }
    model = make_model(nodes, {"x": ["n", 8, 6, 6]}, {"y": ["n", 16, 6, 6]}, weights)
    x = RANDOM.standard_normal((3, 8, 6, 6), np.float32)
    manifest = compare(store, model, [x], (run_stock, run_stored), atol=0.1001)
    assert ("int8" in weight_dtypes(manifest)) is not held


def test_scales_of_the_whole_batch_are_served_one_row_at_a_time(store: Store, make_model: MakeModel) -> None:
    """DynamicQuantizeLinear takes one scale from all rows, so strangers' rows change each other."""
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z"], ["p"]),
        helper.make_node("Cast", ["p"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["f", "s"], ["y"]),
    ]
    model = make_model(nodes, {"x": ["n", 64]}, {"y": ["n", 32]}, {"w": quantised(64, 32)})
    manifest = compile_here(model, store)
    assert manifest.batch_sizes == (1,)
    assert "(DynamicQuantizeLinear) has one scale for all rows of a batch" in manifest.unshared


def test_half_precision(store: Store, make_model: MakeModel, run_stock: Run, run_stored: Run) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]),
        helper.make_node("Gemm", ["f", "v", "b"], ["y"]),
    ]
    weights = {
        "w": RANDOM.standard_normal((4, 3, 3, 3)).astype(np.float16),
        "v": RANDOM.standard_normal((64, 5)).astype(np.float16),
        "b": RANDOM.standard_normal(5).astype(np.float16),
    }
    half = TensorProto.FLOAT16
    model = make_model(nodes, {"x": ["n", 3, 6, 6]}, {"y": ["n", 5]}, weights, half)
    x = RANDOM.standard_normal((3, 3, 6, 6)).astype(np.float16)
    manifest = compile_here(model, store)
    assert (manifest.inputs[0].dtype, manifest.outputs[0].dtype) == ("float16", "float16")
    found, expected = run_stored(store, manifest, [x])[0], run_stock(model, [x])[0]
    np.testing.assert_allclose(found.astype(float), expected.astype(float), rtol=2e-2, atol=0.5)


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float64", "bool"]
)
def test_inputs_and_outputs_of_every_numpy_type(
    store: Store, make_model: MakeModel, run_stock: Run, run_stored: Run, dtype: str
) -> None:
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    node = helper.make_node("Concat", ["x", "x"], ["y"], axis=1)
    model = make_model([node], {"x": ["n", 3]}, {"y": ["n", 6]}, element=element)
    x = RANDOM.integers(0, 2, (3, 3)).astype(dtype)
    manifest = compare(store, model, [x], (run_stock, run_stored))
    assert manifest.inputs[0].dtype == dtype


def test_comparisons_make_booleans(
    store: Store, make_model: MakeModel, run_stock: Run, run_stored: Run
) -> None:
    node = helper.make_node("Less", ["x", "w"], ["y"])
    model = make_model([node], {"x": ["n", 3]}, {"y": ["n", 3]}, {"w": np.zeros(3, np.float32)})
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.BOOL
    x = RANDOM.standard_normal((2, 3), np.float32)
    assert compare(store, model, [x], (run_stock, run_stored)).outputs[0].dtype == "bool"


def test_scalar_and_string_attributes(
    store: Store, make_model: MakeModel, run_stock: Run, run_stored: Run
) -> None:
    nodes = [
        helper.make_node("LeakyRelu", ["x"], ["r"], alpha=0.3),
        helper.make_node("Pad", ["r", "pads"], ["p"], mode="reflect"),
        helper.make_node("Einsum", ["p", "w"], ["y"], equation="nc,cd->nd"),
    ]
    weights = {"pads": np.array([0, 1, 0, 1], np.int64), "w": RANDOM.standard_normal((6, 2), np.float32)}
    model = make_model(nodes, {"x": ["n", 4]}, {"y": ["n", 2]}, weights)
    x = RANDOM.standard_normal((3, 4), np.float32)
    compare(store, model, [x], (run_stock, run_stored), atol=1e-5)


@pytest.mark.parametrize("columns", [16, 256])
@pytest.mark.parametrize("level", [0, 4])
def test_4_bit_weights_stay_where_their_operator_prepares_them(
    store: Store, make_model: MakeModel, run_stock: Run, run_stored: Run, columns: int, level: int
) -> None:
    """As inputs they are rounded otherwise, or are zeros if scales are inputs and the rest is not."""
    packed = RANDOM.integers(0, 256, (columns, 4, 16)).astype(np.uint8)
    node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft")
    for name, value in {"K": 128, "N": columns, "bits": 4, "block_size": 32, "accuracy_level": level}.items():
        node.attribute.append(helper.make_attribute(name, value))
    weights = {"w": packed, "s": np.full(columns * 4, 0.05, np.float32)}
    model = make_model([node], {"x": ["n", 128]}, {"y": ["n", columns]}, weights)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    x = RANDOM.standard_normal((3, 128), np.float32)
    manifest = compare(store, model, [x], (run_stock, run_stored), atol=1e-4)
    assert not manifest.tensors
    assert not manifest.unshared


@pytest.mark.parametrize("element", [TensorProto.INT8, TensorProto.UINT8, TensorProto.INT4])
def test_rows_are_proven_apart_where_narrow_weights_are_widened(
    store: Store, make_model: MakeModel, element: int
) -> None:
    """More of them than are followed as values, as in every layer of a model of quantise-dequantise pairs."""
    narrow = helper.make_tensor("w", element, (64, 32), RANDOM.integers(0, 8, 2048).tolist())
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"]),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    model = make_model(nodes, {"x": ["n", 64]}, {"y": ["n", 32]}, {"s": np.float32(0.05)}, opset=21)
    model.graph.initializer.append(narrow)
    manifest = compile_here(model, store)
    assert not manifest.unshared
    assert manifest.batch_sizes == (1, 2, 3)


@pytest.mark.parametrize("element", ["FLOAT8E4M3FN", "INT4", "UINT4", "COMPLEX64"])
def test_what_no_protocol_has_is_refused_by_name(store: Store, make_model: MakeModel, element: str) -> None:
    node = helper.make_node("Identity", ["x"], ["y"])
    kind = TensorProto.DataType.Value(element)
    model = make_model([node], {"x": ["n", 2]}, {"y": ["n", 2]}, element=kind, opset=21)
    with pytest.raises(CompileError, match=rf"tensor\({element.lower()}\); inputs and outputs must be"):
        compile_here(model, store)
