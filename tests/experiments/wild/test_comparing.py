"""When an answer is what ONNX Runtime gives."""

from __future__ import annotations

import numpy as np
import pytest

from mainspring.experiments.wild.reference import compare


def floats(*values: float) -> dict[str, np.ndarray]:
    return {"y": np.array(values, np.float32)}


def test_small_differences_of_floats_are_told_and_allowed() -> None:
    found = compare(floats(1.0, 100.0005), floats(1.0, 100.0))
    assert found.same
    assert found.largest == pytest.approx(5e-4, rel=0.1)
    assert not compare(floats(1.0, 100.0005), floats(1.0, 100.0), share=1e-3).same


def test_an_element_outside_of_the_tolerance_is_named() -> None:
    problem = compare(floats(1.0, 2.0, 3.0), floats(1.0, 2.5, 3.0)).problem
    assert "output 'y'" in problem
    assert "element [1] is 2.0 instead of 2.5" in problem


@pytest.mark.parametrize(("ours", "theirs"), [(np.nan, 1.0), (1.0, np.nan), (np.inf, 1.0), (np.inf, -np.inf)])
def test_nan_and_infinity_equal_only_themselves(ours: float, theirs: float) -> None:
    assert not compare(floats(ours, 1.0), floats(theirs, 1.0)).same
    assert compare(floats(ours, 1.0), floats(ours, 1.0)).same


def test_integers_and_texts_have_to_be_equal() -> None:
    ids = {"y": np.array([1, 2], np.int64)}
    assert compare(ids, ids).same
    assert "2 instead of 3" in compare(ids, {"y": np.array([1, 3], np.int64)}).problem
    texts = {"y": np.array([b"cat", "Grüße".encode()], object)}
    assert compare(texts, {"y": np.array(["cat", "Grüße"], object)}).same
    assert not compare(texts, {"y": np.array(["cat", "dog"], object)}).same


def test_shape_type_and_name_have_to_be_the_same() -> None:
    assert "shape [1] instead of [2]" in compare(floats(1.0), floats(1.0, 2.0)).problem
    assert "float64" in compare({"y": np.ones(1)}, floats(1.0)).problem
    assert "no output 'y'" in compare({"z": np.ones(1)}, floats(1.0)).problem
    assert compare({"y": np.zeros((2, 0))}, {"y": np.zeros((2, 0))}).same


def test_an_axis_of_one_row_is_told_and_allowed_of_models_that_take_batches_alone() -> None:
    row, scalar = {"y": np.ones(1)}, {"y": np.ones(())}
    assert "shape [1] instead of []" in compare(row, scalar).problem
    assert (compare(row, scalar, by_rows=True).same, compare(row, scalar, by_rows=True).with_rows) == (
        True,
        "y",
    )
    assert compare(row, row, by_rows=True).with_rows == ""
    assert "shape [2] instead of []" in compare({"y": np.ones(2)}, scalar, by_rows=True).problem
    assert not compare({"y": np.zeros(1)}, scalar, by_rows=True).same


def test_16_bits_are_compared_more_loosely_also_in_wider_arrays() -> None:
    close = floats(1.01, 2.0), floats(1.0, 2.0)
    assert not compare(*close).same
    assert compare(*close, half=frozenset({"y"})).same
    narrow, expected = ({"y": each["y"].astype(np.float16)} for each in close)
    assert compare(narrow, expected).same
