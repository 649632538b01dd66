"""Python numbers become the model's own type, or are refused in a sentence."""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mainspring.client.result import cast_plain, is_plain, to_tensors
from mainspring.messages.model import array_dtype


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        ([[1, 2.5]], "float32", [[1.0, 2.5]]),
        ([0.1], "float32", [np.float32(0.1)]),
        ([1, 2], "float16", [1.0, 2.0]),
        ([[1], [2]], "int64", [[1], [2]]),
        ([1.0, -2.0], "int8", [1, -2]),
        ([True, False], "float32", [1.0, 0.0]),
        ([1, 0], "bool", [True, False]),
        (7, "uint8", 7),
        ([2**64 - 1], "uint64", [2**64 - 1]),
        ([float("nan"), float("inf")], "float32", [np.nan, np.inf]),
        ([], "int32", []),
    ],
)
def test_numbers_that_fit(value: Any, dtype: str, expected: Any) -> None:
    assert is_plain(value)
    found = cast_plain("x", value, dtype)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.asarray(expected, dtype))


@pytest.mark.parametrize(
    ("value", "dtype", "says"),
    [
        ([1.5], "int32", "holds 1.5, which int32"),
        ([300], "uint8", "holds 300"),
        ([-1], "uint16", "holds -1"),
        ([float("nan")], "int64", "holds nan"),
        ([2], "bool", "holds 2, which bool"),
        ([1e39], "float32", r"holds 1e\+39"),
        ([70_000], "float16", "holds 70000"),
        ([2**24 + 1], "float32", "holds 16777217"),
        ([2**64], "uint64", "takes uint64"),
        (["a"], "float32", "array of numbers"),
        ([[1], [2, 3]], "float32", "numpy array"),
    ],
)
def test_numbers_that_do_not(value: Any, dtype: str, says: str) -> None:
    with pytest.raises(TypeError, match=says) as caught:
        cast_plain("x", value, dtype)
    assert "'x'" in str(caught.value)


def test_arrays_say_their_type_themselves() -> None:
    assert not is_plain(np.zeros(3))
    assert not is_plain(np.float32(1))


@pytest.mark.parametrize(
    "value",
    [
        ["a", "Grüße"],
        [b"a", "Grüße".encode()],
        ("a", "Grüße"),
        np.array(["a", "Grüße"]),
        np.array([b"a", "Grüße"], object),
        np.array([b"a", "Grüße".encode()]),
    ],
)
def test_texts_stand_in_the_models_slots(value: Any) -> None:
    assert is_plain(value)
    (header,), (frame,) = to_tensors({"x": value}, {"x": "S8"})
    assert (header.dtype, header.shape) == ("S8", (2,))
    assert bytes(frame) == b"a".ljust(8, b"\0") + "Grüße".encode().ljust(8, b"\0")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (["a" * 9], "has 9 bytes; at most 8 fit, which .* --text-bytes"),
        ([b"a\0"], "ends with a zero byte"),
        ([1], "holds an int; the model takes texts"),
        (np.array([1.5], object), "holds a float"),
    ],
)
def test_what_is_no_text_for_the_model_is_refused(value: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        to_tensors({"x": value}, {"x": "S8"})


def test_texts_for_numbers_are_refused() -> None:
    with pytest.raises(TypeError, match="takes float32; pass a numpy array of numbers"):
        to_tensors({"x": ["a"]}, {"x": "float32"})
    with pytest.raises(TypeError, match="array of object"):
        to_tensors({"x": np.array(["a"], object)})


def test_bfloat16_is_that_of_ml_dtypes() -> None:
    array = np.array([1.5, -2], ml_dtypes.bfloat16)
    (header,), (frame,) = to_tensors({"x": array})
    assert (header.dtype, bytes(frame)) == ("bfloat16", array.tobytes())
    (header,), (frame,) = to_tensors({"x": [1.5, -2]}, {"x": "bfloat16"})
    assert (header.dtype, bytes(frame)) == ("bfloat16", array.tobytes())
    assert array_dtype("bfloat16") == array.dtype


def test_bfloat16_without_ml_dtypes_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(TypeError, match="install the package ml_dtypes"):
        array_dtype("bfloat16")
