"""The parameter ``at_least``, as clients of all kinds send it."""

from __future__ import annotations

import pytest

from mainspring.gateway.oip.datatypes import Unfit
from mainspring.gateway.oip.parameters import at_least_of


@pytest.mark.parametrize(
    ("given", "score"), [(None, 0.0), (0, 0.0), (0.75, 0.75), (3, 3.0), ("0.75", 0.75), (1e300, 1e300)]
)
def test_numbers_are_scores(given: object, score: float) -> None:
    assert at_least_of(given) == score


@pytest.mark.parametrize(
    "given", [-0.1, True, "", "high", "nan", float("nan"), float("inf"), 10**400, [1], {}, "9" * 5_000]
)
def test_anything_else_is_refused_with_what_was_said_and_what_is_right(given: object) -> None:
    with pytest.raises(
        Unfit, match=r"the parameter at_least is .*; it is a score of the family, such as 0\.75"
    ):
        at_least_of(given)
