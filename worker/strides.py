"""Copies between the layout of IO memory, rows in front, and that of clients who have them elsewhere.

Only for tensors with `TensorSpec.rows_axis`; what has its rows in front is copied as bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mainspring.messages.model import TensorSpec, item_bytes
from mainspring.worker.engine import Bytes

_UNSIGNED = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
"""Types that numpy copies by the element; whatever the numbers are, their bytes stay as they are."""


def to_rows(rows: Bytes, tensor: TensorSpec, frame: Any) -> None:
    """Copy a client's tensor to its rows in IO memory, where a row has the tensor's shape."""
    count = rows.size // tensor.row_bytes
    given = np.frombuffer(frame, _item(tensor)).reshape(tensor.with_rows(count))
    rows.view(_item(tensor)).reshape(count, *tensor.shape)[...] = np.moveaxis(given, tensor.rows_axis, 0)


def from_rows(rows: Bytes, tensor: TensorSpec) -> Bytes:
    """Return the tensor that a client gets of rows in IO memory: these themselves, where it is the same."""
    if rows.size <= tensor.row_bytes:
        return rows
    found = rows.view(_item(tensor)).reshape(-1, *tensor.shape)
    return np.ascontiguousarray(np.moveaxis(found, 0, tensor.rows_axis)).reshape(-1).view(np.uint8)


def _item(tensor: TensorSpec) -> np.dtype[Any]:
    size = item_bytes(tensor.dtype)
    return _UNSIGNED.get(size) or np.dtype((np.void, size))
