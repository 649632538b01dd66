"""Tensors of texts and of bfloat16: which models compile, and that a run computes what ONNX Runtime does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper, parser

from mainspring.compiler.artifact.arrays import as_slots, as_texts
from mainspring.compiler.artifact.errors import CompileError, ExecutableError, ValuesError
from mainspring.compiler.artifact.manifest import CUDA, TVM
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import Compiled, compile_file
from mainspring.compiler.program.compiled import Target
from mainspring.compiler.report import describe_artifact
from mainspring.compiler.sizes.samples import known_texts
from mainspring.messages.model import MOST_TEXT_BYTES, TEXT_BYTES

Run = Callable[..., list[Any]]

SLOT = f"S{TEXT_BYTES}"
ENCODER = 'ai.onnx.ml.LabelEncoder<keys_strings=["no","yes"], values_int64s=[0,1], default_int64=7>'
NAMES = (
    'ai.onnx.ml.LabelEncoder<keys_int64s=[0,1,2], values_strings=["Katze","dog","\xc3\xa9toile"], '
    'default_string="none">'
)


def build(graph: str, opset: int = 20, **weights: Any) -> onnx.ModelProto:
    domains = f'"" : {opset}, "ai.onnx.ml" : 2'
    model = parser.parse_model(f"<ir_version: 9, opset_import: [{domains}]>\n{graph}")
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()
    )
    return model


def compiled(store: Store, folder: Path, model: onnx.ModelProto) -> Compiled:
    onnx.save_model(model, folder / "m.onnx")
    return compile_file(folder / "m.onnx", "m", store, (1, 2, 4), most={})


def stock(model: onnx.ModelProto, **inputs: Any) -> list[Any]:
    return list(onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs))


def test_texts_in(store: Store, run_stored: Run, tmp_path: Path) -> None:
    model = build(f"g (string[N,2] x) => (int64[N,2] y) {{ y = {ENCODER}(x) }}")
    spec = compiled(store, tmp_path, model).manifest.spec()
    assert (spec.inputs[0].dtype, spec.batch_sizes, spec.unshared) == (SLOT, (1, 2, 4), "")
    texts = np.array([["yes", "no"], ["", "Grüße"]], object)
    (found,) = run_stored(store, store.manifest("m"), [as_slots(texts)])
    np.testing.assert_array_equal(found, stock(model, x=texts)[0])


def test_texts_out(store: Store, run_stored: Run, tmp_path: Path) -> None:
    graph = f"g (float[N,3] x) => (string[N] y) {{ i = ArgMax<axis=1, keepdims=0>(x) y = {NAMES}(i) }}"
    model = build(graph)
    manifest = compiled(store, tmp_path, model).manifest
    assert [(each.dtype, each.shape) for each in manifest.outputs] == [(SLOT, ())]
    x = np.eye(3, dtype=np.float32)
    (found,) = run_stored(store, manifest, [x[:2]])
    assert as_texts(found).tolist() == stock(model, x=x[:2])[0].tolist() == ["Katze", "dog"]


@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize(
    ("target", "what"),
    [(Target(engine=TVM), "the engine tvm"), (Target(device=CUDA), "the device cuda")],
    ids=["tvm", "cuda"],
)
def test_texts_are_refused_by_name_for_what_has_only_numbers(
    store: Store, tmp_path: Path, side: str, target: Target, what: str
) -> None:
    graphs = {
        "input": f"g (string[N,2] x) => (int64[N,2] y) {{ y = {ENCODER}(x) }}",
        "output": f"g (int64[N,2] x) => (string[N,2] y) {{ y = {NAMES}(x) }}",
    }
    onnx.save_model(build(graphs[side]), tmp_path / "m.onnx")
    name = {"input": "x", "output": "y"}[side]
    told = rf"^{side} '{name}' has strings, and {what} is for numbers: .*`--engine onnxruntime --device cpu`$"
    with pytest.raises(CompileError, match=told):
        compile_file(tmp_path / "m.onnx", "m", store, (1, 2), target=target, most={})
    assert not store.names()


def test_texts_beside_weights_in_pages(store: Store, run_stored: Run, tmp_path: Path) -> None:
    graph = f"""g (string[N,4] x) => (float[N,8] y, string[N,4] z) {{
        i = {ENCODER}(x) f = Cast<to=1>(i) y = MatMul(f, w) z = Identity(x) }}"""
    model = build(graph, w=np.random.default_rng(1).standard_normal((4, 8), np.float32))
    manifest = compiled(store, tmp_path, model).manifest
    assert [tensor.shape for tensor in manifest.tensors] == [(4, 8)]
    texts = np.array([["yes", "no", "x", "yes"]], object)
    found = run_stored(store, manifest, [as_slots(texts)])
    np.testing.assert_allclose(found[0], stock(model, x=texts)[0], rtol=1e-6)
    assert as_texts(found[1]).tolist() == texts.tolist()


@pytest.mark.parametrize(
    ("x", "z", "says"),
    [
        (b"\xff", b"a", "element 0 is not text in UTF-8"),
        (b"a" * TEXT_BYTES, b"b", "output 0 has 1,025 bytes; at most 1,024 fit"),
    ],
)
def test_what_is_no_text_or_too_long_is_that_requests_error(
    store: Store, run_stored: Run, tmp_path: Path, x: bytes, z: bytes, says: str
) -> None:
    model = build("g (string[N] x, string[N] z) => (string[N] y) { y = StringConcat(x, z) }")
    manifest = compiled(store, tmp_path, model).manifest
    with pytest.raises(ValuesError, match=says):
        run_stored(store, manifest, [np.array([x]), np.array([z])])
    (found,) = run_stored(store, manifest, [np.array([b"a"]), np.array([b"b"])])
    assert found.tolist() == [b"ab"]


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ("g (string[N] x) => (string[N] y) { y = StringConcat(x, x) }", [b"aa", b"bb", b"aabaab"]),
        (
            'g (string[N] x) => (bool[N] y) { y = RegexFullMatch<pattern="a+b?">(x) }',
            [True, False, True],
        ),
    ],
    ids=["StringConcat", "RegexFullMatch"],
)
def test_operators_on_texts_keep_rows_apart(
    store: Store, run_stored: Run, tmp_path: Path, graph: str, expected: list[Any]
) -> None:
    manifest = compiled(store, tmp_path, build(graph)).manifest
    assert (manifest.batch_sizes, manifest.unshared) == ((1, 2, 4), "")
    (found,) = run_stored(store, manifest, [np.array([b"a", b"b", b"aab"], SLOT)])
    assert found.tolist() == expected


def test_outputs_of_texts_may_vary(store: Store, run_stored: Run, tmp_path: Path) -> None:
    model = build("g (string[6] x, bool[6] c) => (string[K] y) { y = Compress<axis=0>(x, c) }")
    manifest = compiled(store, tmp_path, model).manifest
    assert [(each.shape, each.varies) for each in manifest.outputs] == [((6,), (0,))]
    texts = np.array([b"a", b"b", b"", b"d", b"ee", b"f"], SLOT)
    chosen = np.array([True, False, True, False, True, False])
    (found,) = run_stored(store, manifest, [texts[None], chosen[None]])
    assert found[0].tolist() == [b"a", b"", b"ee"]


def test_samples_are_of_texts_that_the_graph_knows() -> None:
    model = build(f"g (string[N,2] x) => (int64[N,2] y) {{ y = {ENCODER}(x) }}")
    assert known_texts(model.graph) == [b"no", b"yes"]


def test_bfloat16_in_and_out(store: Store, run_stored: Run, tmp_path: Path) -> None:
    graph = """g (bfloat16[N,16] x) => (bfloat16[N,8] y, float[N,8] z) {
        f = Cast<to=1>(x) z = MatMul(f, w) y = Cast<to=16>(z) }"""
    model = build(graph, w=np.random.default_rng(1).standard_normal((16, 8), np.float32))
    manifest = compiled(store, tmp_path, model).manifest
    assert [each.dtype for each in (*manifest.inputs, *manifest.outputs)] == [
        *("bfloat16", "bfloat16", "float32")
    ]
    assert manifest.batch_sizes == (1, 2, 4)
    x = np.random.default_rng(2).standard_normal((2, 16), np.float32).astype(ml_dtypes.bfloat16)
    narrow, wide = run_stored(store, manifest, [x])
    weights = numpy_helper.to_array(model.graph.initializer[0])
    np.testing.assert_allclose(wide, x.astype(np.float32) @ weights, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(narrow, wide.astype(ml_dtypes.bfloat16))


def test_texts_may_be_as_long_as_the_model_says(store: Store, run_stored: Run, tmp_path: Path) -> None:
    onnx.save_model(build("g (string[N] x) => (string[N] y) { y = StringConcat(x, x) }"), tmp_path / "m.onnx")
    made = {}
    for name, most in (("usual", TEXT_BYTES), ("long", 4_000), ("short", 9)):
        done = compile_file(tmp_path / "m.onnx", name, store, (1, 2), most={}, text_bytes=most)
        made[name] = store.manifest(name)
        assert {each.dtype for each in (*made[name].inputs, *made[name].outputs)} == {f"S{most}"}
        assert f"texts of at most {most:,} bytes" in describe_artifact(done)
        assert (f" --text-bytes {most}" in made[name].source.options) == (most != TEXT_BYTES)
    assert len({each.executable for each in made.values()}) == 3, "each lies otherwise in memory"
    (found,) = run_stored(store, made["long"], [np.array([b"a" * 2_000])])
    assert found.tolist() == [b"a" * 4_000]
    (found,) = run_stored(store, made["usual"], [np.array([b"ab"])])
    assert found.tolist() == [b"abab"]
    with pytest.raises(ExecutableError, match=r"10 bytes; at most 9 fit, which .* --text-bytes` sets"):
        run_stored(store, made["short"], [np.array([b"abcde"])])
    for wrong in (0, MOST_TEXT_BYTES + 1):
        with pytest.raises(CompileError, match="give 1 to 1,048,576"):
            compile_file(tmp_path / "m.onnx", "wrong", store, most={}, text_bytes=wrong)
