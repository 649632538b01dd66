"""Rows on other axes than the first: found by the proof, in front in the artifact, elsewhere for clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, parser

from mainspring.compiler.artifact.manifest import Manifest
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import Compiled, compile_file
from mainspring.compiler.reading.stock import StockSession
from mainspring.compiler.rows.row_axes import Place, RowAxes, find_row_axes, move_rows
from mainspring.compiler.sizes.sample_forms import Described
from mainspring.messages.sequencing import Sequencing, State
from tests.compiler.conftest import RunStored

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
HIDDEN, FEATURES = 4, 3


def recurrent(
    kind: str = "LSTM", time: str = "T", rows: str = "N", *, both: bool = False, states: bool = True
) -> onnx.ModelProto:
    """A recurrent layer as exporters write it: layout 0, and states with layers and directions in front."""
    directions, lstm = 1 + both, kind == "LSTM"
    given_ = [f"float[{time},{rows},{FEATURES}] x"]
    last = f"float[{directions},{rows},{HIDDEN}]"
    given_ += [f"{last} h0"] * states + [f"{last} c0"] * (states and lstm)
    out = [f"float[{time},{directions},{rows},{HIDDEN}] y", f"{last} hN"] + [f"{last} cN"] * lstm
    way = 'direction="bidirectional"' if both else 'direction="forward"'
    model: onnx.ModelProto = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g ({", ".join(given_)}) => ({", ".join(out)}) {{
            y, hN{", cN" * lstm} = {kind}<hidden_size={HIDDEN}, {way}>
                (x, w, r{", , , h0" * states}{", c0" * (states and lstm)})
        }}"""
    )
    random = np.random.default_rng(4)
    for name, columns in (("w", FEATURES), ("r", HIDDEN)):
        weight = random.standard_normal((directions, GATES[kind] * HIDDEN, columns)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    return model


def graph(text: str) -> onnx.ModelProto:
    model: onnx.ModelProto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    return model


def compiled(model: onnx.ModelProto, store: Store, folder: Path, **options: Any) -> Compiled:
    onnx.save_model(model, folder / "m.onnx")
    return compile_file(folder / "m.onnx", "m", store, **{"most": {}, **options})


def axes_of(manifest: Manifest) -> dict[str, int]:
    return {each.name: each.rows_axis for each in (*manifest.inputs, *manifest.outputs)}


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("kind", [*GATES])
def test_recurrent_layers_are_batched_by_their_second_axis(
    kind: str, states: bool, both: bool, store: Store, tmp_path: Path, run_stored: RunStored
) -> None:
    model = recurrent(kind, both=both, states=states)
    manifest = compiled(model, store, tmp_path, batch_sizes=(1, 2, 4), most={"T": 32}).manifest
    assert not manifest.whole
    assert (manifest.batch_sizes, manifest.unshared) == ((1, 2, 4), "")
    assert {name: axis for name, axis in axes_of(manifest).items() if name != "y"} == dict.fromkeys(
        [name for name in axes_of(manifest) if name != "y"], 1
    )
    assert axes_of(manifest)["y"] == 2
    assert [each.name for each in manifest.symbols] == ["T"]
    stock, random = onnxruntime.InferenceSession(tmp_path / "m.onnx"), np.random.default_rng(5)
    for rows, length in ((1, 5), (2, 1), (4, 32)):
        arrays = [
            random.standard_normal(each.at((length,)).with_rows(rows)).astype(np.float32)
            for each in manifest.inputs
        ]
        expected = stock.run(None, dict(zip([each.name for each in manifest.inputs], arrays, strict=True)))
        in_front = [
            np.ascontiguousarray(np.moveaxis(array, each.rows_axis, 0))
            for array, each in zip(arrays, manifest.inputs, strict=True)
        ]
        found = run_stored(store, manifest, in_front, (length,))
        for array, wanted, each in zip(found, expected, manifest.outputs, strict=True):
            assert each.at((length,)).with_rows(rows) == wanted.shape
            np.testing.assert_allclose(np.moveaxis(array, 0, each.rows_axis), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("time", "rows"), [("6", "1"), ("?", "?"), ("6", "N")])
def test_the_axis_may_be_of_one_element_or_without_a_name(
    time: str, rows: str, store: Store, tmp_path: Path
) -> None:
    manifest = compiled(recurrent("GRU", time, rows), store, tmp_path, most={}).manifest
    assert axes_of(manifest) == {"x": 1, "h0": 1, "y": 2, "hN": 1}
    assert manifest.batch_sizes == (1, 2, 4, 8, 16)


def test_the_first_axis_may_be_that_of_some_tensors_alone(store: Store, tmp_path: Path) -> None:
    model = graph("g (float[N,4] x) => (float[2,N,4] y) <int64[1] zero = {0}> {"
                  " a = Unsqueeze(x, zero) b = Mul(a, a) y = Concat<axis=0>(a, b) }")  # fmt: skip
    assert axes_of(compiled(model, store, tmp_path).manifest) == {"x": 0, "y": 1}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("g (float[T,N,3] x) => (float[T,N,3] y) { a = Softmax<axis=0>(x) y = Softmax<axis=1>(a) }", "mixes"),
        ("g (float[T,4,3] x) => (float[4,3] y) { y = ReduceSum<keepdims=0>(x, zero) }", "fixed above 1"),
        ("g (float[N,S,3] x) => (float[N,S,3] y) { y = Softmax<axis=0>(x) }", "named as rows"),
        ("g (float[1,S,3] x) => (float[S,3] y) { y = Squeeze(x, zero) }", "one in front"),
    ],
)
def test_no_other_axis_is_taken_for_the_rows(text: str, why: str, store: Store, tmp_path: Path) -> None:
    model = graph(text)
    if "zero" in text:
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0], np.int64), "zero"))
    assert find_row_axes(model, {}, {}) is None, why
    manifest = compiled(model, store, tmp_path, most={}).manifest
    assert {*axes_of(manifest).values()} == {0}
    assert manifest.batch_sizes == (1,)


