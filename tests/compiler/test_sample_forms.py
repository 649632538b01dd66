"""Models that run on few values: samples of several forms are tried, or are the operator's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from mainspring.compiler.artifact.arrays import tiled
from mainspring.compiler.artifact.errors import CompileError, ValuesError
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import Compiled, compile_file
from mainspring.compiler.sizes.sample_forms import NOTHING, Described, with_samples

TRITONS = """g (string[N,16] INPUT0, string[N,16] INPUT1) => (string[N,16] OUTPUT0, string[N,16] OUTPUT1) {
    a = Cast<to=6>(INPUT0)
    b = Cast<to=6>(INPUT1)
    s = Add(a, b)
    d = Sub(a, b)
    OUTPUT0 = Cast<to=8>(s)
    OUTPUT1 = Cast<to=8>(d)
}"""
NUMBER = "g (string[N,2] x) => (float[N,2] y) { y = Cast<to=1>(x) }"
CATEGORIES = """g (string[N,2] x) => (float[N,2,2] y) {
    y = ai.onnx.ml.OneHotEncoder<cats_strings=["p","q"], zeros=0>(x)
}"""
ONE_PLACE = "g (float[N,1] x, int64[N,1] i) => (float[N,1] y) { y = GatherElements<axis=1>(x, i) }"
FLOATS_AS_PLACES = """g (float[N,2] x) => (float[N,2] y) <float[3] list={1.0,2.0,3.0}> {
    i = Cast<to=7>(x)
    y = Gather(list, i)
}"""
LENGTHS = """g (float[4,N] x, int64[N] n) => (float[4,N] y) {
    y = ReverseSequence<batch_axis=1, time_axis=0>(x, n)
}"""
PLACES = "g (int64[N] i, float[V] x) => (float[N] y) { y = Gather(x, i) }"
SORTED = """g (int64[3] x) => (float[M] y) <int64[1] zero={0}, int64[1] one={1}, int64[1] two={2}> {
    a = Slice(x, one, two)
    b = Slice(x, zero, one)
    m = Sub(a, b)
    y = ConstantOfShape(m)
}"""
YEARS = """g (int64[N,1] year) => (float[N,1] y) <int64 first={1990}, float[3] list={1.0,2.0,3.0}> {
    i = Sub(year, first)
    y = Gather(list, i)
}"""
NEVER = """g (float[N,2] x) => (float[N,2] y) <int64 far={9}, float[2] list={1.0,2.0}> {
    i = Cast<to=7>(x)
    n = Mul(i, i)
    p = Add(n, far)
    y = Gather<axis=0>(list, p)
}"""


def made(text: str, folder: Path, said: Described = NOTHING) -> Compiled:
    head = '<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>\n'
    path = folder / "model.onnx"
    path.write_bytes(onnx.parser.parse_model(head + text).SerializeToString())
    return compile_file(path, "m", Store(folder / "store"), text_bytes=32, described=said)


@pytest.mark.parametrize(
    "text",
    [TRITONS, NUMBER, CATEGORIES, ONE_PLACE, FLOATS_AS_PLACES, LENGTHS],
    ids=["two", "one", "known", "place", "floats", "lengths"],
)
def test_it_is_served_with_many_rows(text: str, tmp_path: Path) -> None:
    compiled = made(text, tmp_path)
    assert compiled.manifest.batch_sizes == (1, 2, 4, 8, 16)


def test_indices_of_another_input_have_lengths_of_their_own(tmp_path: Path, run_stored: Any) -> None:
    manifest = made(PLACES, tmp_path).manifest
    assert manifest.whole
    assert [symbol.name for symbol in manifest.symbols] == ["N", "V"]
    x, i = np.arange(5, dtype=np.float32)[None], np.array([[4, 0, 2]])
    (y,) = run_stored(Store(tmp_path / "store"), manifest, [i, x], sizes=(3, 5))
    assert y.tolist() == [[4.0, 0.0, 2.0]]


def test_sorted_numbers_are_found_and_others_said_to_be_wrong(tmp_path: Path, run_stored: Any) -> None:
    manifest = made(SORTED, tmp_path).manifest
    assert (manifest.verified, manifest.whole) == (True, True)
    (y,) = run_stored(Store(tmp_path / "store"), manifest, [np.array([[2, 5, 5]])])
    assert y.shape == (1, 3)
    with pytest.raises(ValuesError):
        run_stored(Store(tmp_path / "store"), manifest, [np.array([[5, 2, 2]])])


def test_numbers_of_a_range_of_their_own_need_a_sample_or_the_operators_word(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"--sample FILE.npz"):
        made(YEARS, tmp_path)
    assert made(YEARS, tmp_path, Described(samples={"year": np.array([[1990], [1992]])})).manifest.verified
    assert not made(YEARS, tmp_path, NOTHING._replace(unverified=True)).manifest.verified


def test_it_answers_as_tritons_examples_ask(tmp_path: Path, run_stored: Any) -> None:
    manifest = made(TRITONS, tmp_path).manifest
    first = np.array([[str(number).encode() for number in range(16)]])
    ones = np.full((1, 16), b"1")
    total, rest = run_stored(Store(tmp_path / "store"), manifest, [first, ones])
    assert [int(text) for text in total[0]] == [*range(1, 17)]
    assert [int(text) for text in rest[0]] == [*range(-1, 15)]


def test_what_runs_on_no_zeros_has_a_sample_to_begin_with(tmp_path: Path) -> None:
    compiled = made(NUMBER, tmp_path)
    info = Store(tmp_path / "store").executable_info(compiled.manifest)
    (row,) = info.sample
    assert np.frombuffer(row.data, "S32").reshape(row.shape).astype(float).shape == (1, 2)


def test_the_operators_samples_come_first(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=np.array([["1", "2.5"], ["-3", "1e3"]]))
    said = with_samples(NOTHING, tmp_path / "rows.npz")
    compiled = made(NUMBER, tmp_path, said)
    assert compiled.manifest.batch_sizes == (1, 2, 4, 8, 16)
    assert f" --sample {tmp_path / 'rows.npz'}" in compiled.manifest.source.options


@pytest.mark.parametrize(
    ("sample", "why"),
    [
        ({"z": np.zeros(2)}, "a sample is of 'z', and the model has the inputs x"),
        ({"x": np.array(["1"])}, ""),
        ({"x": np.array([[["1"]]])}, "has the shape [1, 1, 1], and a row of the input has [2]"),
        ({"x": np.zeros((1, 2))}, "the sample of input 'x' is float64, and the input S32"),
        ({"x": np.array(["", "b"])}, "stock ONNX Runtime can't run the model"),
    ],
)
def test_samples_that_do_not_fit_are_refused_by_name(
    sample: dict[str, Any], why: str, tmp_path: Path
) -> None:
    if not why:
        assert made(NUMBER, tmp_path, Described(samples=sample)).manifest.batch_sizes[-1] == 16
        return
    with pytest.raises(CompileError) as caught:
        made(NUMBER, tmp_path, Described(samples=sample))
    assert why in str(caught.value)


def test_where_no_form_runs_the_text_says_what_helps(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"--sample FILE.npz.*model_warmup"):
        made(NEVER, tmp_path)


def test_a_file_that_holds_no_arrays_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.npz").write_bytes(b"nothing")
    with pytest.raises(CompileError, match=r"the samples .*rows.npz can't be read .*numpy.savez"):
        with_samples(NOTHING, tmp_path / "rows.npz")


@pytest.mark.parametrize("shape", [(1, 2), (3, 5), (2, 0)])
def test_a_sample_is_repeated_and_cut_along_each_axis(shape: tuple[int, ...]) -> None:
    array = np.arange(6).reshape(2, 3)
    found = tiled(array, shape)
    assert found.shape == shape
    assert all(found[row, column] == array[row % 2, column % 3] for row, column in np.ndindex(shape))
