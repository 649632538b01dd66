"""Outputs whose shape follows from values: which axes vary, how large they can be, and their answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper, parser

from mainspring.compiler.artifact.errors import CompileError, ValuesError
from mainspring.compiler.artifact.manifest import Source
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import Compiled, compile_file, compile_model
from mainspring.compiler.reading.normalise import normalise
from mainspring.compiler.sizes.samples import largest_scale, value_limits
from mainspring.compiler.sizes.varying import MEASURED_BYTES, MOST_BYTES, Varying, capped, room
from mainspring.messages.model import TensorSpec

Run = Callable[..., list[Any]]

INT64 = np.int64
SUPPRESSION = {
    "most": np.array([5], INT64),
    "overlap": np.array([0.5], np.float32),
    "score": np.array([0.1], np.float32),
}


def build(graph: str, **weights: Any) -> onnx.ModelProto:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{graph}')
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()
    )
    return model


def bounds_of(model: onnx.ModelProto, **sizes: int) -> list[dict[int, int | None]]:
    return Varying(normalise(model, whole=True, symbols=True)).most(sizes)


@pytest.mark.parametrize(
    ("graph", "weights", "bounds"),
    [
        ("g (float[4,6] x) => (int64[2,K] y) { y = NonZero(x) }", {}, {1: 24}),
        ("g (float[4,6] x) => (float[U] y) { y = Unique(x) }", {}, {0: 24}),
        ("g (float[4,6] x) => (float[U,6] y) { y = Unique<axis=0>(x) }", {}, {0: 4}),
        ("g (float[4,6] x, bool[4] c) => (float[K,6] y) { y = Compress<axis=0>(x, c) }", {}, {0: 4}),
        ("g (float[4,6] x, int64[1] k) => (float[4,K] y) { y, i = TopK(x, k) }", {}, {1: 6}),
        (
            "g (float[2,20,4] b, float[2,3,20] s) => (int64[K,3] y) {"
            " y = NonMaxSuppression(b, s, most, overlap, score) }",
            SUPPRESSION,
            {0: 2 * 3 * 5},
        ),
        # What only grows with its input keeps the bound, on other axes too.
        (
            "g (float[4,6] x) => (float[2,K] y) { n = NonZero(x) t = Transpose<perm=[1,0]>(n)"
            " f = Cast<to=1>(t) y = Transpose<perm=[1,0]>(f) }",
            {},
            {1: 24},
        ),
        # A length that is computed from one that varies may be anything.
        (
            "g (float[4,6] x) => (float[A] y) { n = NonZero(x) s = Shape<start=1>(n) r = Sub(k, s)"
            " y = ConstantOfShape(r) }",
            {"k": np.array([30], INT64)},
            None,
        ),
    ],
)
def test_bounds_follow_from_shapes(
    graph: str, weights: dict[str, Any], bounds: dict[int, int | None] | None
) -> None:
    (found,) = bounds_of(build(graph, **weights))
    if bounds is None:
        assert set(found.values()) == {None}
    else:
        assert found == bounds


def test_what_follows_from_shapes_alone_does_not_vary() -> None:
    """PyTorch's exporter writes arange as the indices of ones of a computed shape."""
    graph = "g (float[A,6] x) => (int64[1,A] y) { s = Shape<end=1>(x) o = ConstantOfShape(s) y = NonZero(o) }"
    model = normalise(build(graph), whole=True, symbols=True)
    assert not Varying(model)
    graph = "g (float[4,6] x) => (float y) { n = NonZero(x) f = Cast<to=1>(n) y = ReduceSum<keepdims=0>(f) }"
    assert bounds_of(build(graph)) == [{}]


