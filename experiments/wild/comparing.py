"""Whether an answer is what ONNX Runtime gives: shapes, types, and every element within the tolerance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

RELATIVE = 1e-3
"""Part of each element by which it may differ."""
SCALE = 1e-4
"""Part of the output's largest magnitude: elements near zero are sums that cancel."""
FLOOR = 2.4e-7
"""A difference that is never too large: two steps of a 32-bit float at 1."""
HALF = 2e-2
"""Both parts for 16-bit floats."""


class Comparison(NamedTuple):
    """How an answer compares with the expected one."""

    largest: float = 0.0
    """The largest absolute difference of floats; infinity where only one of two is NaN or infinite."""
    problem: str = ""
    """What differs by more than it may, with output and element; empty if nothing does."""
    with_rows: str = ""
    """An output that has an axis of one row, which ONNX Runtime's does not have; empty if none does."""

    @property
    def same(self) -> bool:
        """Whether nothing differs by more than it may."""
        return not self.problem


def compare(
    found: Mapping[str, Any],
    expected: Mapping[str, Any],
    half: frozenset[str] = frozenset(),
    share: float = 1.0,
    *,
    by_rows: bool = False,
) -> Comparison:
    """Compare all outputs by name, allowing for this ``share`` of the tolerance.

    If ``by_rows``, the model takes batches: then each output has a first axis for the rows, also where a
    Squeeze without axes of the file takes that of one row away. Those in ``half`` were computed in 16 bits
    though their arrays have 32.
    """
    largest, with_rows = 0.0, ""
    for name, wanted in expected.items():
        right = wanted
        if name not in found:
            return Comparison(largest, f"there is no output {name!r}; there are {', '.join(found)}")
        if by_rows and found[name].shape == (1, *right.shape):
            with_rows, right = with_rows or name, right[None]
        each = _compare(found[name], right, name in half, share)
        largest = max(largest, each.largest)
        if each.problem:
            return Comparison(largest, f"output {name!r}: {each.problem}")
    return Comparison(largest, "", with_rows)


def _compare(found: Any, expected: Any, half: bool, share: float) -> Comparison:
    if found.shape != expected.shape:
        return Comparison(problem=f"shape {list(found.shape)} instead of {list(expected.shape)}")
    if expected.dtype.kind in "OUS":
        return _compare_texts(found, expected)
    if found.dtype != expected.dtype:
        return Comparison(problem=f"{found.dtype} instead of {expected.dtype}")
    if expected.dtype.kind != "f":
        wrong = np.argwhere(found != expected)
        return Comparison(problem=_at(wrong[0], found, expected)) if len(wrong) else Comparison()
    part, scale = (HALF, HALF) if half or expected.dtype.itemsize == 2 else (RELATIVE, SCALE)
    ours, theirs = found.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        difference = np.abs(ours - theirs)
    equal = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    difference = np.where(equal, 0.0, np.nan_to_num(difference, nan=np.inf))
    magnitude = np.abs(np.where(np.isfinite(theirs), theirs, 0.0))
    allowed = share * np.maximum(part * magnitude + scale * magnitude.max(initial=0.0), FLOOR)
    largest = float(difference.max(initial=0.0))
    wrong = np.argwhere(difference > allowed)
    return Comparison(largest, _at(wrong[0], found, expected) if len(wrong) else "")


def _compare_texts(found: Any, expected: Any) -> Comparison:
    pairs = zip(found.reshape(-1).tolist(), expected.reshape(-1).tolist(), strict=True)
    for index, (ours, theirs) in enumerate(pairs):
        if _encoded(ours) != _encoded(theirs):
            return Comparison(problem=f"element {index} is {ours!r} instead of {theirs!r}")
    return Comparison()


def _encoded(text: Any) -> bytes:
    return text if isinstance(text, bytes) else str(text).encode()


def _at(index: Any, found: Any, expected: Any) -> str:
    place = tuple(int(axis) for axis in index)
    return f"element {list(place)} is {found[place]} instead of {expected[place]}"
