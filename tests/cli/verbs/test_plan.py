"""`mainspring plan`, as a user types it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mainspring.cli.main import build_app
from mainspring.messages.tables import ConfigError
from mainspring.planner.estimate import Estimate
from mainspring.planner.problem import PlanError, Pool
from mainspring.planner.queues import Queues
from mainspring.simulator.spec_file import read_spec

SPEC = """
duration_s = 8
warm_up_s = 0.5
[[devices]]
kind = "fast"
profiles = "fast.csv"
price = 0.526
most = 4
[[devices]]
kind = "cheap"
profiles = "cheap.csv"
price = 0.1
most = 6
[[models]]
profiles = "fast.csv"
[[workload]]
rate = 250
slo_ms = 62
rows = { kind = "histogram", file = "rows.csv" }
"""
COLUMNS = "model,input_kb,output_kb,weights_mb,transfer_ms,b10_ms,b100_ms,b500_ms,spread\n"


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "fast.csv").write_text(COLUMNS + "ranker,1,1,100,10,1.5,5,15,1.05\n")
    (tmp_path / "cheap.csv").write_text(COLUMNS + "ranker,1,1,100,10,6,20,58,\n")
    (tmp_path / "rows.csv").write_text("rows,count\n5,40\n90,57\n480,3\n")
    path = tmp_path / "spec.toml"
    path.write_text(SPEC)
    return path


def run(*arguments: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(build_app(), [str(each) for each in arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


def test_the_plan_and_its_reasons_are_told_and_written(spec: Path, tmp_path: Path) -> None:
    told = run("plan", spec, "--output", tmp_path / "out")
    written = json.loads((tmp_path / "out" / "plan.json").read_text())
    best = written["best"]
    assert written["proven"]
    assert best["low"] >= 0.99
    assert f"{best['price']:g} an hour" in told
    assert "it is the cheapest" in told
    assert "the best of one kind" in told
    planned = read_spec(tmp_path / "out" / "plan.toml")
    assert [group.count for group in planned.devices] == best["pool"]
    assert Path(str(planned.devices[0].profiles)).is_absolute()
    again = json.loads(run("plan", spec, "--output", tmp_path / "out", "--json", "--resume").splitlines()[-1])
    assert again == written


def test_what_does_not_hold_is_exit_code_1_with_what_would_do(spec: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run("plan", spec, "--output", out)
    few = ("--set", "devices.0.most=1", "--set", "devices.1.most=1")
    told = run("plan", spec, "--output", out, *few, code=1)
    assert not (out / "plan.toml").exists(), "the plan of before is not this one's"
    for said in (
        "no pool within the kinds' most ends 0.99",
        "more fast would do",
        "or a target of",
        "of the load, on",
    ):
        assert said in told


def test_a_search_is_resumed_only_where_one_was_interrupted(spec: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match="nothing to resume"):
        run("plan", spec, "--output", out, "--resume")
    run("plan", spec, "--output", out, "--evaluations", "2", code=1)
    (record,) = out.glob("evaluations-*.jsonl")
    assert len(record.read_text().splitlines()) == 2
    run("plan", spec, "--output", out, "--resume")
    tried = json.loads((out / "plan.json").read_text())["evaluations"]
    assert len(record.read_text().splitlines()) == len(tried) > 2
    with pytest.raises(ConfigError, match="nothing to resume"):
        run("plan", spec, "--output", out, "--resume", "--set", "workload.rate=240")


def test_what_was_evaluated_is_named_where_a_search_is_interrupted(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate, calls = Queues.evaluate, iter(range(3))

    def interrupted(queues: Queues, pool: Pool, **how: Any) -> Estimate:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return evaluate(queues, pool, **how)

    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr(Queues, "evaluate", interrupted)
        said = run("plan", spec, "--output", out, code=130)
    (record,) = out.glob("evaluations-*.jsonl")
    assert f"{record} has what was evaluated: go on with --resume" in said.replace("\n", "")
    assert len(record.read_text().splitlines()) == 3
    run("plan", spec, "--output", out, "--resume")
    assert json.loads((out / "plan.json").read_text())["proven"]


def test_the_share_of_a_pool_that_was_given_up_is_not_told_as_that_of_all_requests(
    spec: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run("plan", spec, "--output", out)
    written = json.loads((out / "plan.json").read_text())
    given_up = [each for each in written["evaluations"] if not each["complete"]]
    whole = [each for each in written["evaluations"] if each["complete"]]
    assert given_up, "some pool within the bounds is far too small"
    for each in given_up:
        assert 0 < each["attainment_when_given_up"] < 0.99
        assert {each["attainment"], each["low"], each["high"], each["reached_ms"]} == {None}
        assert each["queries"] < written["best"]["queries"]
    assert written["best"] in whole
    assert all(each["low"] <= each["attainment"] <= each["high"] for each in whole)
    one = ("--set", "devices.0.most=1", "--set", "devices.1.most=1", "--search", "ribbon")
    said = run("plan", spec, "--output", out, *one, "--start", "1,0", "--evaluations", "1", code=1)
    assert re.search(r"the nearest: 1 fast: .* in time when it was given up", said)


def test_a_plan_dearer_than_one_kind_alone_saves_nothing(spec: Path, tmp_path: Path) -> None:
    said = run(
        "plan",
        spec,
        "--output",
        tmp_path / "out",
        "--search",
        "ribbon",
        "--start",
        "4,6",
        "--evaluations",
        "1",
    )
    assert "costs more than" in said
    assert "saves" not in said


def test_a_spec_that_leaves_counts_open_is_not_simulated(spec: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape("let `mainspring plan spec.toml` find it")):
        read_spec(spec)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("objective.attainment=1.2", "attainment is 1.2; it is a share above 0 and below 1"),
        ("objective.atainment=0.9", "did you mean 'attainment'"),
        ("devices.0.price=-1", "price is -1; it must be at least 0"),
        ("devices.0.most=-1", "most is -1; it must be at least 0"),
        ("devices.0.least=9", "least is 9; it must be at least 0 and at most 4"),
        ("workload.rows.kind=histogramm", "rows expects a whole number or a table of kind"),
    ],
)
def test_errors_say_what_would_be_right(spec: Path, tmp_path: Path, setting: str, says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        run("plan", spec, "--output", tmp_path / "out", "--set", setting)


def test_rows_beyond_the_profile_are_refused(spec: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("rows,count\n501,1\n")
    with pytest.raises(ValueError, match="up to 501 rows and the profile of ranker ends at 500"):
        run("plan", spec, "--output", tmp_path / "out")
    with pytest.raises(PlanError, match="there is no search 'best'"):
        run("plan", spec, "--output", tmp_path / "out", "--set", "workload.rows=5", "--search", "best")
