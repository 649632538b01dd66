"""``mainspring log``, and how its parts of a log are asked for."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from mainspring.cli.main import build_app
from mainspring.cli.spans import chosen_run
from mainspring.messages.events import RequestArrived
from mainspring.telemetry.log import read_log
from mainspring.telemetry.runs import LogProblem, choose_run, find_runs
from tests.telemetry.recordings import record

SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("log"))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(
        build_app(), ["log", *map(str, arguments)], env={"COLUMNS": "120", "NO_COLOR": "1"}
    )


def span(log: Path, from_: str | None = None, to: str | None = None, last: str | None = None) -> list[float]:
    chosen, *instants = chosen_run(log, None, from_, to, last)
    return [(each - chosen.first_ns) / 1e9 for each in instants]


def test_stats_for_a_person_and_for_a_script(log: Path) -> None:
    shown = run("stats", log)
    assert shown.exit_code == 0, shown.output
    assert "policy" in shown.output
    told = json.loads(run("stats", log, "--json").output)
    assert told["runs"][0]["requests"] == told["runs"][0]["records"]["RequestArrived"]


def test_stats_of_a_part(log: Path) -> None:
    shown = run("stats", log, "--from", "1", "--to", "1.5s", "--models", "2")
    assert shown.exit_code == 0, shown.output
    assert "for 0.500 s from second 1.000 of the run" in " ".join(shown.output.split())
    assert "and 6 more" in shown.output
    whole = choose_run(log)
    arrived = [
        now_ns - whole.first_ns for now_ns, entry in read_log(log) if isinstance(entry, RequestArrived)
    ]
    (told,) = json.loads(run("stats", log, "--from", "1", "--to", "1.5s", "--json").output)["runs"]
    assert told["requests"] == sum(SECOND <= at_ns < 1.5 * SECOND for at_ns in arrived)
    assert run("stats", log, "--from", "2", "--to", "1").exit_code == 2


def test_slice_writes_a_log(log: Path, tmp_path: Path) -> None:
    shown = run("slice", log, tmp_path / "part", "--from", "1", "--to", "1.5s")
    assert shown.exit_code == 0, shown.output
    told = json.loads(run("slice", log, tmp_path / "again", "--from", "1", "--to", "1.5s", "--json").output)
    assert f"{told['records']:,} records of" in shown.output
    whole = choose_run(log)
    records = list(read_log(tmp_path / "part"))[told["picture"] :]
    assert all(SECOND <= now_ns - whole.first_ns < 1.5 * SECOND for now_ns, _ in records)
    assert len(records) == told["records"]


def test_parquet_writes_tables(log: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    shown = run("parquet", log, tmp_path / "tables", "--last", "1s")
    assert shown.exit_code == 0, shown.output
    assert {path.name for path in (tmp_path / "tables").iterdir()} == {"requests.parquet", "actions.parquet"}


def test_parts_by_the_run_s_own_time(log: Path) -> None:
    length = choose_run(log).seconds
    assert span(log) == pytest.approx([0, length], abs=1e-6)
    assert span(log, "1", "2.5") == [1.0, 2.5]
    assert span(log, "1500ms", "2s") == [1.5, 2.0]
    assert span(log, "-1s") == pytest.approx([length - 1, length], abs=1e-6)
    assert span(log, "-1s", "-500ms") == pytest.approx([length - 1, length - 0.5], abs=1e-6)
    assert span(log, last="250ms") == pytest.approx([length - 0.25, length], abs=1e-6)
    assert span(log, "0", "1h") == pytest.approx([0, length], abs=1e-6)


def test_parts_by_the_calendar(log: Path) -> None:
    began = choose_run(log).first_unix_ns
    instant = datetime.fromtimestamp((began + SECOND) / 1e9)
    assert span(log, instant.isoformat()) == pytest.approx([1.0, choose_run(log).seconds], abs=1e-5)
    assert span(log, instant.astimezone().isoformat())[0] == pytest.approx(1.0, abs=1e-5)
    if instant.date() == datetime.fromtimestamp(began / 1e9).date():
        assert span(log, instant.time().isoformat())[0] == pytest.approx(1.0, abs=1e-5)


def test_the_calendar_chooses_the_run(tmp_path: Path) -> None:
    record(tmp_path)
    record(tmp_path)
    first, second = find_runs(tmp_path)
    assert chosen_run(tmp_path, None, None, None, None)[0].number == 2
    assert chosen_run(tmp_path, 1, "1", None, None)[0].number == 1
    for each in (first, second):
        at = datetime.fromtimestamp((each.first_unix_ns + 50_000_000) / 1e9).isoformat()
        if each is second or each.first_unix_ns + 50_000_000 < second.first_unix_ns:
            assert chosen_run(tmp_path, None, at, None, None)[0].number == each.number


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"from_": "2", "to": "1"}, "--from has to be before --to"),
        ({"from_": "1", "last": "1s"}, "--last is a span of its own"),
        ({"from_": "soon"}, "'soon' is not an instant; write seconds from the start"),
        ({"from_": "5 parsecs"}, "is not a duration; write a number and a unit"),
        ({"last": "none"}, "is not a time; write it like 30s"),
    ],
)
def test_parts_that_make_no_sense_are_refused(log: Path, options: dict[str, str], complaint: str) -> None:
    with pytest.raises(typer.BadParameter, match=complaint):
        span(log, **options)


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    assert isinstance(run("stats", tmp_path).exception, LogProblem)
    assert isinstance(run("slice", tmp_path / "nowhere", tmp_path / "out").exception, FileNotFoundError)
