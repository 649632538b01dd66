"""Earliest deadline first, Triton-like queues and Clipper against an independent simulation of them."""

from __future__ import annotations

import pytest

from tests.experiments.test_policy_agreement import goodput, pytestmark

__all__ = ["pytestmark"]

EDF = {
    "A": 773 * 0.59,
    "C": 4755 * 0.47,
    "G": 3243 * 0.80,
}
"""Requests per second in time at 1.0 times the capacity, as bounds and the parts of them that were served."""


@pytest.mark.parametrize("scenario", EDF)
def test_edf_serves_what_it_serves_elsewhere(scenario: str) -> None:
    assert goodput(scenario, "edf") == pytest.approx(EDF[scenario], rel=0.04)


def test_queues_with_a_time_out_serve_most_and_clipper_without_refusal_collapses() -> None:
    """There, 77 % and 7 % of the bound on average over eight scenarios."""
    assert 0.65 * 4755 < goodput("C", "fifo") < 0.85 * 4755
    assert goodput("C", "clipper") < 0.15 * 4755
