"""Nobody who keeps asking goes without service, however little there is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mainspring.experiments.figures import figure5
from mainspring.experiments.figures.execution import simulate_case
from mainspring.experiments.figures.options import Options

LENGTH_S = 2.5
LONGEST_S = 1.0


@pytest.mark.parametrize("slo_ms", [10.0, 25.0, 50.0])
def test_every_client_of_a_closed_loop_is_answered_each_second(slo_ms: float) -> None:
    """15 clients with 16 requests in flight on one device, who ask again as soon as they are rejected."""
    options = Options(policies=("mainspring",), length=LENGTH_S / figure5.SHORT_S, profiles=Path("none"))
    (case,) = [each for each in figure5.cases(options) if each.facts["slo_ms"] == slo_ms]
    seen = simulate_case(replace(case, warm_up_s=0.0)).outcomes
    answered_s = seen.at_s + seen.latency_ms / 1e3
    for model in range(case.copies):
        own_s = np.sort(answered_s[seen.in_time & (seen.model == model)])
        gaps_s = np.diff(np.concatenate([[0.0], own_s[own_s < LENGTH_S], [LENGTH_S]]))
        assert gaps_s.max() < LONGEST_S, f"model {model} had no answer in time for {gaps_s.max():.2f} s"
