"""Devices that run unlike artifacts: each is sent its own, with that one's pages and durations."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.messages.actions import Infer, Load, Prepare
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.cluster import build_cluster
from mainspring.simulator.scenario import SECOND, random_scenario, run_to_end
from mainspring.simulator.simulation import Simulation
from mainspring.simulator.spec import DeviceGroup, ModelGroup, SimulationSpec, SpecError, WorkloadSpec
from tests.fuzz import seeded


def group(**changes: Any) -> ModelGroup:
    settings: dict[str, Any] = {"name": "m", "infer_ms": {"1": 4.0}, "weights_mb": 30.0, "load_ms": 3.0}
    return ModelGroup(**(settings | changes))


def spec(*models: ModelGroup) -> SimulationSpec:
    return SimulationSpec(
        devices=(
            DeviceGroup(kind="gpu", pages=8, targets=("tvm-sm_90a", "tvm-sm_90")),
            DeviceGroup(kind="cpu", pages=8, targets=("tvm-x86_64-avx2", "tvm-x86_64-baseline")),
        ),
        models=models,
        workload=(WorkloadSpec(rate=1.0),),
    )


BOTH = (
    group(target="tvm-sm_90"),
    group(target="tvm-x86_64-baseline", infer_ms={"1": 20.0}, weights_mb=60.0, load_ms=9.0),
)


class Played:
    """A simulation, with what was sent."""

    def __init__(self, *models: ModelGroup) -> None:
        self.sent: list[Any] = []
        cluster = build_cluster(spec(*models))
        self.simulation = Simulation(
            SchedulerConfig(),
            cluster.models,
            cluster.workers,
            record=lambda _, entry: self.sent.append(entry),
            validate_every=1,
        )

    def run(self, *due_ms: int) -> None:
        for number, at_ms in enumerate(due_ms):
            self.simulation.request(at_ms * 1_000_000, number + 1, "m", 1, 60_000_000, ())
        run_to_end(self.simulation)

    def of(self, kind: type[Any], worker: str) -> list[Any]:
        return [each for each in self.sent if isinstance(each, kind) and each.worker == worker]


def test_each_device_is_sent_its_own_artifact_with_its_own_pages_and_durations() -> None:
    played = Played(*BOTH)
    played.run(*range(100, 1100, 3))

    (gpu,), (cpu,) = played.of(Prepare, "worker-0"), played.of(Prepare, "worker-1")
    assert (gpu.model.target, cpu.model.target) == ("tvm-sm_90", "tvm-x86_64-baseline")
    assert gpu.model.executable != cpu.model.executable
    assert {len(each.pages) for each in played.of(Load, "worker-0")} == {2}
    assert {len(each.pages) for each in played.of(Load, "worker-1")} == {4}
    estimates = [
        {each.predicted_duration_ns // 1_000_000 for each in played.of(Infer, f"worker-{n}")} for n in (0, 1)
    ]
    assert estimates[0] == {4}
    assert estimates[1] <= {20}
    assert estimates[1], "the slow device is needed beside the other one"


def test_a_device_without_an_artifact_says_so_and_the_other_one_serves() -> None:
    played = Played(group(target="tvm-sm_90"))
    played.run(*range(100, 400, 10))

    status = played.simulation.scheduler.status()
    assert status.models[0].prepared_on == ("worker-0",)
    (failure,) = status.models[0].failed_on
    assert failure.startswith("worker-1: m was compiled for tvm-sm_90, and this worker runs tvm-x86_64-avx2,")
    assert not played.of(Infer, "worker-1")
    assert all(each.in_time for each in played.simulation.outcomes.values())


def test_a_request_that_no_device_can_run_is_refused_with_the_reason() -> None:
    played = Played(group(target="onnxruntime-cuda"))
    played.run(500)

    (rejected,) = [each for each in played.sent if type(each).__name__ == "Reject"]
    assert "no worker could run model 'm'" in rejected.detail
    assert "was compiled for onnxruntime-cuda" in rejected.detail


def test_artifacts_of_unlike_models_are_refused() -> None:
    with pytest.raises(SpecError, match="differ in inputs"):
        build_cluster(spec(BOTH[0], group(target="tvm-x86_64-avx2", input_kb=1.0)))
    with pytest.raises(SpecError, match="no batch size in common"):
        build_cluster(spec(BOTH[0], group(target="tvm-x86_64-avx2", infer_ms={"2": 4.0})))
    with pytest.raises(ValueError, match="'sm_90' is not a target"):
        group(target="sm_90")


@seeded(12)
def test_random_clusters_of_unlike_devices_keep_every_invariant(seed: int) -> None:
    policy = ("mainspring", "clockwork", "edf", "nexus", "symphony", "clipper")[seed % 6]
    simulation = random_scenario(seed, policy, SECOND, validate_every=7, unlike=True, shaped=seed % 3 == 0)
    run_to_end(simulation, SECOND)
    simulation.validate()
    assert all(outcome.answers == 1 for outcome in simulation.outcomes.values())
