"""Each experiment on a tiny cluster or for a moment: it is played to its end, and its files appear."""

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


@pytest.mark.parametrize(
    "experiment",
    [
        figure6.FIGURE,
        figure7_left.FIGURE,
        figure7_right.FIGURE,
        figure8.FIGURE,
        figure9.FIGURE,
        table65.FIGURE,
        scalability.FIGURE,
    ],
    ids=lambda experiment: experiment.name,
)
def test_every_other_experiment_is_played_and_published(
    experiment: Experiment[Any], options: Options, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figure6, "FIGURE6_MODELS", 100)
    monkeypatch.setattr(figure6, "FIGURE6_PAGES", 115)
    monkeypatch.setattr(scalability, "SHORT_DEVICES", (1,))
    report = played(experiment, options, quiet, length=0.02)
    assert report.lines
    assert report.rows


def test_figure9_refuses_a_log_that_is_not_there(options: Options, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="can't be read"):
        figure9.from_log(msgspec.structs.replace(options, log=tmp_path / "nothing"))
