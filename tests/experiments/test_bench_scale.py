"""The benchmark of gateways beside each other: that it runs, and what it concludes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mainspring.experiments.bench.scale import Spent, carried, main


def turns(cost_us: float, noise: float, seed: int, count: int = 40) -> list[Spent]:
    """Return stretches of 1,000 requests each."""
    costs = cost_us * np.random.default_rng(seed).lognormal(0.0, noise, count)
    return [Spent(1000, 1000, float(cost) / 1e3, 0.1) for cost in costs]


@pytest.mark.parametrize("dearer", [1.0, 1.25])
def test_two_that_cost_more_carry_less(dearer: float) -> None:
    times, low, high = carried(2, turns(300.0, 0.1, 1), turns(300.0 * dearer, 0.1, 2))
    assert low <= times <= high
    assert times == pytest.approx(2.0 / dearer, rel=0.1)
    assert low <= 2.0 / dearer <= high


def test_a_short_run_serves_with_one_gateway_and_with_two(tmp_path: Path) -> None:
    main(most=2, rate=20, seconds=1, devices=1, turns=2, output=tmp_path)
    figures = {
        each["name"]: each["value"] for each in json.loads((tmp_path / "scale.json").read_text())["figures"]
    }
    for what in ("1 gateway", "2 gateways"):
        assert figures[f"{what}: answered in time"] > 0.5
        assert figures[f"{what}: gateways' processor time a request"] > 0
    assert figures["2 gateways: times what one carries"] > 0
