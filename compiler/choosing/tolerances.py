"""Amounts by which what an artifact computes may differ from what stock ONNX Runtime does."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mainspring.compiler.artifact.manifest import FP16, TF32

RELATIVE_TOLERANCE = 1e-3
"""Part of each output element by which it may differ."""
SCALE_TOLERANCE = 1e-4
"""Part of the largest magnitude in the output tensor: elements near zero are sums that cancel."""
FLOOR = 2.4e-7
"""A difference that is never too large: two steps of a 32-bit float at 1.

A sigmoid or a softmax is as exact as that, however close to 0 its outputs are for random inputs.
"""
HALF_TOLERANCE = 2e-2
"""Both tolerances for 16-bit floats, which have three decimal digits."""
ROUNDED_TOLERANCES = {TF32: 1e-2, FP16: 2e-2}
"""Both tolerances of a precision that rounds factors.

Each factor is off by up to 2 ** -11 of itself, each product by twice that; errors of the many terms of a sum
cancel in part, and those of successive layers add up. FP16 also loses factors below 6e-5.
"""

Array = npt.NDArray[np.generic]


class Tolerance(NamedTuple):
    """The amount by which an output element may differ."""

    relative: float
    """Part of the element."""
    scale: float
    """Part of the largest magnitude in the output tensor."""
    floor: float = 0.0
    """A difference that is never too large."""


def tolerance_of(precision: str) -> Tolerance:
    """Return the tolerance of outputs in 32-bit floats or wider, for one of `manifest.PRECISIONS`."""
    rounded = ROUNDED_TOLERANCES.get(precision)
    return Tolerance(RELATIVE_TOLERANCE, SCALE_TOLERANCE) if rounded is None else Tolerance(rounded, rounded)


def in_tolerances(found: Array, expected: Array, allowed: Tolerance) -> float:
    """Return the largest difference of an element, as a multiple of what is allowed there.

    Infinite where no difference is allowed and there is one.
    """
    difference, tolerance = differences(found, expected, allowed)
    off = np.where(difference > 0, np.inf, 0.0)
    np.divide(difference, tolerance, out=off, where=tolerance > 0)
    return float(off.max(initial=0.0))


def differences(
    found: Array, expected: Array, allowed: Tolerance
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return differences and tolerances; equal infinities, and NaNs in the same place, do not differ.

    Integers and texts may not differ at all.
    """
    if expected.dtype.kind == "S":
        difference = (found != expected).astype(np.float64)
        return difference, np.zeros_like(difference)
    half = expected.dtype.itemsize == 2 and expected.dtype.kind not in "iu"
    if expected.dtype.kind != "f" and not half:
        difference = np.abs(found.astype(np.float64) - expected.astype(np.float64))
        return difference, np.zeros_like(difference)
    if half:
        allowed = Tolerance(HALF_TOLERANCE, HALF_TOLERANCE, allowed.floor)
    ours, theirs = found.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        difference = np.abs(ours - theirs)
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    difference = np.where(same, 0.0, np.nan_to_num(difference, nan=np.inf, posinf=np.inf))
    magnitude = np.abs(np.where(np.isfinite(theirs), theirs, 0.0))
    scale = float(magnitude.max(initial=0.0))
    tolerance = allowed.relative * magnitude + allowed.scale * scale
    return difference, np.maximum(tolerance, allowed.floor)
