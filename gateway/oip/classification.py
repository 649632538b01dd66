"""The highest values of an output instead of the output: Triton's classification extension."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def classify(rows: NDArray[Any], count: int) -> list[list[bytes]]:
    """Return for each row its ``count`` highest values, the highest first, each as ``value:index``.

    ``rows`` has any shape behind its first axis; a row of fewer values gives all of them. Of equal values
    the first comes first. Floats are written with six decimals, as Triton does.
    """
    flat = rows.reshape(len(rows), -1)
    if flat.dtype == np.bool_:
        flat = flat.astype(np.uint8)
    order = np.argsort(-flat if flat.dtype.kind == "f" else ~flat, axis=1, kind="stable")[:, :count]
    text = "{:.6f}:{}" if flat.dtype.kind == "f" else "{}:{}"
    return [
        [text.format(flat[row, index], index).encode() for index in indices]
        for row, indices in enumerate(order)
    ]
