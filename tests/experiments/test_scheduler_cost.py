"""The measurement of the scheduler's cost: that it counts what it says, on a setting of half a second."""

from pathlib import Path

import msgspec
import pytest

from mainspring.experiments import scheduler_cost
from mainspring.experiments.bench_scheduler import growth_of, plot
from mainspring.experiments.scheduler_cost import Cost, measure
from mainspring.experiments.scheduler_load import Recording, Setting, record

SETTING = Setting(models=61, devices=2, rate=400.0, seconds=0.5)


@pytest.fixture(scope="module")
def cost() -> Cost:
    return measure(SETTING, plays=2)


def test_the_budget_adds_up_to_the_calls(cost: Cost) -> None:
    assert cost.requests > 100
    assert cost.budget["RequestArrived"].per_request == 1.0
    assert {"Result", "Wakeup"} < cost.budget.keys()
    total_us = sum(
        share.per_request * (share.handle_us + share.schedule_us) for share in cost.budget.values()
    )
    assert 0.3 * cost.request_us_mean < total_us < 3 * cost.request_us_mean
    assert cost.request_us_least <= cost.request_us_p50
    assert cost.longest[0].us == cost.call_us_max_least >= cost.longest[1].us


def test_calls_are_measured_while_workers_and_models_come_and_go() -> None:
    setting = msgspec.structs.replace(SETTING, changes=2)
    cost = measure(setting, plays=1)
    assert {"WorkerJoined", "WorkerLeft", "ModelAdded", "ModelRemoved"} < cost.budget.keys()
    events = {kind: round(share.per_request * cost.requests) for kind, share in cost.budget.items()}
    assert events["WorkerJoined"] == events["WorkerLeft"] == 6
    assert events["ModelRemoved"] == 4
    assert events["ModelAdded"] == 2
    assert cost.in_time > 0.5


def test_a_scheduler_that_decides_otherwise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def altered(setting: Setting) -> Recording:
        recording = record(setting)
        turns = [(now_ns, event, (*kinds, "Load")) for now_ns, event, kinds in recording.turns]
        return msgspec.structs.replace(recording, turns=turns)

    monkeypatch.setattr(scheduler_cost, "record", altered)
    with pytest.raises(RuntimeError, match="commands came out"):
        measure(SETTING, plays=1)


@pytest.mark.parametrize(
    ("us", "verdict"),
    [
        ((20.0, 20.5, 20.2), "flat"),
        ((20.0, 26.0, 34.0), "at most logarithmic"),
        ((20.0, 60.0, 190.0), "more"),
    ],
)
def test_growth_is_named_by_its_fit(cost: Cost, us: tuple[float, ...], verdict: str, tmp_path: Path) -> None:
    costs = [
        msgspec.structs.replace(cost, setting=Setting(models=models), request_us_least=each)
        for models, each in zip((1_000, 8_000, 64_000), us, strict=True)
    ]
    growth = growth_of("models", costs)
    assert growth.verdict().startswith(verdict)
    assert growth.text().startswith(f"64 x the models: {us[-1] / us[0]:.2f} x the cost")
    plot([growth], "policy clockwork, compiled", tmp_path / "growth.png")
    assert (tmp_path / "growth.png").stat().st_size > 10_000
