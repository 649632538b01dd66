"""The comparison of policies: its scenarios, what it counts, and what the default policy must reach."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from mainspring.experiments.policies import __main__ as command
from mainspring.experiments.policies import highest, played
from mainspring.experiments.policies.cell import Job, configuration, lengths, play_cell
from mainspring.experiments.policies.scenarios import LOADS

PROFILES = Path(__file__).resolve().parents[2] / "../shared/profiles/clockwork_table1.csv"
pytestmark = pytest.mark.skipif(not PROFILES.exists(), reason=f"there is no table of profiles at {PROFILES}")


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


def test_devices_that_lose_time_serve_fewer_of_the_same_requests() -> None:
    whole, less = (
        play_cell(job("A", "mainspring", 1.0, seconds=1.0, warm_up=0.5, lost=lost)) for lost in (0.0, 0.2)
    )
    assert (less.offered, less.seconds, less.fluid) == (whole.offered, whole.seconds, whole.fluid)
    assert 0.7 * whole.goodput < less.goodput < 0.95 * whole.goodput


@pytest.mark.parametrize(("scenario", "load"), [("A", 1.0), ("B", 1.5), ("slos", 1.0)])
def test_the_default_serves_more_than_clockwork(scenario: str, load: float) -> None:
    own, other = (play_cell(job(scenario, policy, load)) for policy in ("mainspring", "clockwork"))
    assert own.goodput > 1.02 * other.goodput
    assert own.late == 0.0


def test_a_floor_for_everybody_where_models_are_unlike() -> None:
    own, other = (
        play_cell(job("G", policy, 1.0, seconds=6.0, warm_up=6.0, most_requests=25_000))
        for policy in ("mainspring@fairness=0.45", "clockwork")
    )
    assert own.worst_tenth >= 0.97 * other.worst_tenth
    assert own.goodput > 1.01 * other.goodput


@pytest.mark.parametrize("scenario", ["wave", "transfers"])
def test_turns_for_the_starved_cost_little_and_leave_nobody_without_an_answer(scenario: str) -> None:
    own, free, floored = (
        play_cell(job(scenario, f"mainspring{options}", 1.5, seconds=8.0, most_requests=16_000))
        for options in ("", "@fairness=0", "@fairness=0.45")
    )
    assert own.unanswered == 0
    assert own.goodput > 1.02 * floored.goodput
    assert own.goodput > 0.98 * free.goodput


@pytest.mark.parametrize(
    ("scenario", "other", "load"),
    [
        ("mixed-rows", "edf", 1.5),
        ("mixed-slos", "symphony", 1.5),
        ("mixed-both", "symphony", 1.5),
        ("mixed-kinds", "edf", 1.0),
        ("mixed-heavy", "edf", 1.0),
        ("mixed-heavy", "edf", 1.5),
    ],
)
def test_the_default_serves_as_much_as_others_where_the_requests_of_a_model_are_unlike(
    scenario: str, other: str, load: float
) -> None:
    own, its = (play_cell(job(scenario, each, load, most_requests=2_000)) for each in ("mainspring", other))
    assert own.in_time > its.in_time - 0.003
    assert own.bound is None


def test_a_cell_lasts_long_enough_for_its_longest_deadlines() -> None:
    long = job("mixed-all", "edf", 1.5, seconds=60.0, most_requests=100)
    assert lengths(long, 1_000.0) == (1.5, 20.0)
    assert lengths(job("A", "edf", 1.0, most_requests=2_000), 1_000.0) == (1.5, 2.0)


def test_rates_swing_and_crowds_come_as_the_scenario_says() -> None:
    assert play_cell(job("wave", "mainspring", 0.7, most_requests=1_000)).in_time > 0.5
    assert play_cell(job("giants", "mainspring", 0.7, most_requests=1_000)).in_time > 0.5


def test_a_floor_lowers_what_is_possible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(played, "ITERATIONS", 40)
    monkeypatch.setattr(played, "SEARCHES", 3)
    asked = job("halves", "mainspring", 2.0, most_requests=600, bounds=str(tmp_path))
    free, floored = (play_cell(msgspec.structs.replace(asked, fairness=each)) for each in (0.0, 1.0))
    assert free.bound is not None
    assert floored.bound is not None
    assert 0.6 * free.bound < floored.bound < 0.97 * free.bound
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(("scenario", "load"), [("lognormal-1-wide", 1.5), ("lognormal-1", 0.7)])
def test_distributions_serve_more_than_estimates_of_erratic_models(scenario: str, load: float) -> None:
    policies = "mainspring", "mainspring@distributions=false", "clockwork"
    own, without, other = (play_cell(job(scenario, each, load, seconds=20.0)) for each in policies)
    assert own.goodput > 1.03 * without.goodput
    assert own.goodput > 1.03 * other.goodput


def test_distributions_change_nothing_where_durations_are_even() -> None:
    own, without = (
        play_cell(job("B", policy, 1.5, most_requests=4_000))
        for policy in ("mainspring", "mainspring@distributions=false")
    )
    assert msgspec.structs.replace(own, job=without.job) == without


def test_an_erratic_model_costs_even_ones_next_to_nothing() -> None:
    asked = job("beside-2", "mainspring", 0.4, seconds=10.0)
    own, without = (
        play_cell(msgspec.structs.replace(asked, policy=policy))
        for policy in ("mainspring", "mainspring@distributions=false")
    )
    assert own.even is not None
    assert without.even is not None
    assert own.even_late is not None
    assert own.even >= without.even - 0.002
    # Accepted and then late or refused: 1 in 400 at most.
    assert own.even_late <= 0.0025


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
        (["--loads", "1,x"], "not loads"),
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
