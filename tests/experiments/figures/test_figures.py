"""Each experiment on a tiny cluster or for a moment: what the paper says of it holds, and files appear."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from mainspring.experiments.figures import (
    figure5,
    figure6,
    figure7_left,
    figure7_right,
    figure8,
    figure9,
    scalability,
    table65,
)
from mainspring.experiments.figures.experiment import Experiment, FigureReport, run
from mainspring.experiments.figures.options import Options
from mainspring.experiments.figures.paper import INDEPENDENT_FIGURE5

PNG = b"\x89PNG\r\n"


@pytest.fixture
def quiet() -> Console:
    return Console(quiet=True)


def played(experiment: Experiment[Any], options: Options, quiet: Console, **changes: Any) -> FigureReport:
    """Run an experiment and check its files."""
    options = msgspec.structs.replace(options, **changes)
    report = run(experiment, options, quiet)
    stem = f"{experiment.name}_live" if options.live else experiment.name
    written = msgspec.json.decode((options.output / f"{stem}.json").read_bytes())
    assert written["lines"] == msgspec.to_builtins(report.lines)
    assert (options.output / f"{stem}.png").read_bytes().startswith(PNG)
    return report


def line(report: FigureReport, name: str, policy: str = "clockwork") -> float:
    """Return one of the compared numbers."""
    value = next(each for each in report.lines if each.name == name).ours[policy]
    assert value is not None
    return value


def test_figure5_agrees_with_an_independent_simulation(options: Options, quiet: Console) -> None:
    report = played(figure5.FIGURE, options, quiet, length=0.2)
    for slo_ms, rate in INDEPENDENT_FIGURE5.items():
        assert line(report, f"goodput, SLO {slo_ms:g} ms") == pytest.approx(rate, rel=0.15)
    for row in report.rows:
        assert row.max_ms <= row.slo_ms


def test_figure6_moves_the_bottleneck_from_exec_to_load(
    options: Options, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figure6, "FIGURE6_MODELS", 300)
    monkeypatch.setattr(figure6, "FIGURE6_PAGES", 115)
    report = played(figure6.FIGURE, options, quiet, length=0.1)
    assert line(report, "models that fill memory") == 115 // 7
    assert line(report, "minor goodput before") == pytest.approx(200, rel=0.15)
    assert line(report, "cold starts at the end") > 60
    assert line(report, "LOAD busy after that") > 90
    assert line(report, "minor goodput at the end") == pytest.approx(200, rel=0.15)
    assert line(report, "longest latency") <= 100


def test_figure7_left_satisfies_loose_slos_and_no_impossible_one(options: Options, quiet: Console) -> None:
    report = played(figure7_left.FIGURE, options, quiet, length=0.04)
    assert len(report.rows) == 6
    for row in report.rows:
        # One execution is all the time there is at first, and the network takes some of it.
        assert row.shares[0] == 0
        assert row.shares[-1] > 0.99
    assert line(report, "12 models, 600 r/s: in time at 3.4 x") > 95


def test_figure7_right_keeps_batch_clients_from_the_sensitive(options: Options, quiet: Console) -> None:
    # For a second the scheduler remembers the tight deadlines of the first stages, of 0.2 s each here.
    report = played(figure7_right.FIGURE, options, quiet, length=0.15)
    for clients in ("12 x 16", "48 x 4"):
        assert line(report, f"{clients} batch clients: in time at 11.4 x") == 100
        assert line(report, f"{clients} batch clients: batch throughput at 25.6 x") > 500
    alone = next(row for row in report.rows if not row.clients)
    assert max(alone.batch_rates) == 0


def test_figure8_serves_the_azure_mix(options: Options, quiet: Console) -> None:
    report = played(figure8.FIGURE, options, quiet, length=0.02)
    assert line(report, "12 devices: offered") == pytest.approx(4_860, rel=0.1)
    assert line(report, "12 devices: in time") > 99
    assert line(report, "6 devices: longest latency") <= 100
    assert {row.models for row in report.rows} == {2 * 66}


def test_table65_knows_both_slos(options: Options, quiet: Console) -> None:
    report = played(table65.FIGURE, options, quiet, length=0.02)
    assert line(report, "SLO 100 ms: in time") > 99
    assert line(report, "SLO 25 ms: p99.99") <= 25
    assert line(report, "SLO 100 ms: offered") == pytest.approx(6_174, rel=0.1)


def test_figure9_predicts_within_the_jitter(options: Options, quiet: Console) -> None:
    report = played(figure9.FIGURE, options, quiet, log=None, length=0.05)
    simulated = report.rows[0]
    assert simulated.infers > 500
    assert 0 < line(report, "INFER duration, under") < 60
    tail = simulated.tail("INFER", "duration", "over")
    assert tail.error_us == sorted(tail.error_us)
    assert tail.more_percent == sorted(tail.more_percent, reverse=True)


def test_figure9_refuses_a_log_that_is_not_there(options: Options, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="can't be read"):
        figure9.from_log(msgspec.structs.replace(options, log=tmp_path / "nothing"))


def test_scalability_measures_the_scheduler(
    options: Options, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scalability, "SHORT_DEVICES", (1, 2))
    report = played(scalability.FIGURE, options, quiet, length=0.2)
    assert [row.devices for row in report.rows] == [1, 1, 2, 2]
    for row in report.rows:
        assert 1 < row.scheduler_us < 1_000
    assert line(report, "2 devices at 50%: in time") == 100


def test_a_live_run_serves_through_sockets(
    options: Options, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figure5, "FIGURE5_SLOS_MS", (500.0,))
    monkeypatch.setattr(figure5, "FIGURE5_MODELS", 4)
    report = played(figure5.FIGURE, options, quiet, live=True, length=0.3)
    assert report.form == "live, short"
    assert line(report, "goodput, SLO 500 ms") > 100
