"""Where executions spread, expecting less than the worst of the last ten serves more requests in time."""

from __future__ import annotations

from pathlib import Path

from mainspring.simulator.run import simulate
from mainspring.simulator.spec_file import read_spec
from mainspring.telemetry.report import Summary

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/noisy_core.toml"


def played(rank: int, jitter: float = 0.12, slow: float = 0.03) -> Summary:
    """Plan by estimates alone: a model that spreads so much is planned by its distribution otherwise."""
    faults = [f"faults.duration_jitter={jitter}", f"faults.slow_probability={slow}"]
    scheduler = [f"scheduler.estimate_rank={rank}", "scheduler.policy_options.distributions=false"]
    return simulate(read_spec(EXAMPLE, [*faults, *scheduler]), analyse=False).summary


def test_a_lower_estimate_serves_more_in_time_and_hardly_more_late() -> None:
    guarded, expected = played(1), played(3)
    assert expected.offered == guarded.offered > 9_000
    assert expected.goodput_share > guarded.goodput_share + 0.05
    assert expected.late < guarded.late + 0.005 * guarded.offered


def test_where_executions_are_alike_nothing_changes() -> None:
    guarded, expected = played(1, jitter=0.0003, slow=0), played(3, jitter=0.0003, slow=0)
    assert (expected.goodput, expected.rejected) == (guarded.goodput, guarded.rejected)
    assert expected.late == 0
