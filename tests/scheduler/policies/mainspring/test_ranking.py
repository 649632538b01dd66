"""When a model's requests count as unlike, and how long the scale is then.

`tests/scheduler/policies/test_batching.py` has what follows.
"""

from __future__ import annotations

import pytest

from mainspring.cluster.models import Model
from mainspring.scheduler.policies.mainspring.constants import UNLIKE_REQUESTS, UNLIKE_ROWS_BATCHES
from mainspring.scheduler.policies.mainspring.ranking import Ranking
from mainspring.scheduler.policies.notes import model_note
from tests.cluster import made
from tests.scheduler.hand import MS, Hand, spec


def unlike_after(*requests: tuple[int, float | None]) -> int:
    """Return for how many more requests a model's count as unlike after some of (rows, SLO in ms)."""
    model, ranking = Model(spec("m"), 1), Ranking(pads=True)
    for id_, (rows, slo_ms) in enumerate(requests):
        arrived_ns = 1_000 * id_
        due_ns = None if slo_ms is None else arrived_ns + int(slo_ms * MS)
        ranking.asked(made.request(id_, model, rows, arrived_ns, due_ns), model_note(model))
    return model_note(model).unlike


def test_requests_are_alike_but_for_other_rows_or_other_times() -> None:
    assert not unlike_after((2, 100.0))
    assert not unlike_after((2, 100.0), (2, 97.0), (2, 103.0), (2, None))
    assert unlike_after((2, 100.0), (1, 100.0)) == UNLIKE_REQUESTS
    assert unlike_after((2, 100.0), (2, 50.0)) == UNLIKE_REQUESTS
    assert unlike_after((2, 100.0), (2, 107.0)) == UNLIKE_REQUESTS


def test_a_single_one_counts_for_a_while() -> None:
    like = [(1, 100.0)] * (UNLIKE_REQUESTS - 1)
    assert unlike_after((1, 100.0), (1, 10.0), (1, 100.0), *like) == 1
    assert not unlike_after((1, 100.0), (1, 10.0), (1, 100.0), *like, (1, 100.0))


@pytest.mark.parametrize("unlike", ["rows", "time"])
def test_the_scale_stays_short_where_requests_are_unlike_in_rows(unlike: str) -> None:
    hand = Hand(spec("m"), policy="mainspring")  # type: ignore[arg-type]
    hand.warm("m")
    placement = hand.scheduler.cluster.models["m"].placements["w0"]
    ranking = Ranking(pads=True)
    for id_ in range(200):
        rows, slo_ms = (1 + id_ % 2, 100) if unlike == "rows" else (1, 100 + 100 * (id_ % 2))
        ranking.asked(
            made.request(id_, placement.model, rows, id_, id_ + slo_ms * MS), model_note(placement.model)
        )
        ranking.ran(placement, 10 * MS, dropped=0.3)
    short = ranking.scale_ns <= 1.3 * UNLIKE_ROWS_BATCHES * 10 * MS
    assert short == (unlike == "rows")
