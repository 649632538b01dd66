"""What the comparisons of metrics, traces and pauses count."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.experiments.bench import observability
from mainspring.experiments.bench.observability import OFF, SETTINGS


def test_every_setting_has_its_turns_and_is_compared_with_none_of_them(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.proto", reason="OpenTelemetry is not installed")
    found = observability.measure(1, 0.2, tmp_path)
    assert [each.setting for each in found] == [each.name for each in SETTINGS]
    assert all(each.requests_hz > 0 and each.cpu_us > 0 for each in found)
    names = [figure.name for figure in observability.figures(found)]
    assert len(names) == 2 * len(SETTINGS) - 1
    assert f"all requests traced / {OFF}" in names
