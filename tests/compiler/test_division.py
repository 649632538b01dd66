"""Integer divisions of values that a request sends: none ends the process, all give what numpy gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from mainspring.compiler.artifact.executable import open_executable
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.compiler.sizes.work import guard_divisions

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
LEAST = {"int64": np.iinfo(np.int64).min, "int32": np.iinfo(np.int32).min}


def parsed(graph: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEAD + graph)


def run(model: onnx.ModelProto, **inputs: Any) -> Any:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_the_least_number_divided_by_minus_one_is_itself(dtype: str) -> None:
    model = parsed(f"g ({dtype}[N] a, {dtype}[N] b) => ({dtype}[N] y) {{ y = Div(a, b) }}")
    assert guard_divisions(model)
    onnx.checker.check_model(model, full_check=True)
    a = np.array([LEAST[dtype], LEAST[dtype], 7, -7, 7, -7, 0], dtype)
    b = np.array([-1, 2, -1, -1, -2, 2, -1], dtype)
    found = run(model, a=a, b=b)
    assert found.tolist() == [LEAST[dtype], LEAST[dtype] // 2, -7, 7, -3, -3, 0]
    assert found.dtype == dtype


def test_random_numbers_are_divided_as_before() -> None:
    graph = "g (int64[N,3] a, int64[3] b) => (int64[N,3] y) { y = Div(a, b) }"
    guarded = parsed(graph)
    assert guard_divisions(guarded)
    generator = np.random.default_rng(4)
    for _ in range(50):
        a = generator.integers(-(2**40), 2**40, (5, 3))
        b = generator.choice([-5, -2, -1, 1, 2, 3, 2**33], 3)
        np.testing.assert_array_equal(run(guarded, a=a, b=b), run(parsed(graph), a=a, b=b))


@pytest.mark.parametrize(
    ("graph", "guards"),
    [
        ("g (float[N] a, float[N] b) => (float[N] y) { y = Div(a, b) }", 0),
        ("g (int8[N] a, int8[N] b) => (int8[N] y) { y = Div(a, b) }", 0),
        ("g (int64[N] a) => (int64[N] y) <int64 b = {2}> { y = Div(a, b) }", 0),
        ("g (int64[N] a) => (int64[N] y) <int64[2] b = {2, -1}> { y = Div(a, b) }", 1),
        ("g (int64[N,M] a) => (int64[2] y) { s = Shape(a) c = Neg(s) y = Div(s, c) }", 0),
        ("g (int64[N,M] a) => (int64[N,M] y) { s = Size(a) y = Div(a, s) }", 0),
        ("g (int64[N] a, int64[N] b) => (int64[N] y) { c = Add(a, b) y = Div(c, a) }", 1),
        (
            """g (int64[N] a, bool go) => (int64[N] y) { y = If(go) <
               then_branch = t () => (int64[N] u) { u = Div(a, a) },
               else_branch = e () => (int64[N] v) { v = Identity(a) }> }""",
            1,
        ),
    ],
)
def test_only_divisions_that_may_trap_are_guarded(graph: str, guards: int) -> None:
    model = parsed(graph)
    before = model.SerializeToString()
    assert guard_divisions(model) == bool(guards)
    assert (model.SerializeToString() == before) == (not guards)
    onnx.checker.check_model(model, full_check=True)


def test_a_served_model_survives_it(tmp_path: Path) -> None:
    """Without the guard this ends the test's process by SIGFPE."""
    model = parsed("g (int64[1] a, int64[1] b) => (int64[1] y) { c = Max(b, m) d = Add(c, o) y = Div(a, d) }")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([-2], np.int64), "m"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1], np.int64), "o"))
    onnx.save(model, tmp_path / "m.onnx")
    store = Store(tmp_path / "store")
    manifest = compile_file(tmp_path / "m.onnx", "m", store, whole=True).manifest
    weights = np.fromfile(store.weights_path(manifest), np.uint8)
    bound = open_executable(store, manifest).bind(
        manifest.tensors, lambda offset: weights.ctypes.data + offset
    )
    least = np.array([[LEAST["int64"]]])
    (found,) = bound.run_arrays(1, [least, np.array([[-9]])])
    np.testing.assert_array_equal(found, least)
