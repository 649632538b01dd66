"""Graphs of models in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.messages.actions import Infer
from mainspring.messages.events import QueryArrived
from mainspring.messages.queries import StepsKnown
from mainspring.messages.tables import ConfigError
from mainspring.simulator.run import simulate
from mainspring.simulator.spec_file import parse_spec

SPEC: dict[str, Any] = {
    "devices": [{"count": 2}],
    "models": [
        {"name": "find", "infer_ms": {"1": 4.0, "4": 8.0}, "weights_mb": 32.0},
        {"name": "read", "infer_ms": {"1": 2.0, "4": 4.0}, "weights_mb": 32.0},
        {"name": "check", "infer_ms": {"1": 3.0, "4": 6.0}, "weights_mb": 32.0},
    ],
    "graphs": [
        {
            "name": "text",
            "steps": [
                {"model": "find"},
                {"model": "read", "share": 3.5},
                {"model": "check", "after": ["find"], "share": 0.25},
            ],
        }
    ],
    "workload": [{"models": "text", "rate": 50.0, "slo_ms": 60.0}],
    "warm_up_s": 0.5,
    "duration_s": 2.0,
}


def played(**changes: Any) -> tuple[Any, list[Any]]:
    """Return a run, and all that its event stream had."""
    entries: list[Any] = []
    spec = parse_spec({**SPEC, **changes}, "this test")
    run = simulate(spec, validate_every=50, record=lambda _now_ns, entry: entries.append(entry))
    return run, entries


def rows_of(entries: list[Any], model: str) -> int:
    return sum(sum(each.rows) for each in entries if isinstance(each, Infer) and each.model == model)


def test_every_request_runs_through_the_steps_with_the_shares_of_its_rows() -> None:
    run, entries = played()
    summary = run.summary
    assert summary.offered == pytest.approx(100, abs=30)
    assert summary.goodput == summary.offered
    find = rows_of(entries, "find")
    assert rows_of(entries, "read") == pytest.approx(3.5 * find, rel=0.1)
    assert rows_of(entries, "check") == pytest.approx(0.25 * find, rel=0.5)
    queries = [each for each in entries if isinstance(each, QueryArrived)]
    assert {query.graph for query in queries} == {"text"}
    assert [(step.name, step.after, step.certain) for step in queries[0].steps][1:] == [
        ("read", (0,), True),
        ("check", (0,), False),
    ]
    assert any(isinstance(each, StepsKnown) for each in entries)


@pytest.mark.parametrize("apart", [False, True])
def test_under_overload_each_request_has_its_answer(apart: bool) -> None:
    run, entries = played(
        workload=[{"models": "text", "rate": 400.0, "slo_ms": 60.0}],
        graphs=[{**SPEC["graphs"][0], "apart": apart}],
        duration_s=0.5,
    )
    assert 0 < run.summary.goodput < run.summary.offered
    assert run.summary.missing == 0
    assert any(isinstance(each, QueryArrived) for each in entries) is not apart


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ([{"model": "find", "after": ["read"]}], "no step before 'find' is called 'read'"),
        ([{"model": "find"}, {"model": "find"}], "two steps 'find'"),
        ([], "has 0 steps"),
    ],
)
def test_what_can_t_be_is_refused(steps: list[dict[str, Any]], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_spec({**SPEC, "graphs": [{"name": "text", "steps": steps}]}, "this test")


def test_a_step_of_a_model_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="a step of model 'nothing', which there is not"):
        played(graphs=[{"name": "text", "steps": [{"model": "nothing"}]}])


def test_a_short_step_that_waits_for_long_ones_is_not_lost() -> None:
    """A page is opened in 2 ms, and the lines of another are read in 37 ms each: at half load the share of
    the first step would be over before the device is free."""
    times = {
        "open": {"1": 2.0},
        "detect": {"1": 40.0},
        "read": {"1": 37.0, "2": 76.0, "4": 170.0, "8": 460.0},
    }
    run, entries = played(
        devices=[{"count": 1}],
        models=[{"name": name, "infer_ms": each, "weights_mb": 16.0} for name, each in times.items()],
        graphs=[
            {
                "name": "page",
                "steps": [{"model": "open"}, {"model": "detect"}, {"model": "read", "share": 3.5}],
            }
        ],
        workload=[{"models": "page", "rate": 2.9, "slo_ms": 1_000.0}],
        duration_s=20.0,
    )
    assert run.summary.goodput_share > 0.95
    sizes = [each.batch_size for each in entries if isinstance(each, Infer) and each.model == "read"]
    assert sum(size == 8 for size in sizes) < 0.1 * len(sizes), "a batch of 8 takes as long as 12 rows alone"


def ensemble(least: int, rate: float, apart: bool = False) -> tuple[Any, list[Any]]:
    """Play three members on two devices, of which the longest takes twice the SLO of 20 ms."""
    steps: list[dict[str, Any]] = [{"model": each, "after": []} for each in ("find", "read", "check")]
    models = [{**SPEC["models"][0], "infer_ms": {"1": 40.0, "4": 80.0}}, *SPEC["models"][1:]]
    graph = {"name": "vote", "steps": steps, "least": least, "apart": apart}
    workload = {"models": "vote", "rate": rate, "slo_ms": 20.0}
    return played(models=models, graphs=[graph], workload=[workload])


def test_an_ensemble_answers_with_the_members_that_can_be_in_time() -> None:
    run, entries = ensemble(2, rate=20.0)
    assert run.summary.goodput == run.summary.offered > 0
    assert rows_of(entries, "find") == 0
    assert rows_of(entries, "read") == rows_of(entries, "check") > 0


def test_with_fewer_members_than_the_least_there_is_no_answer() -> None:
    run, _ = ensemble(3, rate=20.0)
    assert run.summary.goodput == 0
    assert run.summary.rejected_total == run.summary.offered > 0


@pytest.mark.parametrize("apart", [False, True])
def test_under_overload_an_ensemble_answers_at_its_cut_off_at_the_latest(apart: bool) -> None:
    summary = ensemble(1, 2_000.0, apart)[0].summary
    assert 0 < summary.goodput <= summary.offered
    assert summary.missing == summary.late == 0
    assert summary.max_ms is not None
    assert summary.max_ms < 20.5


def test_an_ensemble_whose_members_wait_for_others_is_refused() -> None:
    with pytest.raises(ConfigError, match="'vote' is an ensemble: give each of its steps after = "):
        parse_spec(
            {**SPEC, "graphs": [{"name": "vote", "steps": [{"model": "find"}], "least": 1}]}, "this test"
        )