def test_room_is_the_bound_or_a_part_of_a_limit() -> None:
    assert room((3, 4), {1: 100}, 4) == (3, 100)
    assert room((4, 4), {1: None}, 4) == (4, MEASURED_BYTES // 16)
    assert room((1, 10**6), {1: None}, 4) == (1, 4 * 10**6)
    wide = (2, MOST_BYTES)
    assert capped(wide, (2, 10), (1,), 1) == (2, MOST_BYTES // 2)
    assert capped(wide, (2, MOST_BYTES - 1), (1,), 1) == (2, MOST_BYTES - 1)
    both = (MOST_BYTES // 4, 512)
    assert capped(both, (MOST_BYTES // 8, 2), (0, 1), 1) == (MOST_BYTES // 8, 8), "one alone is not enough"


MODELS = {
    "nonzero": "g (float[4,6] x) => (int64[2,K] y) { r = Relu(x) y = NonZero(r) }",
    "unique": "g (int64[12] x) => (int64[U] y, int64[U] c) { y, i, v, c = Unique(x) }",
    "top-k": "g (float[N,20] x, int64[1] k) => (float[N,K] v, int64[N,K] i) { v, i = TopK(x, k) }",
    "lengths": "g (float[S,6] x) => (int64[2,K] y) { y = NonZero(x) }",
}


def compiled_file(store: Store, folder: Path, model: onnx.ModelProto) -> Compiled:
    onnx.save_model(model, folder / "m.onnx")
    return compile_file(folder / "m.onnx", "m", store, (1, 2), most={})


def stock(model: onnx.ModelProto, **inputs: Any) -> list[Any]:
    return list(onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs))


@pytest.mark.parametrize("name", ["nonzero", "unique"])
def test_answers_are_as_large_as_their_values_make_them(
    store: Store, run_stored: Run, tmp_path: Path, name: str
) -> None:
    model = build(MODELS[name])
    compiled = compiled_file(store, tmp_path, model)
    spec = compiled.manifest.spec()
    assert (spec.whole, spec.batch_sizes) == (True, (1,))
    assert all(tensor.varies for tensor in spec.outputs)
    assert compiled.manifest.profiles["cpu"].spread >= 1
    random = np.random.default_rng(3)
    for scale in (0, 1, 1, 3):
        drawn = random.standard_normal((4, 6)) * scale
        x: Any = drawn.reshape(-1)[:12].astype(INT64) if name == "unique" else drawn.astype(np.float32)
        found = run_stored(store, compiled.manifest, [x[None]])
        for one, other in zip(found, stock(model, x=x), strict=True):
            np.testing.assert_array_equal(one[0], other)


def test_memory_follows_from_the_sizes_of_a_request(store: Store, run_stored: Run, tmp_path: Path) -> None:
    model = build(MODELS["lengths"])
    manifest = compiled_file(store, tmp_path, model).manifest
    spec = manifest.spec()
    assert [tensor.at((5,)).shape for tensor in spec.outputs] == [(2, 30)]
    assert spec.outputs[0].dims == ["2", f"<={6 * spec.symbols[0].limit}"]
    x = np.eye(5, 6, dtype=np.float32)
    (found,) = run_stored(store, manifest, [x[None]], (5,))
    np.testing.assert_array_equal(found[0], stock(model, x=x)[0])


def test_a_value_may_be_a_length(store: Store, run_stored: Run, tmp_path: Path) -> None:
    model = build(MODELS["top-k"])
    manifest = compiled_file(store, tmp_path, model).manifest
    assert [tensor.at((7,)).shape for tensor in manifest.outputs] == [(7, 20)] * 2
    x = np.random.default_rng(1).standard_normal((7, 20), np.float32)
    for k in (1, 3, 20):
        count = np.array([k], INT64)
        found = run_stored(store, manifest, [x[None], count[None]], (7,))
        for one, other in zip(found, stock(model, x=x, k=count), strict=True):
            np.testing.assert_array_equal(one[0], other)


def test_an_output_beyond_its_memory_is_that_requests_error(store: Store, run_stored: Run) -> None:
    model = build("g (float[6] x, int64[1] n) => (float[K] y) { y = Tile(x, n) }")
    manifest = compile_model(model, "m", store, (1,), Source("onnx", "m.onnx", whole=True)).manifest
    x = np.arange(6, dtype=np.float32)
    with pytest.raises(ValuesError, match=r"has 600,000 elements .* there is memory for 262,144"):
        run_stored(store, manifest, [x[None], np.array([[100_000]], INT64)])
    (found,) = run_stored(store, manifest, [x[None], np.array([[2]], INT64)])
    np.testing.assert_array_equal(found[0], [*x, *x])


def test_where_integers_decide_a_shape_larger_ones_are_tried_step_by_step() -> None:
    tried = []

    def run(arrays: list[np.ndarray]) -> list[np.ndarray]:
        tried.append(int(arrays[0][0]))
        return [np.zeros((1, 1 << arrays[0][0]), np.int8)]

    (limit,) = value_limits([TensorSpec("length", "int64", ())], 1, run, whole=True)
    assert max(tried) < 64, "what it makes could be as large as the memory"
    assert 8 <= limit <= 21


def test_floats_that_decide_how_much_there_is_are_drawn_no_larger_than_runs_allow(store: Store) -> None:
    """e to the 8 times a number: some thousands for 1, for 4 more than there is memory for."""
    model = build(
        "g (float[4] x) => (float[K] y) {"
        " m = ReduceMax<keepdims=0>(x) p = Mul(m, times) n = Exp(p) y = Range(zero, n, one) }",
        times=np.float32(8),
        zero=np.float32(0),
        one=np.float32(1),
    )
    (output,) = compile_model(model, "m", store, (1,), Source("onnx", "m.onnx", whole=True)).manifest.outputs
    assert output.varies
    assert output.row_bytes < 2 * MEASURED_BYTES


def test_scales_are_tried_upwards_until_a_run_takes_far_longer() -> None:
    tried: list[float] = []

    def run(scale: float, slow: float, fails: float = np.inf) -> None:
        tried.append(scale)
        if scale >= fails:
            raise CompileError("no memory")
        until = time.thread_time() + (0.1 if scale >= slow else 0.0)
        while time.thread_time() < until:
            pass

    assert largest_scale(partial(run, slow=1.0)) == 0.5
    assert tried == [0.125, 0.25, 0.5, 1.0]
    assert largest_scale(partial(run, slow=np.inf)) == 4.0
    assert largest_scale(partial(run, slow=np.inf, fails=2.0)) == 1.0
    assert largest_scale(partial(run, slow=np.inf, fails=0.0)) == 4.0


def test_the_number_of_axes_may_not_vary(store: Store) -> None:
    graph = (
        "g (float[2,1] x, bool f) => (float y) {"
        " y = If(f) <then_branch = t () => (float[2,1] a) { a = Identity(x) },"
        " else_branch = e () => (float[2] b) { b = Squeeze(x) }> }"
    )
    with pytest.raises(CompileError, match=r"'y' has \d axes for some values"):
        compile_model(build(graph), "m", store, (1,), Source("onnx", "m.onnx", whole=True))
