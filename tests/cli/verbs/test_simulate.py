"""`mainspring simulate` and `mainspring compare`, as a user types them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from mainspring import extras
from mainspring.cli.main import build_app
from mainspring.controller.logged_scheduler import about
from mainspring.messages.tables import ConfigError
from mainspring.simulator.run import NoBound, simulate
from mainspring.simulator.spec_file import read_spec
from mainspring.telemetry.log import EventLogWriter

SPEC = """
warm_up_s = 0.2
duration_s = 1
[[devices]]
count = 2
[[models]]
name = "m"
copies = 3
infer_ms = { 1 = 2.6, 4 = 6.0 }
[[workload]]
rate = 200
[scheduler]
policy = "clockwork"
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "spec.toml"
    path.write_text(SPEC)
    return path


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(build_app(), [str(each) for each in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def recorded(spec: Path, folder: Path) -> Path:
    read = read_spec(spec)
    log = EventLogWriter(folder, about=about(read.scheduler))
    simulate(read, record=log.append)
    log.close()
    return folder


def test_a_spec_leaves_the_report_of_a_replay(spec: Path, tmp_path: Path) -> None:
    told = run("simulate", spec, "--output", tmp_path / "a", "--validate")
    assert "3 models on 2 simulated devices" in told
    assert "fingerprint" in told
    summary = json.loads((tmp_path / "a/summary.json").read_text())
    assert summary["offered"] == summary["goodput"] > 100
    assert summary["batch_sizes"]
    assert (tmp_path / "a/report.png").stat().st_size > 10_000


def test_seed_policy_and_settings_go_over_the_spec(spec: Path, tmp_path: Path) -> None:
    output = tmp_path / "a"
    told = run(
        "simulate",
        spec,
        "--seed",
        "5",
        "--policy",
        "edf",
        "--set",
        "workload.rate=50",
        "--json",
        "--output",
        output,
    )
    summary = json.loads(told)
    assert summary["offered"] < 100
    assert summary["notes"]["policy"] == "edf"
    assert summary["notes"]["seed"] == 5


def test_runs_are_compared_with_a_warning_where_they_should_not_be(spec: Path, tmp_path: Path) -> None:
    one, two, three, both = (tmp_path / name for name in "abcd")
    run("simulate", spec, "--output", one)
    run("simulate", spec, "--policy", "edf", "--output", two)
    run("simulate", spec, "--set", "workload.rate=400", "--set", "workload.slo_ms=50", "--output", three)
    like = json.loads(run("compare", one, two / "summary.json", "--json", "--output", both))
    assert like["warnings"] == []
    assert [each["name"] for each in like["runs"]] == ["a", "b"]
    unlike = json.loads(run("compare", one, three, "--json", "--output", both))
    assert len(unlike["warnings"]) == 3
    assert "different loads" in unlike["warnings"][0]
    assert "different SLOs: 100 ms and 50 ms" in unlike["warnings"][1]
    assert "not given in % of" in unlike["warnings"][2]
    assert (both / "comparison.png").stat().st_size > 10_000
    assert "goodput against the first" in run("compare", one, two, "--output", both)


def test_a_comparison_ends_with_what_was_reached_of_what_was_possible(spec: Path, tmp_path: Path) -> None:
    one, two, three = (tmp_path / name for name in "abc")
    heavy = ("--set", "workload.rate=1500", "--set", "workload.slo_ms=20")
    told = run("simulate", spec, *heavy, "--output", one)
    assert "of what was possible" in told
    found = json.loads((one / "summary.json").read_text())["possible"]
    assert found["in_time"] < found["at_most"] <= found["requests"] > 1000
    assert "of what was possible" not in run("simulate", spec, *heavy, "--no-bound", "--output", two)
    told = run("compare", one, two, "--output", three)
    share = f"{found['in_time'] / found['at_most']:.2%}"
    line = next(line for line in told.splitlines() if "of what was possible" in line)
    assert line.count(share) == 2
    assert "bound of a" in line, "the second has none of its own and the same requests"
    of_possible = json.loads((three / "comparison.json").read_text())["of_possible"]
    assert of_possible[0] == pytest.approx(of_possible[1])
    told = run("compare", two, two, "--output", three)
    assert "what was possible is not known of every run: simulate computes it" in told


def test_a_long_run_says_how_to_get_the_bound(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.simulator.bound.possible.QUICK_REQUESTS", 50)
    told = run("simulate", spec, "--output", tmp_path / "a")
    assert "what was possible was left out" in told
    assert "--bound computes it" in told
    assert "left out" not in run("simulate", spec, "--no-bound", "--output", tmp_path / "a")
    told = run("simulate", spec, "--bound", "--output", tmp_path / "a")
    assert "of what was possible" in told
    assert "left out" not in told


def test_closed_loop_clients_under_deadlines_are_said_to_have_no_bound(spec: Path, tmp_path: Path) -> None:
    closed = ("--set", "workload.kind=closed", "--output", tmp_path / "a")
    assert "not known with closed-loop clients" in run("simulate", spec, *closed)
    for asked in (("--bound",), ("--bound", "--sweep", "seed=1,2")):
        words = [str(each) for each in ("simulate", spec, *closed, *asked)]
        with pytest.raises((NoBound, ConfigError), match="not known with closed-loop clients"):
            CliRunner().invoke(build_app(), words, catch_exceptions=False)


def test_options_of_the_policy_go_over_the_spec(spec: Path, tmp_path: Path) -> None:
    mine = ("--policy", "mainspring", "--policy-option", "fairness=0.5", "--output", tmp_path / "a")
    run("simulate", spec, *mine)
    wrong = ["simulate", str(spec), "--policy", "edf", "--policy-option", "fairness=0.5"]
    with pytest.raises(ConfigError, match="fairness"):
        CliRunner().invoke(build_app(), wrong, catch_exceptions=False)


def test_a_sweep_has_a_line_for_every_point_on_every_core(spec: Path, tmp_path: Path) -> None:
    arguments = ("--sweep", "workload.rate=50,100", "--sweep", "scheduler.policy=clockwork,edf", "--json")
    told = run("simulate", spec, *arguments, "--processes", "2", "--output", tmp_path / "s")
    points = json.JSONDecoder().raw_decode(told[told.index("[") :])[0]
    assert [point["settings"] for point in points] == [
        ["workload.rate=50", "scheduler.policy=clockwork"],
        ["workload.rate=50", "scheduler.policy=edf"],
        ["workload.rate=100", "scheduler.policy=clockwork"],
        ["workload.rate=100", "scheduler.policy=edf"],
    ]
    alone = simulate(read_spec(spec, ["workload.rate=100"]), analyse=False)
    assert points[2]["fingerprint"] == alone.fingerprint
    assert not any(point["summary"]["possible"] for point in points)
    assert "--bound adds" in told
    assert (tmp_path / "s/sweep.png").stat().st_size > 10_000
    assert "of possible" in run(
        "simulate", spec, "--sweep", "seed=1,2", "--bound", "--output", tmp_path / "s"
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--policy", "edff"), "there is no policy 'edff'"),
        (("--set", "workload.rat=5"), "did you mean 'rate'"),
        (("--sweep", "workload.rate"), "a sweep is KEY=V1,V2"),
        (("--sweep", "scheduler.policy=edf,edff"), "there is no policy 'edff'"),
        (("--sweep", "workload.rate=5,-5"), "it must be greater than 0"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(
    spec: Path, arguments: tuple[str, ...], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        CliRunner().invoke(build_app(), ["simulate", str(spec), *arguments], catch_exceptions=False)


def test_a_sweep_over_ray_says_what_is_missing(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sweep(address: str) -> None:
        arguments = ["simulate", str(spec), "--sweep", "seed=1,2", "--ray", address]
        CliRunner().invoke(build_app(), arguments, catch_exceptions=False)

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=re.escape(extras.command("cluster"))):
        sweep("local")
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    with pytest.raises(ConfigError, match="no Ray cluster answers"):
        sweep("127.0.0.1:1")
    with pytest.raises(ConfigError, match="--ray takes HOST:PORT"):
        sweep("somewhere")


def test_a_folder_that_cannot_be_written_is_said_before_a_sweep(spec: Path) -> None:
    arguments = ["simulate", str(spec), "--sweep", "seed=1,2", "--output", "/proc/nowhere"]
    with pytest.raises(ConfigError, match="choose another folder with --output"):
        CliRunner().invoke(build_app(), arguments, catch_exceptions=False)


def test_a_folder_that_cannot_be_written_is_said_by_what_if_and_compare(spec: Path, tmp_path: Path) -> None:
    log = recorded(spec, tmp_path / "events")
    run("simulate", spec, "--output", tmp_path / "a")
    for arguments in (["simulate", "--log", log, "--policy", "edf"], ["compare", *2 * [tmp_path / "a"]]):
        words = [*map(str, arguments), "--output", "/proc/nowhere"]
        with pytest.raises(ConfigError, match="choose another folder with --output"):
            CliRunner().invoke(build_app(), words, catch_exceptions=False)


def test_a_run_without_requests_says_that_it_tells_nothing(spec: Path, tmp_path: Path) -> None:
    told = run("simulate", spec, "--set", "workload.rate=0.001", "--output", tmp_path / "a")
    assert "mind: no request came after the warm-up" in told
    assert "mind" not in run("simulate", spec, "--output", tmp_path / "a")


@pytest.mark.parametrize(
    ("arguments", "idle", "way"),
    [
        (("--log", "x", "--set", "seed=1", "--output", "y"), "--set, --output", "--log without --policy"),
        (("--log", "x", "--policy", "edf", "--sweep", "seed=1,2"), "--sweep", "--log with --policy"),
        (("--scenario", "1", "--seed", "2", "--json"), "--seed, --json", "--scenario takes only --policy"),
        (("SPEC", "--ray", "local", "--processes", "2"), "--ray, --processes", "a SPEC without --sweep"),
        (("SPEC", "--sweep", "seed=1,2", "--validate"), "--validate", "--sweep takes only"),
        (("SPEC", "--calibrate", "--output", "y"), "--output", "--calibrate takes only"),
        (("--scenario", "1", "--policy-option", "a=1"), "--policy-option", "--scenario takes only --policy"),
        (("--log", "x", "--bound"), "--bound", "--log without --policy"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(
    spec: Path, arguments: tuple[str, ...], idle: str, way: str
) -> None:
    words = [str(spec) if each == "SPEC" else each for each in arguments]
    # Rich breaks lines and frames them: what is left is the words in their order.
    result = CliRunner().invoke(build_app(), ["simulate", *words], env={"COLUMNS": "300"})
    assert result.exit_code == 2
    assert f"{idle} would change nothing" in result.output
    assert way in result.output


def test_a_scenario_of_a_policy_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no policy 'edff'"):
        CliRunner().invoke(
            build_app(), ["simulate", "--scenario", "3", "--policy", "edff"], catch_exceptions=False
        )


def test_one_of_spec_log_and_scenario_is_needed(spec: Path) -> None:
    for arguments in ([], [str(spec), "--scenario", "1"]):
        assert CliRunner().invoke(build_app(), ["simulate", *arguments]).exit_code == 2


def test_a_town_is_played_by_its_seed() -> None:
    assert "seed 3: nothing is wrong" in run("simulate", "--town", "3")


def test_a_scenario_is_run_by_its_number() -> None:
    assert "each answered once" in run("simulate", "--scenario", "3", "--policy", "edf")


def test_calibration_prints_a_table_that_a_spec_takes(spec: Path, tmp_path: Path) -> None:
    charged = tmp_path / "charged.toml"
    charged.write_text(SPEC + run("simulate", spec, "--calibrate"))
    read = read_spec(charged)
    assert read.cost.mode == "table"
    assert read.cost.controller.handle_us["request_arrived"] > 0
    assert read.cost.controller.schedule_us > 0
    summary = json.loads(run("simulate", charged, "--json", "--output", tmp_path / "a"))
    assert summary["notes"]["controller_busy_s"] > 0


def test_a_log_is_decided_again_and_under_another_policy(spec: Path, tmp_path: Path) -> None:
    recorded(spec, tmp_path / "events")
    assert "all as recorded" in run("simulate", "--log", tmp_path / "events")
    told = run("simulate", "--log", tmp_path / "events", "--policy", "edf", "--output", tmp_path / "w")
    assert "what if: edf" in told
    assert "recorded, clockwork" in told
    assert "of what was possible" in told
    for name in ("summary.json", "report.png", "recorded/summary.json", "comparison.png"):
        assert (tmp_path / "w" / name).is_file()


def test_a_log_is_played_with_other_options_of_the_recorded_policy(spec: Path, tmp_path: Path) -> None:
    log = recorded(spec, tmp_path / "events")
    told = run(
        *("simulate", "--log", log, "--policy", "mainspring", "--policy-option", "fairness=0.5"),
        *("--no-bound", "--output", tmp_path / "w"),
    )
    assert "what if: mainspring" in told
    assert "of what was possible" not in told
    words = ["simulate", "--log", str(log), "--policy-option", "fairness=0.5"]
    with pytest.raises(ConfigError, match=r"clockwork.*fairness"):
        CliRunner().invoke(build_app(), words, catch_exceptions=False)
