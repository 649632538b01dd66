"""Rows of unlike length: which of a step's run together; which sizes and rows a step is expected to have.

Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from mainspring.gateway.core.effects import Accepted
from mainspring.gateway.core.validation import Signature

Array = npt.NDArray[Any]
NEAR: Final = 8
"""Rows differ by so much, or by an eighth, if they run together."""
_WEIGHT: Final = 1 / 16
"""Weight of one request in the mean of what a step's sizes are."""


def alike(lengths: Array, most: int) -> Iterator[npt.NDArray[np.intp]]:
    """Yield the rows that run together, at most ``most`` each, the shortest first."""
    order = np.argsort(lengths, kind="stable")
    begin = 0
    for place in range(1, len(order) + 1):
        first = int(lengths[order[begin]])
        full = place == len(order) or place - begin == most
        if full or lengths[order[place]] - first > max(NEAR, first // 8):
            yield order[begin:place]
            begin = place


def cut(signature: Signature, arrays: Sequence[Array], longest: int) -> list[Array]:
    """Return a step's inputs, cut to the longest of their rows; the model's least size at the least."""
    size, found = max(longest, signature.spec.symbols[0].least), []
    for tensor, array in zip(signature.spec.inputs, arrays, strict=True):
        axes = {dim.axis + 1 for dim in tensor.open}
        found.append(array[tuple([slice(size if axis in axes else None) for axis in range(array.ndim)])])
    return found


class Expected:
    """Sizes and rows of the steps of a graph that have not begun, from those of earlier requests.

    Sizes are taken to grow with the bytes of a request's rows: a longer text has more tokens.
    """

    def __init__(self, models: Sequence[Signature]) -> None:
        self._symbols = [model.spec.symbols for model in models]
        self._per_byte: dict[int, list[float]] = {}
        self.accepted: dict[tuple[Any, ...], Accepted] = {}
        """What models said to a step's rows, by the step and the shapes of what it takes."""
        self.shares: dict[int, float] = {}
        """Rows of a step for each row of a request, in the mean, of each step that was decided."""

    def sizes(self, step: int, row_bytes: float) -> tuple[int, ...]:
        """Return the size of each symbol of a step's model; the least ones until it has run."""
        per_byte = self._per_byte.get(step)
        wanted = [each.least for each in self._symbols[step]]
        if per_byte is not None:
            wanted = [round(each * row_bytes) for each in per_byte]
        return self.ceilings(step, wanted)

    def ceilings(self, step: int, sizes: Sequence[float]) -> tuple[int, ...]:
        """Return the sizes of the bucket that these are in."""
        found = []
        for symbol, size in zip(self._symbols[step], sizes, strict=True):
            found.append(symbol.ceilings[min(bisect_left(symbol.ceilings, size), len(symbol.ceilings) - 1)])
        return tuple(found)

    def decided(self, step: int, rows: int, of: int) -> None:
        """Note that a step begins with so many rows, 0 if it falls away, for a request with ``of`` rows."""
        former = self.shares.setdefault(step, rows / of)
        self.shares[step] = former + _WEIGHT * (rows / of - former)

    def learn(self, step: int, row_bytes: float, sizes: Sequence[float]) -> None:
        """Note the mean sizes that a step has begun with."""
        given = [size / max(1.0, row_bytes) for size in sizes]
        former = self._per_byte.setdefault(step, given)
        self._per_byte[step] = [a + _WEIGHT * (b - a) for a, b in zip(former, given, strict=True)]


def row_bytes(arrays: Sequence[Array]) -> float:
    """Return how many bytes a row has, in the mean, of texts without what fills their slots."""
    found = 0.0
    for array in arrays:
        texts = array.dtype.kind == "S"
        found += float(np.char.str_len(array).sum()) / len(array) if texts else array.nbytes / len(array)
    return found
