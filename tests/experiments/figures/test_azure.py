from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from mainspring.experiments.figures.azure import FILE, azure, deal, trace_note
from mainspring.experiments.figures.options import Options
from mainspring.traces.tracefile import TraceError

NAMES = [f"m{number}" for number in range(100)]


def test_a_short_form_keeps_the_rate_and_the_changes(options: Options) -> None:
    workload = azure(options, NAMES, rate=2_000.0, played_s=8.0, trace_s=8 * 3600.0, slo_ms=100.0)
    arrivals = list(workload.arrivals(np.random.default_rng(0)))
    assert len(arrivals) == pytest.approx(16_000, rel=0.05)
    assert arrivals[-1].time_ns <= 8e9
    assert {arrival.slo_ns for arrival in arrivals} == {100_000_000}


def test_without_the_file_the_mix_is_synthetic_and_says_so(
    options: Options, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    without = msgspec.structs.replace(options, traces=tmp_path)
    workload = azure(without, NAMES, rate=2_000.0, played_s=4.0, trace_s=8 * 3600.0, slo_ms=100.0)
    assert "--traces" in capsys.readouterr().out
    assert "synthetic" in trace_note(without)
    assert sum(1 for _ in workload.arrivals(np.random.default_rng(0))) > 4_000


def test_a_file_that_ends_too_soon_is_refused(tmp_path: Path) -> None:
    path = tmp_path / FILE
    path.write_text("HashOwner,HashApp,HashFunction,Trigger,1,2\no,a,f,http,1,2\n", encoding="utf-8")
    with pytest.raises(TraceError, match="ends before minute 960"):
        deal(path, NAMES, 10, 10.0, np.random.default_rng(0))
