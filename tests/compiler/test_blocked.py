"""Fully connected layers in blocks: the same outputs as stock, the same graph for the same architecture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from mainspring.compiler.artifact.executable import open_executable
from mainspring.compiler.artifact.manifest import Source
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_model
from mainspring.compiler.program import blocked
from mainspring.compiler.program.blocked import block_size, in_blocks
from mainspring.compiler.program.compiled import OnnxRuntimeArtifact
from mainspring.compiler.reading.stock import open_session, optimise
from mainspring.compiler.reference import Prepared

NCHWC = "com.microsoft.nchwc"
MICROSOFT = "com.microsoft"

pytestmark = pytest.mark.skipif(not block_size(), reason="this machine's convolutions have no blocks")


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose every layer that can be computed in blocks, however small."""
    for name in ("_NODE_NS", "_ENTER_NS", "_EXIT_NS"):
        monkeypatch.setattr(blocked, name, 0)


def drawn(*shape: int, seed: int = 0) -> npt.NDArray[Any]:
    values = np.random.default_rng([seed, *shape]).standard_normal(shape)
    return np.asarray(values / shape[0] ** 0.5, np.float32)


def model(
    nodes: Sequence[onnx.NodeProto],
    shape: Sequence[int | str],
    outputs: Mapping[str, Sequence[int | str] | None],
    **constants: Any,
) -> onnx.ModelProto:
    """Return a model that reads ``x`` of a shape."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in outputs.items()],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def op(kind: str, inputs: str, output: str, domain: str = "", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(), [output], domain=domain, **attributes)


def rewritten(original: onnx.ModelProto) -> tuple[onnx.ModelProto, Counter[str]]:
    """Return a model after optimisation and rewriting, and how many nodes of each kind it has."""
    optimised = optimise(original.SerializeToString())
    in_blocks(optimised)
    return optimised, Counter(
        f"{'nchwc.' if node.domain == NCHWC else ''}{node.op_type}" for node in optimised.graph.node
    )


def check(original: onnx.ModelProto, *shapes: tuple[int, ...]) -> Counter[str]:
    """Compare the rewritten model with stock on inputs of these shapes; return the kinds of its nodes."""
    optimised, kinds = rewritten(original)
    stock = open_session(original.SerializeToString())
    ours = open_session(optimised.SerializeToString(), optimised=False)
    for shape in shapes:
        x = drawn(*shape)
        for expected, found in zip(stock.run(None, {"x": x}), ours.run(None, {"x": x}), strict=True):
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    return kinds


@pytest.mark.usefixtures("always")
@given(
    inputs=st.integers(1, 20).map(lambda number: 4 * number),
    outputs=st.integers(1, 70),
    rows=st.integers(2, 40),
    biased=st.booleans(),
    transposed=st.booleans(),
    activation=st.sampled_from(["", "Relu", "Tanh", "Sigmoid", "Elu"]),
)
@settings(max_examples=40, deadline=None)
def test_a_layer_of_any_size_gives_what_stock_gives(
    inputs: int, outputs: int, rows: int, biased: bool, transposed: bool, activation: str
) -> None:
    weights = drawn(*((outputs, inputs) if transposed else (inputs, outputs)))
    nodes = [op("Gemm", "x w b" if biased else "x w", "t", transB=int(transposed))]
    nodes.append(op(activation or "Identity", "t", "y"))
    constants = {"w": weights, **({"b": drawn(outputs)} if biased else {})}
    kinds = check(
        model(nodes, ["N", inputs], {"y": ["N", outputs]}, **constants), (rows, inputs), (1, inputs)
    )
    assert kinds["nchwc.Conv"] == (activation != "Elu" or not kinds["FusedGemm"])


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("shape", [(1, 5, 48), (3, 7, 48)])
def test_values_stay_in_blocks_between_layers(shape: tuple[int, ...]) -> None:
    """A transformer's layers, their activation as one operator and as an exporter writes it out."""
    weights = {"u": drawn(48, 64), "d": drawn(64, 48), "b": drawn(64), "c": drawn(48)}
    written_out = [
        op("MatMul", "x u", "h"),
        op("Add", "b h", "i"),
        op("Div", "i root", "j"),
        op("Erf", "j", "k"),
        op("Add", "k one", "l"),
        op("Mul", "i l", "m"),
        op("Mul", "m half", "n"),
        op("MatMul", "n d", "o"),
        op("Add", "o c", "y"),
    ]
    scalars = {"root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)}
    original = model(written_out, ["N", "S", 48], {"y": ["N", "S", 48]}, **weights, **scalars)
    kinds = check(original, shape)
    assert kinds["nchwc.Conv"] == 2
    assert (kinds["nchwc.ReorderInput"], kinds["nchwc.ReorderOutput"]) == (1, 1)
    assert not kinds["MatMul"]


@pytest.mark.usefixtures("always")
def test_what_others_read_is_brought_out_of_blocks_once() -> None:
    nodes = [
        op("MatMul", "x u", "h"),
        op("Relu", "h", "r"),
        op("MatMul", "r d", "y"),
        op("Softmax", "r", "s"),
        op("ReduceMax", "r", "t", keepdims=1, axes=[1]),
    ]
    constants = {"u": drawn(32, 48), "d": drawn(48, 16)}
    outputs: dict[str, list[int | str]] = {"y": ["N", 16], "s": ["N", 48], "t": ["N", 1], "r": ["N", 48]}
    kinds = check(model(nodes, ["N", 32], outputs, **constants), (4, 32))
    assert (kinds["nchwc.Conv"], kinds["nchwc.ReorderOutput"]) == (2, 2)


@pytest.mark.usefixtures("always")
def test_gates_are_multiplied_in_blocks_and_odd_sizes_outside() -> None:
    nodes = [
        op("MatMul", "x g", "h"),
        op("Sigmoid", "h", "i"),
        op("MatMul", "x u", "j"),
        op("Mul", "i j", "k"),
        op("MatMul", "k d", "y"),
    ]
    for width, entered in ((64, 1), (36, 2)):
        constants = {"g": drawn(32, width), "u": drawn(32, width, seed=1), "d": drawn(width, 12)}
        kinds = check(model(nodes, ["N", 32], {"y": ["N", 12]}, **constants), (3, 32))
        assert kinds["nchwc.ReorderInput"] == entered
        assert kinds["nchwc.Conv"] == 3


@pytest.mark.usefixtures("always")
def test_graphs_inside_read_values_from_outside_of_blocks() -> None:
    def branch(name: str, kind: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 32])
        return helper.make_graph([op(kind, "h", name)], name, [], [out])

    nodes = [
        op("MatMul", "x u", "h"),
        op("ReduceSum", "h", "s", keepdims=0),
        op("Greater", "s zero", "c"),
        helper.make_node("If", ["c"], ["y"], then_branch=branch("p", "Relu"), else_branch=branch("q", "Neg")),
    ]
    constants = {"u": drawn(16, 32), "zero": np.float32(0)}
    kinds = check(model(nodes, ["N", 16], {"y": ["N", 32]}, **constants), (3, 16), (5, 16))
    assert kinds["nchwc.Conv"] == 1


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    ("node", "constants"),
    [
        (op("MatMul", "x w", "y"), {"w": drawn(30, 8)}),
        (op("Gemm", "x w", "y", alpha=2.0), {"w": drawn(32, 8)}),
        (op("Gemm", "x w b", "y"), {"w": drawn(32, 8), "b": drawn(1)}),
        (op("MatMul", "x w", "y"), {"w": drawn(32, 8).astype(np.float32)[None]}),
    ],
)
def test_other_layers_stay(node: onnx.NodeProto, constants: dict[str, npt.NDArray[Any]]) -> None:
    rows = constants["w"].shape[-2]
    original = model([node], ["N", rows], {"y": None if constants["w"].ndim == 3 else ["N", 8]}, **constants)
    assert not check(original, (4, rows))["nchwc.Conv"]


