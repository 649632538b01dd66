"""Initializers that a request may override: which they are, and that others stay constants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from mainspring.compiler.artifact.errors import CompileError, NoRows
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.compiler.reading.defaults import take_defaults
from mainspring.compiler.sizes.sample_forms import Described

VECTOR = "g (float[N,4] x, float[4] hidden) => (float[N,4] y) { y = Add(x, hidden) }"
SCALAR = "g (float[N,4] x, float scale) => (float[N,4] y) { y = Mul(x, scale) }"
LAYER = "g (float[N,4] x, float[4,3] w) => (float[N,3] y) { y = MatMul(x, w) }"
AXES = "g (float[N,4] x, int64[1] axes) => (float[N,1] y) { y = ReduceSum(x, axes) }"
BESIDE = "g (float[N,4] x, float[4,3] w) => (float[N,3] y) { z = MatMul(x, w) y = Mul(z, z2) }"


def model(text: str, ir: int = 8, **initializers: Any) -> onnx.ModelProto:
    found = onnx.parser.parse_model(f'<ir_version: {ir}, opset_import: ["" : 17]>\n{text}')
    for name, array in initializers.items():
        found.graph.initializer.append(numpy_helper.from_array(np.asarray(array, np.float32), name))
    return found


@pytest.mark.parametrize(
    ("made", "names"),
    [
        (model(VECTOR, hidden=[1, 2, 3, 4]), ["hidden"]),
        (model(SCALAR, scale=3), ["scale"]),
        (model(VECTOR, ir=3, hidden=[1, 2, 3, 4]), []),
        (model(LAYER, w=np.ones((4, 3))), []),
        (model(AXES, axes=[1]), []),
        (model(BESIDE, w=np.ones((4, 3)), z2=np.ones(3)), ["w"]),
        (model("g (float[N,4] x) => (float[N,4] y) { y = Add(x, b) }", b=[1, 2, 3, 4]), []),
    ],
    ids=["vector", "scalar", "IR 3", "weight of a layer", "axes", "beside others", "not listed"],
)
def test_which_are_defaults(made: onnx.ModelProto, names: list[str]) -> None:
    found = take_defaults(made)
    assert [*found] == names
    assert not {*names} & {tensor.name for tensor in made.graph.initializer}


def test_a_name_of_the_operators_is_one_whatever_it_is_for() -> None:
    assert [*take_defaults(model(LAYER, w=np.ones((4, 3))), ["w"])] == ["w"]
    with pytest.raises(CompileError, match="'x' is said to be optional, and the model has no default"):
        take_defaults(model(LAYER, w=np.ones((4, 3))), ["x"])


@pytest.mark.parametrize(
    ("text", "name", "value"), [(VECTOR, "hidden", [1, 2, 3, 4]), (SCALAR, "scale", 3.0)]
)
def test_it_is_an_input_with_a_default_of_a_model_without_rows(
    text: str, name: str, value: Any, tmp_path: Path, run_stored: Any
) -> None:
    (tmp_path / "m.onnx").write_bytes(model(text, **{name: value}).SerializeToString())
    store = Store(tmp_path / "store")
    manifest = compile_file(tmp_path / "m.onnx", "m", store).manifest
    assert manifest.whole
    x, given = manifest.inputs
    assert x.default is None
    assert np.array_equal(np.frombuffer(given.default or b"", np.float32), np.ravel(np.float32(value)))
    rows = np.ones((1, 5, 4), np.float32)
    (found,) = run_stored(store, manifest, [rows, np.full((1, *given.shape), 7, np.float32)], (5,))
    assert np.array_equal(found[0], np.full((5, 4), 8.0 if name == "hidden" else 7.0))


def test_with_rows_it_is_a_constant_unless_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(model(VECTOR, hidden=[1, 2, 3, 4]).SerializeToString())
    manifest = compile_file(tmp_path / "m.onnx", "m", Store(tmp_path / "store"), [1, 4], whole=False).manifest
    assert [each.name for each in manifest.inputs] == ["x"]
    with pytest.raises(NoRows, match="'hidden' has a default that each request may override"):
        compile_file(
            *(tmp_path / "m.onnx", "n", Store(tmp_path / "store"), [1, 4]),
            whole=False,
            described=Described(optional=("hidden",)),
        )
