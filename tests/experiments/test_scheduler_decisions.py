"""Runs recorded by one version of the scheduler and decided again by another."""

import multiprocessing
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mainspring.experiments import scheduler_decisions
from mainspring.experiments.scheduler_cost import scheduler_bytes
from mainspring.experiments.scheduler_load import Setting, loaded_scheduler
from mainspring.messages.actions import Infer
from mainspring.telemetry.entries import SegmentHeader
from mainspring.telemetry.log import EventLogWriter, read_entries


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    one = {"few devices": scheduler_decisions.specs()["few devices"]}
    monkeypatch.setattr(scheduler_decisions, "specs", lambda: one)
    folder = tmp_path / "recorded"
    result = CliRunner().invoke(
        scheduler_decisions.app, ["record", str(folder), "--policy", "edf", "--seeds", "1"]
    )
    assert result.exit_code == 0, result.output
    return folder


def check(folder: Path) -> tuple[int, str]:
    result = CliRunner().invoke(scheduler_decisions.app, ["check", str(folder)])
    return result.exit_code, result.output


def test_the_same_scheduler_decides_the_same(recorded: Path) -> None:
    code, said = check(recorded)
    assert code == 0, said
    assert "0 runs differ" in said


def test_a_run_that_came_out_otherwise_is_named(recorded: Path) -> None:
    log = recorded / "edf, few devices, seed 0"
    entries = list(read_entries(log))
    left_out = next(index for index, (_, entry) in enumerate(entries) if isinstance(entry, Infer))
    header = entries[0][1]
    assert isinstance(header, SegmentHeader)
    for file in log.iterdir():
        file.unlink()
    writer = EventLogWriter(log, about=header.about)
    for index, (now_ns, entry) in enumerate(entries):
        if index != left_out and not isinstance(entry, SegmentHeader):
            writer.append(now_ns, entry)
    writer.close()
    code, said = check(recorded)
    assert code == 1
    assert "edf, few devices, seed 0: after" in said


def test_the_scheduler_of_many_models_takes_more_memory_than_that_of_few() -> None:
    few, many = Setting(models=61, devices=2), Setting(models=3_000, devices=8)
    # In a process of their own: this one's heap has room that earlier tests left.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as fresh:
        assert fresh.submit(scheduler_bytes, many).result() > 3_000_000
        assert fresh.submit(scheduler_bytes, few).result() < 3_000_000


def test_models_are_everywhere_where_there_is_room() -> None:
    setting = Setting(models=61, devices=3, pages=100, everywhere=True)
    workers = loaded_scheduler(setting, Counter()).cluster.workers.values()
    held = [sorted(worker.lru) for worker in workers]
    assert held[0] == held[1] == held[2]
    assert len(held[0]) > 3
