"""What `make bench-controller` finds out about a controller, and what it makes of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mainspring.experiments.bench import controller
from mainspring.experiments.bench.controller import BARE, LOGGED, UNDECIDED, WHOLE, Stretch, figures_of
from mainspring.experiments.bench.usage import Usage


def _stretch(us: int, calls: dict[str, int] | None = None) -> Stretch:
    threads = {"main": Usage(us * 10_000_000, 0, 30_000, 20_000), "idle": Usage()}
    return Stretch(10_000, threads, 0.25, Usage(150_000_000), Usage(100_000_000), calls or {}, "all came")


def test_log_and_console_cost_what_a_controller_without_them_takes_less() -> None:
    found = {
        WHOLE: [_stretch(90), _stretch(100, {"sendmsg": 2_000, "read": 500}), _stretch(300)],
        LOGGED: [_stretch(80)],
        BARE: [_stretch(50)],
        UNDECIDED: [_stretch(30)],
    }
    rows = {figure.name.strip(): figure for figure in figures_of(found, 20.0, 1_000.0)}
    whole = rows["for a request, log and console"]
    assert (whole.value, whole.target, whole.met) == (100, controller.TARGET_US, False)
    assert whole.note == "90.0 to 300.0; all came"
    assert rows["thread main"].value == 100
    assert "thread idle" not in rows
    assert rows["of it, in the kernel"].value == 25
    assert rows["wake-ups"].value == 2
    assert rows["system calls"].value == 2.5
    assert rows["system calls"].note == "sendmsg 2.00, read 0.50"
    assert rows["the console's feed"].value == 20
    assert rows["the event log"].value == 30
    assert rows["the two together"].value == 50
    assert rows["controller / the two together"].value == 2
    assert rows["the console's own"].value == pytest.approx(10)


def test_a_controller_with_log_and_console_is_measured_under_load(tmp_path: Path) -> None:
    controller.main(rate=200.0, rounds=1, seconds=0.5, begin=1.0, models=61, output=tmp_path)
    rows = {
        row["name"].strip(): row for row in json.loads((tmp_path / "controller.json").read_text())["figures"]
    }
    assert rows["for a request, log and console"]["value"] > rows["the scheduler alone"]["value"] > 0
    assert rows["the console's own"]["value"] > 0
    assert rows["the two together"]["value"] > rows["connections and messages alone"]["value"] > 0
    assert "requests, " in rows["for a request, log and console"]["note"]
