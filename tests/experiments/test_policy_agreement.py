"""Published policies against an independent simulation of them: another language, the same scenarios.

Its rates at 1.0 times the capacity, each given as a bound and the part of it that was served.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.experiments.policies.cell import Job, play_cell

PROFILES = Path(__file__).resolve().parents[2] / "../shared/profiles/clockwork_table1.csv"
CLOCKWORK = {
    "A": 773 * 0.91,
    "C": 4755 * 0.87,
    "G": 3243 * 0.81,
}
"""Requests per second in time under appendix B."""

pytestmark = pytest.mark.skipif(not PROFILES.exists(), reason=f"there is no table of profiles at {PROFILES}")


def goodput(scenario: str, policy: str, seconds: float = 12.0, warm_up: float = 1.0) -> float:
    job = Job(
        scenario=scenario,
        policy=policy,
        load=1.0,
        seed=0,
        seconds=seconds,
        warm_up=warm_up,
        most_requests=12_000,
        table=str(PROFILES),
        bounds=None,
    )
    return play_cell(job).goodput


@pytest.mark.parametrize("scenario", CLOCKWORK)
def test_clockwork_serves_what_it_serves_elsewhere(scenario: str) -> None:
    assert goodput(scenario, "clockwork") == pytest.approx(CLOCKWORK[scenario], rel=0.02)


@pytest.mark.parametrize(
    ("scenario", "symphony", "nexus"), [("C", 4755 * 0.94, 4755 * 0.85), ("G", 3243 * 0.83, 3243 * 0.60)]
)
def test_symphony_and_nexus_are_on_the_sides_of_it_where_they_are_elsewhere(
    scenario: str, symphony: float, nexus: float
) -> None:
    """They are described there in a few words only, and come within a twentieth all the same."""
    deferred, planned = goodput(scenario, "symphony"), goodput(scenario, "nexus", warm_up=2.5)
    assert deferred == pytest.approx(symphony, rel=0.05)
    assert planned == pytest.approx(nexus, rel=0.05)
    assert planned < CLOCKWORK[scenario] < deferred
