"""Parquet tables hold what the log told."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from mainspring import extras
from mainspring.telemetry import parquet
from mainspring.telemetry.lifecycles import Lifecycles
from mainspring.telemetry.log import read_log
from mainspring.telemetry.log_stats import log_stats
from mainspring.telemetry.parquet import ACTIONS, REQUESTS, to_parquet
from mainspring.telemetry.runs import LogProblem, choose_run
from tests.telemetry.recordings import record

table = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("log"), segment_bytes=200_000)


def test_every_request_and_action_is_a_row(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "ROWS_IN_GROUP", 500)
    run = choose_run(log)
    found = to_parquet(run, tmp_path, run.first_ns, run.last_ns + 1)
    (stats,) = log_stats(log).runs
    requests = table.read_table(tmp_path / "requests.parquet")
    assert requests.column_names == list(REQUESTS)
    assert requests.num_rows == found.requests == stats.requests
    outcomes = requests["outcome"].to_pylist()
    assert {name: outcomes.count(name) for name in set(outcomes)} == stats.outcomes
    actions = table.read_table(tmp_path / "actions.parquet")
    assert actions.column_names == list(ACTIONS)
    assert actions.num_rows == found.actions == sum(sum(ends.values()) for ends in stats.actions.values())
    assert table.ParquetFile(tmp_path / "actions.parquet").num_row_groups > 4, "it should be written in parts"
    assert found.size_bytes < stats.size_bytes


def test_values_are_the_log_s(log: Path, tmp_path: Path) -> None:
    run = choose_run(log)
    to_parquet(run, tmp_path, run.first_ns, run.last_ns + 1)
    lives: dict[str, dict[int, object]] = {"requests": {}, "actions": {}}
    reader = Lifecycles(
        lambda life: lives["requests"].update({life.request.request_id: life}),
        lambda life: lives["actions"].update({life.action.action_id: life}),
    )
    for now_ns, entry in read_log(log):
        reader.take(now_ns, entry)
    reader.finish()
    for row in table.read_table(tmp_path / "requests.parquet").to_pylist():
        life = lives["requests"][row["request_id"]]
        assert row["deadline_ns"] == life.request.deadline_ns  # type: ignore[attr-defined]
        assert row["gateway"] == row["request_id"] >> 40
        if row["outcome"] == "in_time":
            assert row["latency_ns"] == life.ended_ns - life.arrived_ns  # type: ignore[attr-defined]
            assert row["worker"] == life.infer.action.worker  # type: ignore[attr-defined]
            assert row["deadline_ns"] is None or row["ended_ns"] <= row["deadline_ns"]
        if row["outcome"] == "rejected":
            assert row["reason"] == "deadline_passed"
            assert row["batch_size"] is None
    for row in table.read_table(tmp_path / "actions.parquet").to_pylist():
        life = lives["actions"][row["action_id"]]
        assert (row["kind"], row["status"]) == (life.kind, life.status or None)  # type: ignore[attr-defined]
        if row["kind"] == "INFER" and row["status"] == "ok":
            assert row["duration_ns"] == row["end_ns"] - row["begin_ns"] > 0
            assert len(row["request_ids"]) <= row["rows"] <= row["batch_size"]
            assert row["earliest_ns"] <= row["predicted_begin_ns"] <= row["latest_ns"]
        if row["kind"] == "LOAD":
            assert row["pages"] == list(life.action.pages)  # type: ignore[attr-defined]


def test_evidence_says_what_each_plan_waited_for(log: Path, tmp_path: Path) -> None:
    run = choose_run(log)
    to_parquet(run, tmp_path, run.first_ns, run.last_ns + 1)
    actions = table.read_table(tmp_path / "actions.parquet").to_pylist()
    infers = [row for row in actions if row["kind"] == "INFER"]
    for row in infers:
        ready = (row["exec_free_ns"], row["planned_inputs_ns"], row["planned_weights_ns"] or 0)
        assert row["predicted_begin_ns"] == max(ready)
    assert {row["actions_ahead"] for row in infers} >= {0, 1}
    ids = {row["action_id"]: row["kind"] for row in actions}
    assert {ids[row["weights_load_id"]] for row in infers if row["weights_load_id"]} == {"LOAD"}
    loads = [row for row in actions if row["kind"] == "LOAD"]
    assert "demand" in {row["load_reason"] for row in loads}
    unloads = [row["model"] for row in actions if row["kind"] == "UNLOAD"]
    assert sorted(name for row in loads for name in row["evicted"]) == sorted(unloads)
    assert all(row["load_reason"] is None for row in infers)
    rejected = table.read_table(tmp_path / "requests.parquet").to_pylist()
    plans = [row for row in rejected if row["best_worker"] is not None]
    assert all(row["outcome"] == "rejected" for row in plans)


def test_a_part_has_what_began_in_it_with_its_end(log: Path, tmp_path: Path) -> None:
    run = choose_run(log)
    from_ns, to_ns = run.first_ns + SECOND, run.first_ns + SECOND + SECOND // 2
    to_parquet(run, tmp_path / "part", from_ns, to_ns)
    to_parquet(run, tmp_path / "whole", run.first_ns, run.last_ns + 1)
    for name, began in (("requests", "arrived_ns"), ("actions", "sent_ns")):
        part = table.read_table(tmp_path / "part" / f"{name}.parquet").to_pylist()
        whole = table.read_table(tmp_path / "whole" / f"{name}.parquet").to_pylist()
        assert part == [row for row in whole if from_ns <= row[began] < to_ns]
        assert part


def test_instants_of_the_calendar_are_the_header_s(log: Path, tmp_path: Path) -> None:
    run = choose_run(log)
    to_parquet(run, tmp_path, run.first_ns, run.last_ns + 1)
    column = table.read_table(tmp_path / "requests.parquet")["arrived_at"]
    assert str(column.type) == "timestamp[us, tz=UTC]"
    first = table.read_table(tmp_path / "requests.parquet").to_pylist()[0]
    assert column.cast("int64")[0].as_py() == run.unix_ns(first["arrived_ns"]) // 1000


def test_without_pyarrow_it_says_what_to_install(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    run = choose_run(log)
    with pytest.raises(LogProblem, match=re.escape(extras.command("parquet"))):
        to_parquet(run, tmp_path / "out", run.first_ns, run.last_ns)
    assert not (tmp_path / "out").exists()


def test_what_fails_half_way_leaves_no_table(log: Path, tmp_path: Path) -> None:
    run = choose_run(log)
    log_without = type(run)(
        **{**{name: getattr(run, name) for name in run.__struct_fields__}, "paths": (tmp_path / "gone",)}
    )
    with pytest.raises(FileNotFoundError):
        to_parquet(log_without, tmp_path / "out", run.first_ns, run.last_ns)
    assert list((tmp_path / "out").iterdir()) == []


def test_every_column_is_in_the_documentation() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "console.md").read_text()
    assert "| requests | " + ", ".join(f"`{name}`" for name in REQUESTS) + " |" in page
    assert "| actions | " + ", ".join(f"`{name}`" for name in ACTIONS) + " |" in page
