"""What tensors may hold, and how many bytes their rows take."""

from __future__ import annotations

import numpy as np
import pytest

from mainspring.messages.model import DTYPES, TensorSpec, is_dtype, slot_bytes


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "bfloat16"])
def test_rows_of_numbers_take_what_numpy_says(dtype: str) -> None:
    assert is_dtype(dtype)
    assert slot_bytes(dtype) is None
    assert TensorSpec("x", dtype, (3, 5)).row_bytes == 15 * np.dtype(dtype).itemsize


def test_rows_of_bfloat16_and_of_slots_take_what_they_hold() -> None:
    assert TensorSpec("x", "bfloat16", (3, 5)).row_bytes == 30
    assert TensorSpec("x", "S64", ()).row_bytes == slot_bytes("S64") == np.dtype("S64").itemsize
    assert TensorSpec("x", "S7", (2,)).row_bytes == 14


@pytest.mark.parametrize("dtype", ["", "S", "S0", "S-1", "S9999999999", "S4 ", "s4", "float", "object", "U4"])
def test_other_dtypes_are_none(dtype: str) -> None:
    assert not is_dtype(dtype)
    assert slot_bytes(dtype) is None
