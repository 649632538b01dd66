"""What ONNX allows in a graph is served and answers as ONNX's own evaluator, or one sentence says why not."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.executable import open_executable
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.compiler.program.layout import Arena

FLOAT, ROWS, WIDTH = TensorProto.FLOAT, 3, 4
NAMES = ("x", "a b/c:0", "é☃", 'x"y', "..", "0", "i0", "o0", "w0", "n\nl")
KINDS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.INT64)


def value(name: str, shape: Any = ("N", WIDTH), kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def made(
    nodes: list[onnx.NodeProto], inputs: list[Any], outputs: list[Any], tensors: list[Any] | None = None
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors or [])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def sparse(name: str, dims: list[int], flat: bool) -> onnx.SparseTensorProto:
    places = np.array([1, 5]) if flat else np.stack(np.unravel_index([1, 5], dims), axis=1)
    return helper.make_sparse_tensor(
        numpy_helper.from_array(np.array([1.5, -2], np.float32), name),
        numpy_helper.from_array(places.astype(np.int64), ""),
        dims,
    )


@st.composite
def graphs(draw: st.DrawFn) -> onnx.ModelProto:
    """Draw a chain of elementwise nodes with some of what graphs may have besides."""
    first = draw(st.sampled_from(NAMES))
    kind = draw(st.sampled_from(KINDS))
    scalar = draw(st.booleans()) and draw(st.booleans())
    shape: Any = [] if scalar else ["N", WIDTH]
    inputs, outputs, tensors = [value(first, shape, kind)], [], []
    nodes, last = [], first
    for number in range(draw(st.integers(0, 3))):
        operator = draw(st.sampled_from(["Neg", "Abs", "Identity", "Add"]))
        given_to = [last, last] if operator == "Add" else [last]
        name = "node" if draw(st.booleans()) else ""
        last = f"{first}.{number}"
        nodes.append(helper.make_node(operator, given_to, [last], name))
    if last != first or draw(st.booleans()):
        outputs.append(value(last, shape, kind))
    if draw(st.booleans()):
        outputs.append(value(first, shape, kind))
    if draw(st.booleans()):
        outputs += outputs[:1]
    if draw(st.booleans()):
        inputs.append(value("unused", shape))
    if draw(st.booleans()) or not outputs:
        tensors.append(numpy_helper.from_array(np.array([2, 3], np.float32), "constant"))
        outputs.append(value("constant", [2]))
    model = made(nodes, inputs, outputs, tensors)
    if kind == TensorProto.FLOAT and not scalar and draw(st.booleans()):
        model.graph.sparse_initializer.append(sparse("sparse", [WIDTH, 2], draw(st.booleans())))
        model.graph.node.append(helper.make_node("MatMul", [first, "sparse"], ["product"]))
        model.graph.output.append(value("product", ["N", 2]))
    return model


def served(model: onnx.ModelProto, folder: Path, arrays: dict[str, Any]) -> dict[str, Any]:
    """Return what a compiled model answers, by the outputs that clients see."""
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    store = Store(folder / "store")
    manifest = compile_file(folder / "m.onnx", "m", store).manifest
    arena = Arena(np.fromfile(store.weights_path(manifest), np.uint8), manifest.extents)
    arena.load()
    bound = open_executable(store, manifest).bind(manifest.tensors, arena.address_of)
    given = [arrays[spec.name] for spec in manifest.inputs]
    rows, sizes = ROWS, tuple[int, ...]()
    if manifest.whole:
        given, rows = [array[None] for array in given], 1
        sizes = (ROWS,) * len(manifest.symbols)
    found = bound.run_arrays(rows, given, sizes)
    return {
        spec.name: array[0] if manifest.whole else array
        for spec, array in zip(manifest.outputs, found, strict=True)
    }


@settings(max_examples=25, deadline=None)
@given(graphs())
def test_it_answers_as_the_evaluator_of_onnx(model: onnx.ModelProto) -> None:
    onnx.checker.check_model(model)
    random = np.random.default_rng(1)
    arrays = {}
    for each in model.graph.input:
        kind = each.type.tensor_type
        shape = tuple(dim.dim_value or ROWS for dim in kind.shape.dim)
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        arrays[each.name] = (random.standard_normal(shape) * 9).astype(dtype)
    plain = [each for each in model.graph.output if each.name != "product"]
    names = list(dict.fromkeys(each.name for each in plain))
    evaluated = onnx.ModelProto()
    evaluated.CopyFrom(model)
    wanted: dict[str, Any] = {}
    if any(each.name == "product" for each in model.graph.output):
        dense = np.zeros((WIDTH, 2), np.float32)
        dense.reshape(-1)[[1, 5]] = [1.5, -2]
        wanted["product"] = next(iter(arrays.values())) @ dense
        del evaluated.graph.sparse_initializer[:]
        del evaluated.graph.node[-1]
    wanted |= zip(names, ReferenceEvaluator(evaluated).run(names, arrays), strict=True)
    with tempfile.TemporaryDirectory() as folder:
        found = served(model, Path(folder), arrays)
    assert {*found} == {*wanted}
    for name, right in wanted.items():
        np.testing.assert_allclose(found[name], right, rtol=1e-3, atol=1e-5)


CONSTANT = numpy_helper.from_array(np.ones(2, np.float32), "c")
MINE = helper.make_node("Mine", ["x"], ["y"], "the node", domain="ai.onnx.contrib")
OPTIONAL = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, ["N", WIDTH]))


def test_optional_tensors_are_always_there(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("OptionalGetElement", ["o"], ["v"]),
        helper.make_node("OptionalHasElement", ["o"], ["h"]),
        helper.make_node("Where", ["h", "v", "z"], ["w"]),
        helper.make_node("Optional", ["w"], ["y"]),
    ]
    zero = numpy_helper.from_array(np.array(0, np.float32), "z")
    both = [helper.make_value_info(name, OPTIONAL) for name in "oy"]
    array = np.ones((ROWS, WIDTH), np.float32)
    found = served(made(nodes, both[:1], both[1:], [zero]), tmp_path, {"o": array})
    assert np.array_equal(found["y"], array)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (made([], [value("x")], []), "has no outputs"),
        (onnx.ModelProto(ir_version=8), "holds no graph with nodes"),
        (made([helper.make_node("Neg", ["x"], ["y"])], [value("x")], []), "has no outputs"),
        (made([], [], [value("c", [2])], [CONSTANT]), "has no input"),
        (made([MINE], [value("x")], [value("y")]), "Mine of the domain 'ai.onnx.contrib' is an operator of"),
    ],
    ids=["no nodes", "empty", "no outputs", "no input", "library"],
)  # fmt: skip
def test_what_means_nothing_is_refused_in_a_sentence(
    model: onnx.ModelProto, why: str, tmp_path: Path
) -> None:
    if "library" in why or "contrib" in why:
        model.opset_import.append(helper.make_opsetid("ai.onnx.contrib", 1))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(CompileError) as caught:
        compile_file(tmp_path / "m.onnx", "m", Store(tmp_path / "store"))
    assert why in str(caught.value)