def test_a_dimension_with_a_limit_is_none_of_rows(store: Store, tmp_path: Path) -> None:
    manifest = compiled(recurrent("RNN"), store, tmp_path, most={"N": 64, "T": 16}).manifest
    assert manifest.whole
    assert {each.name: each.limit for each in manifest.symbols} == {"T": 16, "N": 64}


def test_what_is_to_be_served_whole_has_no_rows(store: Store, tmp_path: Path) -> None:
    opened = compiled(recurrent("RNN"), store, tmp_path, whole=True, most={"T": 8}).manifest
    assert (opened.whole, opened.batch_sizes) == (True, (1,))
    assert {each.name for each in opened.symbols} == {"T", "N"}
    fixed = compiled(recurrent("RNN", "6", "1"), store, tmp_path, whole=True).manifest
    assert fixed.whole


def test_states_of_sequences_keep_their_rows_in_front_unless_clients_see_them(
    store: Store, tmp_path: Path
) -> None:
    states = (State("h0", "hN", shown=True), State("c0", "cN"))
    described = Described(Sequencing(states))
    manifest = compiled(recurrent("LSTM"), store, tmp_path, described=described, most={"T": 8}).manifest
    assert axes_of(manifest) == {"x": 1, "h0": 1, "c0": 0, "y": 2, "hN": 1, "cN": 0}


def test_an_axis_that_a_tensor_does_not_have_is_found_in_an_altered_manifest(
    store: Store, tmp_path: Path
) -> None:
    manifest = compiled(recurrent("RNN", "6"), store, tmp_path, batch_sizes=(1,)).manifest
    (x, *others) = manifest.inputs
    altered = msgspec.structs.replace(manifest, inputs=(msgspec.structs.replace(x, rows_axis=3), *others))
    assert altered.problems() == ["x can't have its rows as axis 3"]


def test_shapes_that_are_given_with_rows_in_front_are_not_read_otherwise(
    store: Store, tmp_path: Path
) -> None:
    manifest = compiled(recurrent("RNN", states=False), store, tmp_path, shapes={"x": (1, 6, 3)}).manifest
    assert manifest.whole


@given(st.permutations(range(4)), st.integers(0, 3), st.integers(0, 3), st.integers(0, 99))
def test_a_moved_model_computes_the_same_with_rows_in_front(
    order: list[int], into: int, out: int, seed: int
) -> None:
    shape = (2, 3, 4, 5)
    node = helper.make_node("Transpose", ["x"], ["y"], perm=order)
    value = helper.make_tensor_value_info
    made = helper.make_graph(
        [node],
        "g",
        [value("x", TensorProto.FLOAT, shape)],
        [value("y", TensorProto.FLOAT, [shape[axis] for axis in order])],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = np.random.default_rng(seed).random(shape).astype(np.float32)
    (expected,) = StockSession(model.SerializeToString()).run([x])
    move_rows(model, RowAxes({"x": Place(into, 4)}, {"y": Place(out, 4)}))
    onnx.checker.check_model(model, full_check=True)
    (found,) = StockSession(model.SerializeToString()).run([np.ascontiguousarray(np.moveaxis(x, into, 0))])
    np.testing.assert_array_equal(np.moveaxis(found, 0, out), expected)