def test_shared_weights_stay_what_they_are(always: None) -> None:
    nodes = [op("MatMul", "x w", "h"), op("MatMul", "h w", "y")]
    assert not check(model(nodes, ["N", 32], {"y": ["N", 32]}, w=drawn(32, 32)), (4, 32))["nchwc.Conv"]


def test_large_layers_are_chosen_and_small_ones_are_not() -> None:
    def convolutions(rows: int | str, inputs: int, outputs: int) -> int:
        original = model(
            [op("MatMul", "x w", "y")], [rows, inputs], {"y": [rows, outputs]}, w=drawn(inputs, outputs)
        )
        return rewritten(original)[1]["nchwc.Conv"]

    assert convolutions("N", 512, 1024)
    assert not convolutions("N", 32, 16), "bringing its rows into blocks takes longer"
    assert not convolutions(1, 512, 1024), "one row needs no packing"
    assert not convolutions(4096, 512, 1024), "packing is nothing beside so many rows"


def test_layers_of_old_exports_are_chosen_too() -> None:
    """Operators of version 9 have no `Shape` without the last dimension, but a Gemm has two in any case."""
    nodes = [
        op("Flatten", "x", "f"),
        op("Gemm", "f u b", "h"),
        op("Relu", "h", "r"),
        op("Gemm", "r d c", "y"),
    ]
    constants = {"u": drawn(512, 256), "b": drawn(256), "d": drawn(256, 100), "c": drawn(100)}
    original = model(nodes, ["N", 8, 64], {"y": ["N", 100]}, **constants)
    original.opset_import[0].version = 9
    kinds = check(original, (1, 8, 64), (3, 8, 64))
    assert (kinds["nchwc.Conv"], kinds["nchwc.ReorderInput"]) == (2, 1)


