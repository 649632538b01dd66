"""The comparison of executions with stock sessions: both run what they should, and medians are compared."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import typer

from mainspring.experiments.bench import stock
from mainspring.experiments.bench.stock import Ratio


def test_a_layer_is_run_both_ways_on_the_same_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stock, "LAYER_SHAPE", (64, 48))
    found = list(stock.compare(stock.LAYER, [1, 4], 0.01))
    assert [(each.model, each.batch_size) for each in found] == [("layer", 1), ("layer", 4)]
    assert all(each.stock_ms > 0 and each.served_ms > 0 and each.runs >= 5 for each in found)


def test_figures_hold_each_model_and_the_median_to_their_bounds() -> None:
    pairs = zip(("a", "b", "c"), (0.9, 1.0, 1.2), strict=True)
    rows = stock.figures([Ratio(name, 4, 1.0, ratio, 10) for name, ratio in pairs])
    assert [row.met for row in rows] == [True, True, False, True]
    np.testing.assert_allclose([row.value for row in rows], [0.9, 1.0, 1.2, 1.0])
    assert dict(itertools.islice(((row.name, row.value) for row in rows), 3, 4)) == {
        "median, batch of 4": 1.0
    }


def test_an_unknown_model_is_named() -> None:
    with pytest.raises(typer.BadParameter, match="'resnet9' is none of"):
        stock.main(models="resnet9")
