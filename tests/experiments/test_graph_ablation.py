"""What is taken out of the scheduling of graphs is out of it, and comes back."""

from __future__ import annotations

import pytest

from mainspring.experiments.graph_ablation import SLOW, WITHOUT, play, without
from mainspring.scheduler import queries
from mainspring.scheduler.queries import Queries

pytestmark = pytest.mark.skipif(
    not queries.__file__.endswith(".py"), reason="methods of compiled classes can not be replaced"
)


@pytest.mark.parametrize("part", WITHOUT)
def test_a_small_load_is_in_time_without_any_part(part: str) -> None:
    assert play("chain", 0.1, part, 0.3, 1) > 90.0


def test_without_admission_an_overload_has_less_in_time() -> None:
    whole, found = (play("vote", 2.0, part, 0.5, 0) for part in ("nothing", "admission of the whole"))
    assert 0.0 < found < whole


def test_looking_ahead_pays_where_loads_take_long() -> None:
    name, load, load_ms, slo = SLOW
    whole, found = (play(name, load, part, 8.0, 0, load_ms, slo) for part in ("nothing", "looking ahead"))
    assert found < whole - 5.0


def test_what_was_taken_out_comes_back() -> None:
    late = Queries._late
    with without("admission of the whole"):
        assert Queries._late is not late
    assert Queries._late is late
