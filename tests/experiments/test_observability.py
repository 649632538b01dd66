"""What the comparisons of metrics, traces and pauses count."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from mainspring.experiments.bench import observability
from mainspring.experiments.bench.observability import OFF, SETTINGS, Round
from mainspring.experiments.bench.pauses import Pause, Pauses, watched

MS = 1_000_000


def test_every_setting_has_its_turns_and_is_compared_with_none_of_them(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.proto", reason="OpenTelemetry is not installed")
    found = observability.measure(1, 0.2, tmp_path)
    assert [each.setting for each in found] == [each.name for each in SETTINGS]
    assert all(each.requests_hz > 0 and each.cpu_us > 0 for each in found)
    names = [figure.name for figure in observability.figures(found)]
    assert len(names) == 2 * len(SETTINGS) - 1
    assert f"all requests traced / {OFF}" in names


def test_ratios_are_medians_of_those_within_a_round() -> None:
    found = []
    for off_us, other_us in ((10.0, 20.0), (100.0, 110.0), (50.0, 60.0)):
        found += [Round(each.name, 1.0, off_us if each.name == OFF else other_us) for each in SETTINGS]
    ratios = [figure.value for figure in observability.figures(found) if figure.unit == "x"]
    assert ratios == pytest.approx([1.2] * (len(SETTINGS) - 1))


def test_what_pauses_take_from_requests() -> None:
    pauses = Pauses(seen=[Pause(0, 10 * MS, 30 * MS), Pause(0, 40 * MS, 45 * MS), Pause(1, 42 * MS, 43 * MS)])
    assert pauses.lost_percent(0, 100 * MS) == pytest.approx(25)
    assert pauses.lost_percent(20 * MS, 40 * MS) == pytest.approx(50)
    instants = np.array([0, 10, 20, 31, 90], np.int64) * MS
    assert pauses.hit(instants, 20 * MS, 9 * MS) == 3, "those at 0, 10 and 20 ms lose 10, 20 and 10 ms"
    assert pauses.hit(instants, 20 * MS, 20 * MS) == 0
    assert Pauses().hit(instants, 20 * MS, 0) == 0


def test_meters_watch_every_core_and_tell_what_they_saw() -> None:
    with watched() as pauses:
        begin_ns = time.monotonic_ns()
        time.sleep(0.2)
        end_ns = time.monotonic_ns()
    assert 0 <= pauses.lost_percent(begin_ns, end_ns) <= 100
    assert all(each.end_ns > each.begin_ns for each in pauses.seen)
