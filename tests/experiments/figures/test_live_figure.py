"""An experiment on a real cluster, for a moment."""

from __future__ import annotations

import pytest
from rich.console import Console

from mainspring.experiments.figures import figure5
from mainspring.experiments.figures.options import Options
from tests.experiments.figures.test_figures import line, played


def test_a_live_run_serves_through_sockets(
    options: Options, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figure5, "FIGURE5_SLOS_MS", (500.0,))
    monkeypatch.setattr(figure5, "FIGURE5_MODELS", 4)
    report = played(figure5.FIGURE, options, quiet, live=True, length=0.1)
    assert report.form == "live, short"
    assert line(report, "goodput, SLO 500 ms") > 0
