"""Models that run on no sample: refused, or stored unverified on the operator's word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from mainspring.compiler import report
from mainspring.compiler.artifact.errors import CompileError, ValuesError, let_go
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import Compiled, compile_file
from mainspring.compiler.program.compiled import Target
from mainspring.compiler.sizes.sample_forms import NOTHING, on_word

FORM = """g (string[N] s) => (float[N,2] y)
    <int64 one={1}, float[4,2] table={0.0,1.0,2.0,3.0,4.0,5.0,6.0,7.0}> {
    parts, n = StringSplit<delimiter="=", maxsplit=1>(s)
    number = Gather<axis=-1>(parts, one)
    i = Cast<to=7>(number)
    y = Gather<axis=0>(table, i)
}"""
"""Texts of a form of its own: ``name=2``."""
INDICES = """g (int64[3] i, int64[1] first) => (float[3,2] y)
    <int64[1] far={1000000000}, float[4,2] table={0.0,1.0,2.0,3.0,4.0,5.0,6.0,7.0}> {
    d = Sub(i, first)
    e = Sub(d, far)
    y = Gather<axis=0>(table, e)
}"""
"""Indices that must be just behind a number of another input."""
VARIES = """g (string[1] s) => (int64[D] y) <int64 zero={0}, int64 one={1}> {
    parts, n = StringSplit<delimiter="=", maxsplit=1>(s)
    number = Gather<axis=-1>(parts, one)
    most = Cast<to=7>(number)
    end = Squeeze(most)
    y = Range(zero, end, one)
}"""
NO_RANK = """g (string[1] s) => (float y) <int64 zero={0}, int64 nine={9}> {
    parts, n = StringSplit<delimiter="|">(s)
    numbers = Cast<to=7>(parts)
    tenth = Gather<axis=-1>(numbers, nine)
    all = Gather<axis=0>(numbers, zero)
    shape = Add(all, tenth)
    y = ConstantOfShape(shape)
}"""
WORD = on_word(NOTHING, unverified=True)


def made(text: str, folder: Path, *, word: bool = True, **options: Any) -> Compiled:
    head = '<ir_version: 9, opset_import: ["" : 20]>\n'
    path, model = folder / "model.onnx", onnx.parser.parse_model(head + text)
    if text is NO_RANK:
        model.graph.output[0].type.tensor_type.ClearField("shape")
    path.write_bytes(model.SerializeToString())
    said = WORD if word else NOTHING
    return compile_file(path, "m", Store(folder / "store"), text_bytes=32, described=said, **options)


@pytest.mark.parametrize("text", [FORM, INDICES])
def test_without_the_operators_word_it_is_refused_with_what_would_help(text: str, tmp_path: Path) -> None:
    with pytest.raises(CompileError) as refused:
        made(text, tmp_path, word=False)
    for remedy in ("`--sample FILE.npz`", "model_warmup", "`--unverified`", "unverified: true"):
        assert remedy in str(refused.value)


def test_texts_of_a_form_are_answered_and_others_said_to_be_wrong(tmp_path: Path, run_stored: Any) -> None:
    compiled = made(FORM, tmp_path)
    store, manifest = Store(tmp_path / "store"), compiled.manifest
    assert (manifest.verified, manifest.whole, manifest.spec().verified) == (False, True, False)
    (y,) = run_stored(store, manifest, [np.array([[b"a=3", b"b=0"]])], sizes=(2,))
    assert y.tolist() == [[[6.0, 7.0], [0.0, 1.0]]]
    for wrong in (b"a=9", b"a=b", b"none"):
        with pytest.raises(ValuesError, match="fails on these values"):
            run_stored(store, manifest, [np.array([[wrong]])], sizes=(1,))


def test_indices_of_another_input_are_answered(tmp_path: Path, run_stored: Any) -> None:
    manifest = made(INDICES, tmp_path).manifest
    first = np.array([[5]])
    (y,) = run_stored(Store(tmp_path / "store"), manifest, [first + 10**9 + np.array([[0, 3, 1]]), first])
    assert y[0, :, 0].tolist() == [0.0, 6.0, 2.0]


def test_durations_are_estimated_and_the_report_says_so(tmp_path: Path) -> None:
    compiled = made(FORM, tmp_path)
    (profile,) = compiled.manifest.profiles.values()
    assert min(profile.infer_ns.values()) > 0
    assert {*profile.shaped} == {"x".join(map(str, bucket)) for bucket in compiled.manifest.spec().buckets}
    assert report.describe_profile(compiled).startswith("estimated")
    assert report.describe_verification(compiled).startswith("unverified")
    assert " --unverified" in compiled.manifest.source.options


def test_an_output_that_the_graph_says_nothing_of_varies(tmp_path: Path, run_stored: Any) -> None:
    manifest = made(VARIES, tmp_path).manifest
    assert manifest.outputs[0].varies == (0,)
    (y,) = run_stored(Store(tmp_path / "store"), manifest, [np.array([[b"a=3"]])])
    assert y.tolist() == [[0, 1, 2]]


def test_an_output_without_a_known_number_of_axes_is_named(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="how many axes output 'y' has"):
        made(NO_RANK, tmp_path)


def test_an_estimate_is_no_measurement_for_others_of_the_executable(tmp_path: Path) -> None:
    info = Store(tmp_path / "store").executable_info(made(INDICES, tmp_path).manifest)
    assert not info.measured.infer_ns


def test_what_runs_is_verified_all_the_same(tmp_path: Path) -> None:
    assert made("g (float[N,2] x) => (float[N,2] y) { y = Relu(x) }", tmp_path).manifest.verified


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"whole": False, "batch_sizes": (1, 4)}, "served whole alone"),
        ({"target": Target(engine="tvm")}, "has to be compared"),
    ],
)
def test_what_it_can_not_be_served_by_is_said(options: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=why):
        made(FORM, tmp_path, **options)


def test_errors_that_name_each_other_are_let_go() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__context__ = second, first
    let_go(first)
