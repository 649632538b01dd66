"""The parameter ``priority``, as standard clients send it."""

from __future__ import annotations

import pytest

from mainspring.gateway.oip.datatypes import Unfit
from mainspring.gateway.oip.parameters import priority_of


@pytest.mark.parametrize(
    ("given", "priority"),
    [(None, 0), (0, 0), (1, 1), (7, 7), ("3", 3), ((1 << 64) - 1, (1 << 31) - 1), ("9" * 50, (1 << 31) - 1)],
)
def test_whole_numbers_are_priorities(given: object, priority: int) -> None:
    assert priority_of(given) == priority


@pytest.mark.parametrize("given", [-1, 1.5, True, "", "-1", "high", "²", [1], {}])
def test_anything_else_is_refused_by_name(given: object) -> None:
    with pytest.raises(Unfit, match="priority"):
        priority_of(given)
