"""Numbers that no scheduler could work with are refused, whoever makes the configuration."""

from __future__ import annotations

import math

import msgspec
import pytest

from mainspring.cluster.rolling import HIGHEST_RANK
from mainspring.scheduler.config import MAY_BE_ZERO, SchedulerConfig

NUMBERS = [
    name
    for name, value in msgspec.structs.asdict(SchedulerConfig()).items()
    if isinstance(value, int | float) and not isinstance(value, bool)
]


@pytest.mark.parametrize("field", NUMBERS)
@pytest.mark.parametrize("value", [-1, -0.5, math.nan, math.inf])
def test_a_number_out_of_its_range_is_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"^{field} is {value}; it must be "):
        SchedulerConfig(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("field", NUMBERS)
def test_zero_is_a_number_only_where_it_can_work(field: str) -> None:
    if field in MAY_BE_ZERO:
        assert getattr(SchedulerConfig(**{field: 0}), field) == 0  # type: ignore[arg-type]
    else:
        with pytest.raises(ValueError, match=f"{field} is 0; it must be greater than 0"):
            SchedulerConfig(**{field: 0})  # type: ignore[arg-type]


def test_no_estimate_is_set_below_the_median() -> None:
    assert SchedulerConfig(estimate_rank=HIGHEST_RANK).estimate_rank == 5
    with pytest.raises(ValueError, match="estimate_rank is 6; it must be 1 to 5"):
        SchedulerConfig(estimate_rank=6)
