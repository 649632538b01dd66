"""A graph as a log tells of it: shares, conditions that go together, durations; and the spec of that."""

from __future__ import annotations

import tomllib

import pytest

from mainspring.messages.actions import Command
from mainspring.messages.events import Event
from mainspring.simulator.graph_groups import GraphGroup, GraphStep
from mainspring.simulator.run import simulate
from mainspring.simulator.spec import DeviceGroup, ModelGroup, SimulationSpec, WorkloadSpec
from mainspring.simulator.spec_file import parse_spec
from mainspring.telemetry.graph_profile import GraphProfiler, as_spec

STEPS = (
    GraphStep(model="detect"),
    GraphStep(model="read", share=0.4),
    GraphStep(model="word", after=("detect",), share=0.5),
)


@pytest.fixture(scope="module")
def profiler() -> GraphProfiler:
    found = GraphProfiler("plates")

    def take(_now_ns: int, entry: Event | Command) -> None:
        found.take(entry)

    names = ("detect", "read", "word")
    spec = SimulationSpec(
        devices=(DeviceGroup(kind="gpu", count=3),),
        models=tuple(
            ModelGroup(name=name, infer_ms={"1": 4 + place, "2": 9}) for place, name in enumerate(names)
        ),
        graphs=(GraphGroup(name="plates", steps=STEPS),),
        workload=(WorkloadSpec(models="plates", rate=100, slo_ms=500),),
        warm_up_s=0,
        duration_s=8,
    )
    simulate(spec, analyse=False, record=take)
    return found


def test_shares_and_durations_are_those_that_were_served(profiler: GraphProfiler) -> None:
    found = profiler.finish()
    assert found is not None
    assert [step.after for step in found.steps] == [(), ("detect",), ("detect",)]
    shares = [step.share for step in found.steps]
    assert shares == pytest.approx([1.0, 0.4, 0.5], abs=0.06)
    assert found.infer_ms["read"]["gpu"][1] == pytest.approx(5, rel=0.01)
    (pair,) = found.together
    assert pair.steps == ("read", "word")
    assert pair.both == pytest.approx(pair.independent, abs=0.05)


def test_the_spec_can_be_planned_once_it_has_devices_and_a_workload(profiler: GraphProfiler) -> None:
    found = profiler.finish()
    assert found is not None
    table = tomllib.loads(as_spec(found))
    table["devices"] = [{"kind": "gpu", "price": 1.0}]
    table["workload"] = [{"models": "plates", "rate": 100}]
    spec = parse_spec(table, "it", planned=True)
    assert [step.model for step in spec.graphs[0].steps] == ["detect", "read", "word"]
    with pytest.raises(ValueError, match="known are gpu"):
        as_spec(found, "tpu")


def test_a_graph_that_nobody_asked_for_has_no_profile(profiler: GraphProfiler) -> None:
    del profiler
    assert GraphProfiler("other").finish() is None
