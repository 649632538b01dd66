"""How far outputs are off, in what is allowed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mainspring.compiler.artifact.manifest import FP16, FP32, TF32
from mainspring.compiler.choosing.tolerances import HALF_TOLERANCE, Tolerance, in_tolerances, tolerance_of


def test_each_element_is_allowed_a_share_of_itself_and_of_the_largest() -> None:
    expected = np.array([1.0, -4.0, 0.0], np.float32)
    allowed = Tolerance(0.5, 0.25)
    for place, tolerated in enumerate((1.5, 3.0, 1.0)):
        found = expected.copy()
        found[place] += 2 * tolerated
        assert in_tolerances(found, expected, allowed) == pytest.approx(2)
    assert in_tolerances(expected, expected, allowed) == 0


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_is_no_number_is_beyond_any_tolerance(wrong: float) -> None:
    expected = np.array([1.0, 2.0], np.float32)
    assert in_tolerances(np.array([1.0, wrong], np.float32), expected, Tolerance(1, 1)) == math.inf
    same = np.array([1.0, wrong], np.float32)
    assert in_tolerances(same, same, Tolerance(1, 1)) == 0


def test_integers_may_not_differ_and_half_floats_by_more() -> None:
    whole = np.array([1, 1000])
    assert in_tolerances(np.add(whole, [0, 1]), whole, tolerance_of(FP16)) == math.inf
    assert in_tolerances(whole, whole, tolerance_of(FP16)) == 0
    half = np.array([1.0], np.float16)
    off = in_tolerances(half * np.float16(1 + HALF_TOLERANCE), half, tolerance_of(FP32))
    assert off == pytest.approx(0.5, rel=0.05)


def test_rounded_products_are_allowed_more() -> None:
    expected = np.linspace(-1, 1, 9, dtype=np.float32)
    found = expected * np.float32(1.005)
    assert in_tolerances(found, expected, tolerance_of(FP32)) > 1
    for precision in (TF32, FP16):
        assert in_tolerances(found, expected, tolerance_of(precision)) < 1
