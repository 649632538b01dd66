"""Python numbers become the model's own type, or are refused in a sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mainspring.client.arrays import cast_plain, is_plain


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
