"""States with rows behind another axis: in front in the artifact, so that sequences share executions."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

from mainspring.compiler.artifact.manifest import Manifest
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import Compiled, compile_file
from mainspring.compiler.rows.row_axes import put_rows_first
from mainspring.compiler.sizes.sample_forms import Described
from mainspring.messages.sequencing import Sequencing, State
from tests.compiler.conftest import RunStored

STATE = State("h", "h_out")


def layered(rows: str = "N", state: str = "N") -> onnx.ModelProto:
    """Two layers' states, of which the first is what the second begins with."""
    model: onnx.ModelProto = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[{rows},6] x, float[2,{state},5] h) => (float[{rows},5] y, float[2,{state},5] h_out)
        <int64[1] zero = {{0}}, int64[1] one = {{1}}> {{
            a = Gather(h, zero) b = Gather(h, one) i = MatMul(x, w) u = Unsqueeze(i, zero)
            p = Add(u, a) q = Tanh(p) r = Add(q, b) s = Sigmoid(r)
            h_out = Concat<axis=0>(q, s) y = Squeeze(s, zero)
        }}"""
    )
    weight = np.random.default_rng(1).standard_normal((6, 5)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return model


def mixing() -> onnx.ModelProto:
    """A state that follows from those of all rows."""
    model: onnx.ModelProto = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[N,5] x, float[2,N,5] h) => (float[N,5] y, float[2,N,5] h_out) {
            y = Neg(x) m = ReduceMean<axes=[1]>(h) h_out = Sub(h, m)
        }"""
    )
    return model


def compiled(model: onnx.ModelProto, store: Store, folder: Path, state: State = STATE) -> Compiled:
    onnx.save_model(model, folder / "m.onnx")
    described = Described(Sequencing((state,)))
    return compile_file(folder / "m.onnx", "m", store, (1, 2, 4), most={}, described=described)


def rows_first(manifest: Manifest) -> bool:
    return not manifest.whole and [each.shape for each in manifest.inputs] == [(6,), (2, 5)]


@pytest.mark.parametrize(
    "model", [layered(), layered("?", "?"), layered("1", "1")], ids=["named", "unnamed", "a batch of 1"]
)
def test_sequences_share_executions(
    model: onnx.ModelProto, store: Store, run_stored: RunStored, tmp_path: Path
) -> None:
    manifest = compiled(model, store, tmp_path).manifest
    assert rows_first(manifest)
    assert (manifest.batch_sizes, manifest.unshared, manifest.symbols) == ((1, 2, 4), "", ())
    assert manifest.outputs[1].shape == (2, 5)
    random = np.random.default_rng(2)
    x = random.standard_normal((3, 6)).astype(np.float32)
    h = random.standard_normal((3, 2, 5)).astype(np.float32)
    y, h_out = run_stored(store, manifest, [x, h])
    stock = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    for row in range(3):
        expected = stock.run(None, {"x": x[row : row + 1], "h": h[row][:, None]})
        np.testing.assert_allclose(y[row], expected[0][0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(h_out[row], expected[1][:, 0], rtol=1e-5, atol=1e-6)


def test_what_mixes_rows_runs_one_at_a_time(store: Store, tmp_path: Path) -> None:
    manifest = compiled(mixing(), store, tmp_path).manifest
    assert manifest.batch_sizes == (1,)
    assert "reduces over the batch" in manifest.unshared


@pytest.mark.parametrize(
    ("model", "state", "shapes"),
    [
        (layered(), msgspec.structs.replace(STATE, shown=True), ()),
        (layered(), msgspec.structs.replace(STATE, dims=(2, 1, 5)), ()),
        (layered(), STATE, ("h",)),
        (layered("N", "M"), STATE, ()),
        (layered("2", "2"), STATE, ()),
    ],
    ids=["shown", "begins as in the file", "given", "another name", "two axes of that size"],
)
def test_a_layout_that_is_seen_or_not_known_stays(
    model: onnx.ModelProto, state: State, shapes: tuple[str, ...]
) -> None:
    before = model.SerializeToString()
    assert not put_rows_first(model, Sequencing((state,)), shapes)
    assert model.SerializeToString() == before


def test_without_a_state_clients_see_the_layout_of_the_file(store: Store, tmp_path: Path) -> None:
    model = layered()
    assert not put_rows_first(model, None, ())
    onnx.save_model(model, tmp_path / "m.onnx")
    manifest = compile_file(tmp_path / "m.onnx", "m", store, (1, 2), most={}).manifest
    assert [each.with_rows(3) for each in manifest.inputs] == [(3, 6), (2, 3, 5)]
    assert [each.with_rows(3) for each in manifest.outputs] == [(3, 5), (2, 3, 5)]


def test_a_model_that_does_not_run_with_rows_in_front_is_served_whole(store: Store, tmp_path: Path) -> None:
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[N,5] x, float[2,N,5] h)
        => (float[N,5] y, float[2,N,5] h_out) <int64[3] shape = {2, 1, 5}> {
            y = Neg(x) r = Reshape(h, shape) h_out = Tanh(r)
        }"""
    )
    found = compiled(model, store, tmp_path)
    assert found.manifest.whole
    assert found.whole_because
