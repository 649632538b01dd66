"""The comparison of policies: its scenarios, what it counts, and what the default policy must reach."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from mainspring.experiments.policies import __main__ as command
from mainspring.experiments.policies import highest
from mainspring.experiments.policies.cell import Cell, Job, configuration, play_cell, worst_share
from mainspring.experiments.policies.played import arrivals, fluid_rate, instants, models_of, read_table
from mainspring.experiments.policies.scenarios import LOADS, SCENARIOS
from mainspring.experiments.policies.sweep import Results
from mainspring.traces.arrival import WorkloadError

PROFILES = Path(__file__).resolve().parents[2] / "../shared/profiles/clockwork_table1.csv"
pytestmark = pytest.mark.skipif(not PROFILES.exists(), reason=f"there is no table of profiles at {PROFILES}")

FLUID = {"A": 925, "B": 925, "C": 5549, "D": 5549, "E": 18497, "F": 18497, "G": 3607, "H": 11904}
"""Capacities in the independent study."""


def job(scenario: str, policy: str, load: float, **changed: object) -> Job:
    usual = Job(
        scenario=scenario,
        policy=policy,
        load=load,
        seed=0,
        seconds=4.0,
        warm_up=1.5,
        most_requests=12_000,
        table=str(PROFILES),
        bounds=None,
    )
    return msgspec.structs.replace(usual, **changed)


@pytest.mark.parametrize("name", FLUID)
def test_capacities_are_those_of_the_study(name: str) -> None:
    models = models_of(SCENARIOS[name], read_table(PROFILES))
    assert fluid_rate(models) == pytest.approx(FLUID[name], abs=1)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_offers_what_it_says(name: str) -> None:
    models = models_of(SCENARIOS[name], read_table(PROFILES))
    drawn = instants(models, 1.0, 20.0, 7)
    assert all(np.all(np.diff(times) >= 0) for times in drawn)
    tight = sum(len(times) for times, model in zip(drawn, models, strict=True) if model.slo_ns is not None)
    assert tight / 20.0 == pytest.approx(fluid_rate(models), rel=0.1)
    played = arrivals(models, drawn)
    assert len(played) == sum(map(len, drawn))
    assert all(first.time_ns <= second.time_ns for first, second in itertools.pairwise(played))
    same = instants(models, 1.0, 20.0, 7)
    assert all(np.array_equal(first, second) for first, second in zip(drawn, same, strict=True))


def test_a_variety_that_the_table_lacks_is_named() -> None:
    table = {name: spec for name, spec in read_table(PROFILES).items() if name != "resnet50_v2"}
    with pytest.raises(WorkloadError, match="resnet50_v2"):
        models_of(SCENARIOS["A"], table)


@pytest.mark.parametrize(
    ("scenario", "load"), [("A", 1.0), ("B", 1.5), ("C", 1.0), ("G", 1.0), ("slos", 1.0)]
)
def test_the_default_serves_more_than_clockwork(scenario: str, load: float) -> None:
    own, other = (play_cell(job(scenario, policy, load)) for policy in ("mainspring", "clockwork"))
    assert own.goodput > 1.02 * other.goodput
    assert own.late == 0.0


@pytest.mark.parametrize(("load", "part"), [(0.7, 0.97), (1.0, 0.97), (1.5, 0.8)])
def test_nobody_starves_where_models_are_unlike(load: float, part: float) -> None:
    own, other = (
        play_cell(job("G", policy, load, seconds=6.0, warm_up=6.0, most_requests=25_000))
        for policy in ("mainspring", "clockwork")
    )
    assert own.worst_tenth >= part * other.worst_tenth
    assert own.goodput > 1.01 * other.goodput


def test_fairness_moves_between_goodput_and_the_worst_served() -> None:
    cells = [
        play_cell(job("sizes", f"mainspring@fairness={fairness}", 1.5, seconds=8.0, warm_up=4.0))
        for fairness in (0, 0.4, 1)
    ]
    assert cells[0].goodput > cells[1].goodput > cells[2].goodput
    assert cells[0].worst_tenth < cells[1].worst_tenth < cells[2].worst_tenth


def test_what_was_possible_is_computed_once_and_kept(tmp_path: Path) -> None:
    asked = job("A", "mainspring", 1.0, seconds=2.0, bounds=str(tmp_path))
    first = play_cell(asked)
    assert first.of_bound is not None
    assert 0.8 < first.of_bound < 1.0
    (file,) = tmp_path.iterdir()
    file.write_bytes(b"12345.0")
    again = play_cell(asked)
    assert again.bound == pytest.approx(12345.0 / again.seconds)
    assert again.goodput == first.goodput


def test_memory_for_all_models_shows_how_little_other_loads_could_bring() -> None:
    asked = job("transfers", "mainspring", 1.0, seconds=2.0)
    short, ample = play_cell(asked), play_cell(msgspec.structs.replace(asked, ample=True))
    assert ample.goodput > short.goodput > 0.96 * ample.goodput


@pytest.mark.parametrize(("load", "some"), [(0.2, True), (1.5, False)])
def test_best_effort_counts_what_is_answered_while_requests_with_deadlines_come(
    load: float, some: bool
) -> None:
    """At 1.5 devices only get to it once no more requests with a deadline come."""
    cell = play_cell(job("effort", "clockwork", load, seconds=1.0))
    assert (cell.best_effort > 0.0) is some


def test_results_average_seeds_and_fall_back_on_what_was_offered() -> None:
    def cell(seed: int, goodput: float, bound: float | None) -> Cell:
        return Cell(
            job=job("A", "edf", 1.0, seed=seed),
            seconds=1.0,
            fluid=100.0,
            offered=100.0,
            goodput=goodput,
            bound=bound,
            worst_tenth=0.5,
            late=0.0,
            best_effort=0.0,
        )

    bounded = Results([cell(0, 60.0, 80.0), cell(1, 80.0, 80.0)])
    assert bounded.of_bound("edf", "A", 1.0) == pytest.approx(0.875)
    assert Results([cell(0, 60.0, None)]).mean_of_bound("edf", 1.0) == pytest.approx(0.6)
    assert bounded.of_bound("edf", "B", 1.0) is None


def test_the_worst_tenth_is_one_model_at_least() -> None:
    assert worst_share(np.array([0.9, 0.1, 0.5])) == pytest.approx(0.1)
    assert worst_share(np.arange(20) / 20) == pytest.approx(0.025)


def test_the_highest_load_is_where_answers_begin_to_fail() -> None:
    found = highest.find(job("A", "mainspring", 1.0, seconds=3.0))
    assert 0.3 < found.load < 0.75
    below = play_cell(job("A", "mainspring", found.load, seconds=3.0))
    assert below.in_time >= highest.GOAL


def test_options_of_a_policy_are_read() -> None:
    config = configuration("mainspring@fairness=0.25,lookahead=slow")
    assert config.policy_options == {"fairness": 0.25, "lookahead": "slow"}
    with pytest.raises(ValueError, match="key=value"):
        configuration("mainspring@fair")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing"], "choose table, highest, frontier"),
        (["--scenarios", "Z"], "no scenario 'Z'"),
        (["--policies", "fastest"], "no policy 'fastest'"),
        (["--loads", "1,x"], "no loads"),
        (["--loads", "0"], "greater than 0"),
        (["--profiles", "/nowhere.csv"], "--profiles"),
    ],
)
def test_what_can_not_be_played_is_said(arguments: list[str], says: str) -> None:
    app = typer.Typer()
    app.command()(command.main)
    result = CliRunner().invoke(app, ["--profiles", str(PROFILES), *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert says in result.output


def test_the_command_writes_what_it_measured(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(command.main)
    short = [
        "--seconds",
        "1",
        "--warm-up",
        "0.5",
        "--processes",
        "1",
        "--no-bound",
        "--profiles",
        str(PROFILES),
    ]
    arguments = ["table", "--scenarios", "A", "--policies", "mainspring@fairness=0,edf", "--loads", "1"]
    result = CliRunner().invoke(app, [*arguments, *short, "--output", str(tmp_path)])
    assert result.exit_code == 0, result.output
    report = msgspec.json.decode((tmp_path / "table.json").read_bytes(), type=command.Report)
    assert [cell.job.policy for cell in report.cells] == ["mainspring@fairness=0", "edf"]
    assert (tmp_path / "policies.png").stat().st_size > 1000
    assert LOADS == (0.7, 1.0, 1.5)
