"""Requests that are drawn fit the served model and the file, and come with ONNX Runtime's answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mainspring.experiments.wild.drawing import (
    ROWS,
    SHAPES,
    STRANGERS,
    Case,
    Cases,
    ServedTensor,
    Task,
    Undrawable,
    draw,
    draw_values,
    wanted_rows,
)
from mainspring.experiments.wild.reference import Reference
from tests.made_models import Made, save


def drawn(
    folder: Path,
    graph: str,
    inputs: Mapping[str, tuple[str, tuple[int, ...]]],
    most_rows: int,
    weights: dict[str, Any] | None = None,
    **options: Any,
) -> Cases:
    path = folder / "model.onnx"
    save(Made("test", graph, weights or {}), path)
    served = tuple(ServedTensor(name, *each) for name, each in inputs.items())
    task = Task(str(path), served, most_rows, options.pop("dims", {}), options.pop("values", {}))
    return draw(task._replace(**options), folder)


def shapes(cases: list[Case], name: str = "x") -> list[tuple[int, ...]]:
    return [case.inputs[name].shape for case in cases]


def test_rows_are_few_and_the_most() -> None:
    assert wanted_rows(16) == [*ROWS, 16]
    assert wanted_rows(2) == [1, 2]
    assert wanted_rows(1) == [1]
    assert wanted_rows(0) == [0]


def test_fixed_shapes_are_asked_with_each_number_of_rows(tmp_path: Path) -> None:
    graph = "g (float[N,8] x) => (float[N,8] y) { y = Neg(x) }"
    cases = drawn(tmp_path, graph, {"x": ("FP32", (-1, 8))}, 16)
    assert shapes(cases.alone) == [(1, 8), (2, 8), (3, 8), (16, 8)]
    assert len(cases.strangers) == STRANGERS
    for case in cases.alone:
        np.testing.assert_array_equal(case.expected["y"], -case.inputs["x"])


def test_open_dimensions_of_one_name_have_one_length(tmp_path: Path) -> None:
    graph = """g (float[N,S] x, float[N,S] z, float[N,R] o) => (float[N,S] y, float[N,R] p) {
        y = Add(x, z) p = Neg(o) }"""
    inputs = dict.fromkeys(("x", "z", "o"), ("FP32", (-1, -1)))
    cases = drawn(tmp_path, graph, inputs, 4)
    assert len(cases.alone) == SHAPES
    assert shapes(cases.alone) == shapes(cases.alone, "z")
    assert shapes(cases.alone) != shapes(cases.alone, "o")
    lengths = {shape[1] for shape in shapes(cases.alone + cases.strangers)}
    assert len(lengths) > SHAPES
    assert {shape[0] for shape in shapes(cases.alone)} == {1, 2, 3, 4}


def test_lengths_that_the_file_does_not_take_are_drawn_again(tmp_path: Path) -> None:
    graph = "g (float[S] x) => (float[4,K] y) { y = Reshape(x, s) }"
    weights = {"s": np.array([4, -1], np.int64)}
    cases = drawn(tmp_path, graph, {"x": ("FP32", (-1,))}, 0, weights)
    assert all(shape[0] % 4 == 0 for shape in shapes(cases.alone))
    with pytest.raises(Undrawable, match="ran no inputs"):
        drawn(tmp_path, graph, {"x": ("FP32", (-1,))}, 0, weights, dims={"S": (3, 5)})


def test_integers_read_the_whole_table_and_no_further(tmp_path: Path) -> None:
    graph = "g (int64[N,6] x) => (float[N,6,2] y) { y = Gather(table, x) }"
    cases = drawn(tmp_path, graph, {"x": ("INT64", (-1, 6))}, 2, {"table": (100, 2)})
    assert max(case.inputs["x"].max() for case in cases.alone) == 99
    given = drawn(tmp_path, graph, {"x": ("INT64", (-1, 6))}, 2, {"table": (100, 2)}, values={"x": (7, 8)})
    assert {int(each) for case in given.strangers for each in case.inputs["x"].flat} == {7, 8}


def test_a_fixed_batch_is_run_row_by_row(tmp_path: Path) -> None:
    save(Made("test", "g (float[1,4] x) => (float[1,4] y) { y = Abs(x) }"), tmp_path / "model.onnx")
    reference = Reference(tmp_path / "model.onnx", tmp_path)
    x = -np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(reference.run_rows({"x": x}, 3)["y"], -x)


def test_bfloat16_is_wider_outside_of_the_model(tmp_path: Path) -> None:
    graph = "g (bfloat16[N,3] x) => (bfloat16[N,3] y) { f = Cast<to=1>(x) n = Neg(f) y = Cast<to=16>(n) }"
    (case, *_) = drawn(tmp_path, graph, {"x": ("BF16", (-1, 3))}, 2).alone
    assert case.inputs["x"].dtype == np.float32
    np.testing.assert_array_equal(case.expected["y"], -case.inputs["x"])


def test_a_zipmap_is_a_row_for_each_map(tmp_path: Path) -> None:
    graph = """g (float[N,2] x) => (seq(map(int64, float)) y) {
        y = ai.onnx.ml.ZipMap<classlabels_int64s=[3,8]>(x) }"""
    save(Made("test", graph, domains=("ai.onnx.ml:1",)), tmp_path / "model.onnx")
    x = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    found = Reference(tmp_path / "model.onnx", tmp_path).run({"x": x})["y"]
    np.testing.assert_array_equal(found, x, strict=True)


def test_what_is_given_is_not_drawn_and_can_silence_random_numbers(tmp_path: Path) -> None:
    graph = """g (float[M,3] x, float[2] scales) => (float[M,3] y) {
        two = Constant<value_ints=[1, 1]>() noise, shift = Split(scales, two)
        n = RandomNormalLike(x) m = Mul(n, noise) s = Add(x, m) y = Add(s, shift) }"""
    inputs = {"x": ("FP32", (-1, 3)), "scales": ("FP32", (2,))}
    with pytest.raises(Undrawable, match="differ from run to run"):
        drawn(tmp_path, graph, inputs, 0)
    for case in drawn(tmp_path, graph, inputs, 0, given={"scales": (0.0, 5.0)}).alone:
        np.testing.assert_array_equal(case.inputs["scales"], np.array([0, 5], np.float32), strict=True)
        np.testing.assert_array_equal(case.expected["y"], case.inputs["x"] + np.float32(5))


def test_what_has_no_steady_answer_is_not_drawn(tmp_path: Path) -> None:
    graph = "g (float[2,3] x) => (float[2,3] y) { y = RandomNormalLike(x) }"
    with pytest.raises(Undrawable, match="differ from run to run"):
        drawn(tmp_path, graph, {"x": ("FP32", (2, 3))}, 0)


@pytest.mark.parametrize(
    "datatype", ["UINT8", "INT8", "INT32", "UINT64", "BOOL", "FP16", "FP32", "FP64", "BF16"]
)
def test_values_have_the_datatype_and_the_shape(datatype: str) -> None:
    random = np.random.default_rng(0)
    for shape in [(), (0,), (2, 3)]:
        array = draw_values(random, datatype, shape, 1_000)
        assert isinstance(array, np.ndarray)
        assert array.shape == shape
    names = {"BOOL": "bool", "FP16": "float16", "FP64": "float64"}
    assert array.dtype == names.get(datatype, "float32" if "F" in datatype else datatype.lower())


def test_texts_are_drawn_for_bytes() -> None:
    texts = draw_values(np.random.default_rng(0), "BYTES", (20,), 2)
    assert {type(text) for text in texts} == {str}
    assert len({*texts}) > 3
