"""Figure 2: that every run is counted, that tails are tails, and that threads really run together."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from mainspring.experiments.figures.tables import read_report
from mainspring.experiments.predictability import __main__ as command
from mainspring.experiments.predictability.concurrent import Level, run_together
from mainspring.experiments.predictability.isolated import (
    WARM_UP,
    Series,
    repeat_in_isolation,
    series_of,
)
from mainspring.experiments.predictability.plot import draw
from mainspring.experiments.predictability.report import LatencyReport, compare
from tests.patience import PATIENCE_S


def test_every_run_is_counted_and_the_first_are_not() -> None:
    calls = itertools.count()
    done: list[int] = []
    found = repeat_in_isolation(lambda: next(calls), 2500, cpu_time=False, told=done.append)
    assert list(found) == ["device"]
    assert found["device"].tolist() == list(range(WARM_UP, WARM_UP + 2500))
    assert done == [1000, 2000, 2500]


def test_processor_time_is_what_the_thread_computed() -> None:
    def sleep() -> int:
        threading.Event().wait(0.002)
        return 2_000_000

    found = repeat_in_isolation(sleep, 20, cpu_time=True)
    assert found["device"].tolist() == [2_000_000] * 20
    assert np.median(found["cpu"]) < 1_000_000


def test_percentiles_are_left_out_that_no_run_lies_beyond() -> None:
    series = series_of("s", np.arange(1, 1001) * 1_000_000)
    assert series.percentiles_ms == {"50": 500, "90": 900, "99": 990, "99.9": 999, "100": 1000}
    assert series.spread is None
    many = series_of("s", np.concatenate([np.full(19_990, 1_000_000), np.full(10, 1_500_000)]))
    assert many.percentiles_ms["99.99"] == 1.5
    assert many.spread == pytest.approx(0.5)


def test_a_tail_falls_from_all_runs_to_the_longest() -> None:
    random = np.random.default_rng(0)
    durations = random.integers(1, 1_000_000_000, 5000)
    tail = series_of("s", durations, points=50).tail
    shares, values = zip(*tail, strict=True)
    assert list(shares) == sorted(shares, reverse=True)
    assert list(values) == sorted(values)
    assert (shares[0], values[0]) == (1.0, durations.min() / 1e6)
    assert (shares[-1], values[-1]) == (1 / 5000, durations.max() / 1e6)
    for share, value in tail:
        assert np.count_nonzero(durations >= round(value * 1e6)) == round(share * 5000)


def test_threads_run_at_the_same_time() -> None:
    """Each waits for the others inside its run, so one after the other would never end."""
    together = threading.Barrier(3)

    def run() -> None:
        together.wait(PATIENCE_S)

    latencies, took_s = run_together([run] * 3, 0.0)
    assert [len(found) for found in latencies] == [1, 1, 1]
    assert took_s > 0


def test_a_thread_that_fails_ends_all_and_says_why() -> None:
    def fail() -> None:
        raise RuntimeError("no such model")

    with pytest.raises(RuntimeError, match="no such model"):
        run_together([fail, lambda: None], 0.0)


def level(concurrency: int, rate: float, tail_ms: float) -> Level:
    durations = np.full(10_000, 1_000_000)
    durations[:20] = round(tail_ms * 1e6)
    return Level(concurrency, rate, series_of(str(concurrency), durations))


def test_comparison_is_with_what_the_paper_says() -> None:
    isolated = [series_of("device", np.concatenate([np.full(19_990, 2_000_000), np.full(10, 2_001_000)]))]
    levels = [level(1, 100, 2), level(2, 125, 50), level(16, 110, 180)]
    lines = {line.name: line for line in compare(isolated, levels)}
    spread = lines["2a: 99.99th above the median"]
    assert spread.ours["device"] == pytest.approx(0.05)
    assert spread.paper is not None
    assert spread.paper.value == 0.03
    assert lines["2b: most throughput / that of 1"].ours == {"device": 1.25}
    assert lines["2b: longest of these / that of 1"].ours == {"device": 90}
    assert compare([], []) == []


def test_only_what_was_measured_gets_a_panel(tmp_path: Path) -> None:
    isolated = [series_of("device", np.arange(1, 2000) * 1000)]
    levels = [level(1, 100, 2), level(2, 125, 50)]
    widths = []
    for name, parts in {"a": (isolated, []), "b": ([], levels), "both": (isolated, levels)}.items():
        path = tmp_path / f"{name}.png"
        draw(path, "Figure 2", *parts)
        widths.append(Image.open(path).width)
    assert widths[0] < widths[1] < widths[2]


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.command()(command.main)
    return app


def test_the_whole_experiment_on_this_machines_processor(app: typer.Typer, tmp_path: Path) -> None:
    arguments = ["--model", "digits", "--runs", "120", "--levels", "1,3", "--seconds", "0.1", "--no-realtime"]
    result = CliRunner().invoke(app, [*arguments, "--output", str(tmp_path)])
    assert result.exit_code == 0, result.output
    report = msgspec.json.decode((tmp_path / "figure2.json").read_bytes(), type=LatencyReport)
    assert [(series.name, series.runs) for series in report.isolated] == [("device", 120), ("cpu", 120)]
    assert all(0 < series.percentiles_ms["50"] <= series.percentiles_ms["100"] for series in report.isolated)
    assert [found.concurrency for found in report.levels] == [1, 3]
    assert all(found.rate > 0 and found.latency.runs > 0 for found in report.levels)
    assert Image.open(tmp_path / "figure2.png").width > 1000
    assert "| 2a: 50th percentile |" in read_report(tmp_path / "figure2.json").text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--levels", "0,2"], "no numbers from 1 to 64"),
        (["--levels", "two"], "no numbers from 1 to 64"),
        (["--device", "gpu"], "neither cpu nor cuda:N"),
    ],
)
def test_what_can_not_be_is_refused(
    app: typer.Typer, tmp_path: Path, arguments: list[str], says: str
) -> None:
    given = ["--model", "digits", "--output", str(tmp_path), *arguments]
    result = CliRunner().invoke(app, given, env={"COLUMNS": "200"})
    assert result.exit_code != 0
    assert says in result.output + str(result.exception)


def test_series_are_kept_whole() -> None:
    series = series_of("s", np.arange(1, 300))
    assert msgspec.json.decode(msgspec.json.encode(series), type=Series) == series
