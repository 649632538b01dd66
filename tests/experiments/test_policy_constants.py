"""What neighbours of the default policy's constants serve: which are tried, and how they are compared."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mainspring.experiments.policies import constants as command
from mainspring.experiments.policies.cell import Cell, Job
from mainspring.native import CORE, Use
from mainspring.scheduler.policies.mainspring import constants, ranking

as_python = pytest.mark.skipif(CORE.state().use is Use.COMPILED, reason="compiled constants are literals")
USUAL = Job(
    scenario="A",
    policy="mainspring",
    load=1.0,
    seed=0,
    seconds=1.0,
    warm_up=0.5,
    most_requests=100,
    table="",
    bounds=None,
)


def cell(scenario: str, load: float, changed: dict[str, float], goodput: float) -> Cell:
    job = Job(
        scenario=scenario,
        policy="mainspring",
        load=load,
        seed=0,
        seconds=1.0,
        warm_up=0.5,
        most_requests=100,
        table="",
        bounds=None,
        constants=changed,
    )
    return Cell(
        job=job,
        seconds=1.0,
        fluid=100.0,
        offered=100.0,
        goodput=goodput,
        bound=None,
        worst_tenth=0.2,
        unanswered=0,
        late=0.0,
        best_effort=0.0,
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [(6.0, (3.0, 12.0)), (0.8, (0.4, 0.9)), (0.5, (0.25, 1.0)), (1, (1, 2)), (8, (4, 16))],
)
def test_neighbours_are_half_and_twice_and_shares_stay_shares(
    value: float, expected: tuple[float, float]
) -> None:
    assert command.neighbours(value) == pytest.approx(expected)
    assert type(command.neighbours(value)[0]) is type(value)


def test_the_default_is_played_first_and_then_both_neighbours_of_each_constant() -> None:
    jobs = command.jobs(USUAL, ["CALM_SCALE"], seeds=2)
    once = 2 * len(command.CELLS)
    assert [job.constants for job in jobs] == [{}] * once + [{"CALM_SCALE": 0.1}] * once + [
        {"CALM_SCALE": 0.4}
    ] * once
    assert {(job.scenario, job.load) for job in jobs} == set(command.CELLS)


@as_python
def test_a_constant_is_changed_wherever_the_policy_uses_it_and_only_meanwhile() -> None:
    before = constants.CALM_SCALE
    with command.changed({"CALM_SCALE": 0.4}):
        assert (constants.CALM_SCALE, vars(ranking)["CALM_SCALE"]) == (0.4, 0.4)
    assert (constants.CALM_SCALE, vars(ranking)["CALM_SCALE"]) == (before, before)


@as_python
def test_an_unknown_constant_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no constant CALM"), command.changed({"CALM": 0.4}):
        pass


def test_goodput_is_told_in_percent_of_the_defaults_where_it_moves() -> None:
    ((name, found),) = command.as_played(
        [
            cell("A", 1.0, {}, 80.0),
            cell("G", 1.5, {}, 60.0),
            cell("A", 1.0, {"CALM_SCALE": 0.1}, 80.1),
            cell("G", 1.5, {"CALM_SCALE": 0.1}, 57.0),
            cell("A", 1.0, {"CALM_SCALE": 0.4}, 80.0),
            cell("G", 1.5, {"CALM_SCALE": 0.4}, 60.0),
        ]
    )
    assert name == "CALM_SCALE"
    assert found[0.1] == pytest.approx({"A@1": 100.125, "G@1.5": 95.0, command.WORST: 100.0})
    assert command.told(found) == "0.1: G@1.5 95.0; 0.4: the same"


def test_every_constant_is_tried_but_those_that_serve_the_arithmetic() -> None:
    assert set(command.names()) | command.LEFT_OUT.keys() == {
        name for name in vars(constants) if name.isupper()
    }


def test_a_constant_changes_what_the_default_policy_serves() -> None:
    """In a process that runs everything as Python: where the core is compiled its constants are literals."""
    profiles = Path(__file__).resolve().parents[2] / "../shared/profiles/clockwork_table1.csv"
    if not profiles.exists():
        pytest.skip(f"there is no table of profiles at {profiles}")
    program = (
        "from mainspring.experiments.policies.cell import Job\n"
        "from mainspring.experiments.policies.sweep import play_all\n"
        "jobs = [Job(scenario='A', policy='mainspring', load=1.5, seed=0, seconds=0.3, warm_up=0.2,"
        f" most_requests=300, table={str(profiles)!r}, bounds=None, constants=changed)"
        " for changed in ({}, {'LEAST_LOOKAHEAD_MS': 100.0})]\n"
        "print(*[cell.goodput for cell in play_all(jobs, 1)])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "MAINSPRING_NATIVE": "0"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    usual, changed = map(float, result.stdout.split())
    assert changed < usual
