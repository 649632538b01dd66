"""Several controllers in virtual time: goodput beside one controller's, and what a death costs the others."""

from __future__ import annotations

import msgspec
import numpy as np

from mainspring.experiments.simulated_shards import Death, ShardedSimulation, divided
from mainspring.messages.sharding import first_map
from mainspring.simulator.cluster import Cluster, build_cluster, preload
from mainspring.simulator.run import simulate
from mainspring.simulator.spec import DeviceGroup, ModelGroup, SimulationSpec, WorkloadSpec
from mainspring.simulator.workloads import build_source
from mainspring.traces.records import OUTPUTS, PENDING, Records
from tests.fuzz import seeded

SHARDS = 3
SECONDS = 3
SPEC = SimulationSpec(
    devices=(DeviceGroup(count=4 * SHARDS, pages=60),),
    models=(
        ModelGroup(
            name="net",
            copies=30 * SHARDS,
            infer_ms={"1": 8.0, "2": 12.0, "4": 20.0, "8": 36.0},
            load_ms=4.0,
            weights_mb=40.0,
            input_kb=1.0,
        ),
    ),
    workload=(WorkloadSpec(rate=330.0 * SHARDS, slo_ms=150.0),),
    warm_up_s=0.0,
    duration_s=SECONDS,
)


def sharded(deaths: tuple[Death, ...] = (), seed: int = 0) -> tuple[Records, ShardedSimulation]:
    """Play `SPEC` with three controllers, four devices each."""
    spec = msgspec.structs.replace(SPEC, seed=seed)
    cluster = build_cluster(spec)
    shard_map = first_map([f"tcp://shard-{number}:1" for number in range(SHARDS)])
    workers = [cluster.workers[4 * number : 4 * number + 4] for number in range(SHARDS)]
    parts = divided(shard_map, cluster.models, workers, {})
    held = {number: preload(part.models, part.workers, "fill") for number, part in enumerate(parts)}
    records = Records()
    simulation = ShardedSimulation(
        spec.scheduler,
        shard_map,
        divided(shard_map, cluster.models, workers, held),
        seed=seed,
        faults=spec.fault_options(),
        source=build_source(spec, cluster.models),
        records=records,
        deaths=deaths,
    )
    while not simulation.finished():
        simulation.run(simulation.now_ns + 50_000_000)
        assert simulation.now_ns < 70_000_000_000, "a request has no answer"
        simulation.validate()
    return records, simulation


def test_three_controllers_answer_as_one_that_has_all() -> None:
    cluster: Cluster = build_cluster(SPEC)
    records, _ = sharded()
    alone = simulate(SPEC, cluster=cluster, analyse=False)
    sent, replied = records.columns()
    assert len(sent) == alone.summary.offered > 2_000
    in_time = replied["outcome"] == OUTPUTS
    of_one = (alone.records.columns()[1]["outcome"] == OUTPUTS).sum()
    assert in_time.sum() >= 0.97 * of_one


@seeded(3)
def test_a_controllers_death_changes_nothing_for_others_and_loses_nothing(seed: int) -> None:
    death = Death(1, at_ns=1_000_000_000, down_ns=900_000_000, noticed_ns=300_000_000)
    before, _ = sharded(seed=seed)
    after, simulation = sharded((death,), seed=seed)
    shard_map = simulation.gateway.told.map
    of_the_dead = np.array([shard_map.place(name) == 1 for name in before.models])
    (sent, replied), (also_sent, also_replied) = before.columns(), after.columns()
    assert before.models == after.models
    assert (sent == also_sent).all()
    own = of_the_dead[sent["model"]]
    names = [name for name in replied.dtype.names or () if name != "worker"]
    for name in names:
        assert (replied[name][~own] == also_replied[name][~own]).all(), name
    assert (also_replied["outcome"] != PENDING).all()
    during = own & (sent["sent_ns"] > 1_000_000_000) & (sent["sent_ns"] < 1_700_000_000)
    assert (also_replied["outcome"][during] != OUTPUTS).any(), "nothing died"
    later = own & (sent["sent_ns"] > 2_300_000_000)
    assert (also_replied["outcome"][later] == OUTPUTS).mean() > 0.9
