"""What the comparison of ensembles and of clients that ask for each member computes for itself."""

from __future__ import annotations

import pytest

from mainspring.experiments.ensembles import play


@pytest.mark.parametrize("known", [True, False])
def test_at_a_small_load_every_member_of_every_request_is_in_time(known: bool) -> None:
    found = play(3, 0.1, known, 0.3, 1)
    assert found.answered == 1.0
    assert found.in_vain == 0.0
    assert found.in_time % 3 == 0
    assert found.in_time > 30


def test_under_overload_no_member_is_begun_in_vain_where_the_scheduler_knows_the_ensemble() -> None:
    known, alone = (play(2, 1.5, each, 0.3, 1) for each in (True, False))
    assert known.in_vain == 0.0
    assert alone.in_vain > 0.5
    assert known.in_time > 1.5 * alone.in_time
