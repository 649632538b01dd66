"""The curve of early refusals, and its knee."""

from __future__ import annotations

import pytest

from mainspring.experiments.policies.cell import Job
from mainspring.experiments.policies.refusals import Refusals, distances, means_of


def found(wrongly: float, scenario: str, median: float, cost: float, seed: int = 0) -> Refusals:
    job = Job(
        scenario=scenario,
        policy=f"mainspring@refuse_wrongly={wrongly:g}",
        load=1.5,
        seed=seed,
        seconds=1.0,
        warm_up=0.0,
        most_requests=100,
        table="",
        bounds=None,
    )
    return Refusals(
        job=job,
        last=0.9,
        goodput=0.9 - cost,
        refused=10,
        times=[0.0, median, 1.0],
        last_time=1.0,
        early=0.5,
        answered=0.5,
    )


def test_the_knee_is_the_way_nearest_to_no_cost_at_the_earliest_refusals() -> None:
    each = [
        *(found(0.1, name, 0.9, 0.0) for name in ("A", "B")),
        *(
            found(0.2, name, median, 0.01, seed)
            for name in ("A", "B")
            for seed, median in ((0, 0.4), (1, 0.6))
        ),
        *(found(0.4, name, 0.4, 0.04) for name in ("A", "B")),
    ]
    means = means_of(each)
    assert means["mainspring@refuse_wrongly=0.2", 1.5]["A"][0] == pytest.approx(0.5)
    far = [far for _, far in sorted(distances(means).items())]
    # Medians of 0.4 to 1.0 are scaled to 0 to 1, and costs of up to 4 points.
    assert far == pytest.approx([5 / 6, (1 / 6**2 + 1 / 4**2) ** 0.5, 1.0])


def test_ways_without_any_cost_or_refusal_have_a_distance_too() -> None:
    one = found(0.1, "A", 1.0, -0.01)
    assert distances(means_of([one])) == {("mainspring@refuse_wrongly=0.1", 1.5): 0.0}
    assert distances(means_of([])) == {}
