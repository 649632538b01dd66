"""Recipes: what a command line's words become."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from mainspring.traces.arrival import SECOND_NS, Arrival, Kind, WorkloadError
from mainspring.traces.recipe import Recipe, build
from mainspring.traces.source import ClosedLoop

MODELS = ("a", "b", "c")


def play(recipe: Recipe) -> list[Arrival]:
    source = build(recipe, MODELS).source(np.random.default_rng(recipe.seed))
    arrivals = []
    while source.next_ns() is not None:
        arrivals.append(source.take())
    return arrivals


@pytest.fixture
def minutes(tmp_path: Path) -> Path:
    path = tmp_path / "t.csv"
    counts = ",".join("600" for _ in range(10))
    path.write_text(
        "HashOwner,HashApp,HashFunction,Trigger,"
        + ",".join(map(str, range(1, 11)))
        + f"\no,a,f,http,{counts}\n"
    )
    return path


@pytest.mark.parametrize("kind", [Kind.POISSON, Kind.GAMMA, Kind.SYNTHETIC])
def test_generators_have_rate_scale_slo_and_rows(kind: Kind) -> None:
    recipe = Recipe(kind=kind, rate=100.0, scale=2.0, duration_ns=60 * SECOND_NS, slo_ns=7, rows=2, cv=1.5)
    arrivals = play(recipe)
    assert len(arrivals) == pytest.approx(12_000, rel=0.25)
    assert {(a.slo_ns, a.rows) for a in arrivals} == {(7, 2)}
    assert max(a.time_ns for a in arrivals) < 60 * SECOND_NS
    assert arrivals == play(recipe)


def test_zipf_skews_poisson() -> None:
    counts = Counter(a.model for a in play(Recipe(kind=Kind.POISSON, zipf_exponent=2.0)))
    assert max(counts.values()) > 0.6 * sum(counts.values())


def test_a_trace_plays_at_its_own_rate_or_the_one_asked_for(minutes: Path) -> None:
    own = Recipe(kind=Kind.AZURE2019, trace=minutes, duration_ns=120 * SECOND_NS)
    assert len(play(own)) == 1200
    asked = Recipe(kind=Kind.AZURE2019, trace=minutes, duration_ns=120 * SECOND_NS, rate=50.0)
    assert len(play(asked)) == pytest.approx(6000, rel=0.05)


def test_time_scale_plays_faster_and_start_skips(minutes: Path) -> None:
    fast = Recipe(kind=Kind.AZURE2019, trace=minutes, time_scale=0.1, duration_ns=30 * SECOND_NS)
    arrivals = play(fast)
    assert len(arrivals) == pytest.approx(3000, abs=2)
    assert max(a.time_ns for a in arrivals) > 29 * SECOND_NS
    late = Recipe(
        kind=Kind.AZURE2019, trace=minutes, start_ns=9 * 60 * SECOND_NS, duration_ns=600 * SECOND_NS
    )
    assert len(play(late)) == 600


def test_2021_and_closed_are_built(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("app,func,end_timestamp,duration\na,f,10,1\na,g,12,1\n")
    assert len(play(Recipe(kind=Kind.AZURE2021, trace=path))) == 2
    loop = build(Recipe(kind=Kind.CLOSED, concurrency=5, think_ns=2, duration_ns=9), MODELS)
    assert isinstance(loop, ClosedLoop)
    client = loop.clients[0]
    assert (len(loop.clients), client.concurrency, client.think_ns, loop.duration_ns) == (3, 5, 2, 9)


def test_a_title_names_the_file_that_is_played(minutes: Path) -> None:
    assert Recipe(kind=Kind.AZURE2019, trace=minutes).title(3).startswith("azure2019 (t.csv): 3 models")
    assert Recipe().title(3) == "synthetic: 3 models, 100 requests/s, SLO 100 ms"
    loop = Recipe(kind=Kind.CLOSED, think_ns=5_000_000, slo_ns=None)
    assert loop.title(1) == "closed: 1 model, 4 in flight each 5 ms after an answer, no SLO"


def test_a_file_beside_a_generator_is_refused(minutes: Path) -> None:
    with pytest.raises(WorkloadError, match=r"poisson is generated and would not read t\.csv"):
        build(Recipe(kind=Kind.POISSON, trace=minutes), MODELS)


def test_what_is_missing_is_said() -> None:
    with pytest.raises(WorkloadError, match="--trace FILE"):
        build(Recipe(kind=Kind.AZURE2021), MODELS)
    with pytest.raises(WorkloadError, match="positive duration"):
        build(Recipe(duration_ns=0), MODELS)
    with pytest.raises(WorkloadError, match="at least one model"):
        build(Recipe(), ())