def test_layers_that_may_have_no_rows_stay() -> None:
    """Behind what finds something the number of rows follows from values, and may be 0."""
    nodes = [
        op("ReduceMax", "x", "top", keepdims=0, axes=[1]),
        op("Greater", "top zero", "mask"),
        op("Compress", "x mask", "rows", axis=0),
        op("MatMul", "rows w", "y"),
    ]
    original = model(nodes, ["N", 512], {"y": ["F", 256]}, w=drawn(512, 256), zero=np.float32(0))
    optimised, kinds = rewritten(original)
    assert not kinds["nchwc.Conv"]
    (found,) = open_session(optimised.SerializeToString()).run(None, {"x": -np.ones((3, 512), np.float32)})
    assert found.shape == (0, 256)


def test_a_model_that_fails_in_blocks_is_compiled_without(tmp_path: Path) -> None:
    """At its least length no rows are left of this one, which no rule foretells."""
    nodes = [op("Slice", "x first last axis", "rest"), op("MatMul", "rest w", "y")]
    constants = {"first": [1], "last": [2**31], "axis": [1]}
    original = model(
        nodes,
        ["N", "S", 512],
        {"y": ["N", "T", 1024]},
        w=drawn(512, 1024),
        **{name: np.array(value, np.int64) for name, value in constants.items()},
    )
    assert rewritten(original)[1]["nchwc.Conv"]
    store = Store(tmp_path / "store")
    source = Source("onnx", "model.onnx", "0" * 64, most={"S": 4})
    compiled = compile_model(original, "sliced", store, (1, 2), source)
    executable = open_executable(store, compiled.manifest)
    assert NCHWC.encode() not in store.executable_path(compiled.manifest).read_bytes()
    assert compiled.manifest.symbols[0].least == 1
    assert executable.info.executable == compiled.manifest.executable


def test_models_of_one_architecture_share_an_executable() -> None:
    def executable(seed: int) -> str:
        nodes = [op("Gemm", "x u b", "h"), op("Relu", "h", "r"), op("Gemm", "r d", "y")]
        constants = {
            "u": drawn(256, 512, seed=seed),
            "b": drawn(512, seed=seed),
            "d": drawn(512, 1000, seed=seed),
        }
        prepared = Prepared(model(nodes, ["N", 256], {"y": ["N", 1000]}, **constants), 4)
        artifact = OnnxRuntimeArtifact(prepared, "cpu")
        assert NCHWC.encode() in artifact.content
        found = artifact.bind().run_arrays(4, [array[:4] for array in prepared.rows])
        (expected,) = onnxruntime.InferenceSession(prepared.content).run(None, {"x": prepared.rows[0][:4]})
        np.testing.assert_allclose(np.asarray(found[0], np.float32), expected, rtol=1e-4, atol=1e-4)
        return artifact.info.executable

    assert executable(1) == executable(2)


def test_nothing_changes_on_machines_without_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked, "block_size", lambda: 0)
    original = model([op("MatMul", "x w", "y")], ["N", 512], {"y": ["N", 1024]}, w=drawn(512, 1024))
    assert rewritten(original)[1] == {"MatMul": 1}
