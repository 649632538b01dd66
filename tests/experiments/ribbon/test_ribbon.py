"""The planner against Ribbon's artifact: rates of pools, and the paper's optima."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.experiments.ribbon.__main__ import agreement
from mainspring.experiments.ribbon.data import SETTINGS, spec_of
from mainspring.experiments.ribbon.optima import optimum
from mainspring.planner.problem import read_problem

SHARED = Path(__file__).resolve().parents[4] / "shared" / "profiles"
pytestmark = pytest.mark.skipif(
    not (SHARED / "ribbon" / "price.csv").is_file(), reason="Ribbon's artifact is not here"
)
CANDLE, RESNET, VGG, MTWND, DIEN = SETTINGS


@pytest.mark.parametrize("setting", [CANDLE, RESNET, MTWND], ids=lambda each: each.name)
def test_rates_are_the_artifacts(setting: object, tmp_path: Path) -> None:
    found = agreement(setting, 2, "artifact", setting.artifact_ms, tmp_path, SHARED)  # type: ignore[arg-type,attr-defined]
    assert found is not None
    assert found.within_point >= 0.95
    assert found.near > 300
    assert found.near_within >= 0.95
    assert agreement(VGG, 1, "artifact", 800, tmp_path, SHARED) is None


def test_the_optima_are_the_papers(tmp_path: Path) -> None:
    pools = {each.key: optimum(each, tmp_path, shared=SHARED) for each in (CANDLE, RESNET, VGG, DIEN)}
    assert pools["candle"].pool == (6, 0, 2)
    assert pools["dien"].pool == (5, 1, 0)
    for setting in (CANDLE, RESNET, VGG, DIEN):
        found = pools[setting.key]
        assert found.one_kind is not None
        assert found.one_kind[0] == setting.one_kind
        assert found.saved == pytest.approx(setting.saved, abs=0.015)


def test_true_poisson_arrivals_need_more(tmp_path: Path) -> None:
    regular, random = (
        optimum(CANDLE, tmp_path, arrivals=arrivals, shared=SHARED).price
        for arrivals in ("artifact", "poisson")
    )
    assert regular is not None
    assert random is not None
    assert random > regular


def test_the_stream_is_as_configured(tmp_path: Path) -> None:
    problem = read_problem(spec_of(DIEN, tmp_path, shared=SHARED))
    gaps_ms = (problem.queries.due_ns[1:] - problem.queries.due_ns[:-1]) / 1e6
    assert gaps_ms.mean() == pytest.approx(2.0, abs=0.05)
    assert abs(gaps_ms - gaps_ms.round()).max() < 1e-4, "whole milliseconds"
    assert len(problem.queries) == 25_000
    assert problem.queries.rows.max() <= 500
