"""Random rows to try a model with: seeded, distinct, and of values that the model accepts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from mainspring.compiler.errors import CompileError
from mainspring.messages.model import TensorSpec

Arrays = list[npt.NDArray[np.generic]]

_SEED = 20201104
_LARGE = 1000
"""Integers below this are tried first: more of an embedding is read."""
_SMALL = 2
"""Integers below this are tried where larger ones are refused: masks, token types, small tables."""


def sample_rows(inputs: Sequence[TensorSpec], rows: int, accepts: Callable[[Arrays], object]) -> Arrays:
    """Return ``rows`` random rows of every input.

    ``accepts`` runs the model on some rows and raises `CompileError` if it can't: integers may be indices,
    and how large they may be is nowhere written, so large ones are tried for one input after the other.
    """
    limits = [_SMALL] * len(inputs)
    accepts([array[:1] for array in _draw(inputs, limits, rows)])
    for index, spec in enumerate(inputs):
        if np.dtype(spec.dtype).kind in "iu" and "mask" not in spec.name:
            limits[index] = min(_LARGE, np.iinfo(spec.dtype).max + 1)
            try:
                accepts(_draw(inputs, limits, rows))
            except CompileError:
                limits[index] = _SMALL
    return _draw(inputs, limits, rows)


def _draw(inputs: Sequence[TensorSpec], limits: Sequence[int], rows: int) -> Arrays:
    random = np.random.default_rng(_SEED)
    arrays: Arrays = []
    for spec, limit in zip(inputs, limits, strict=True):
        dtype, shape = np.dtype(spec.dtype), (rows, *spec.shape)
        if dtype.kind == "f":
            arrays.append(random.standard_normal(shape, np.float32).astype(dtype))
        else:
            arrays.append(random.integers(0, _SMALL if dtype.kind == "b" else limit, shape).astype(dtype))
    return arrays
