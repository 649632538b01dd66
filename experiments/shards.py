"""Several controllers against one whose decisions cost nothing, simulated: goodput, and what a death costs.

``python -m mainspring.experiments.shards --shards 10 --devices 2560 --models 64000``. The models are the six
architectures of ``examples/azure_8h.toml``, in equal parts, slowed down (``--slower``) so that a virtual
second has fewer requests; arrivals are synthetic ones shaped like Azure Functions, at ``--load`` of what the
devices can do. Both clusters get the same requests. With ``--death`` a controller dies in the middle, and the
requests for other shards' models are compared one by one with those of a run in which it does not.

Hashing divides models and not requests: a few models have most of them. So before that, ``--rounds`` times, a
shorter run is looked at as `mainspring balance` looks at a cluster, and what it plans goes into the map
(`cli.balancing.choosing`).

The busiest model of one mix has a quarter of its requests, whatever its size, and no model can be in two
shards. A cluster of ten times the models serves ten times the tenants: the workload is ``--mixes`` mixes side
by side, over models that have nothing to do with where these are.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mainspring.cli.balancing.choosing import Observed, needed, plan
from mainspring.experiments.simulated_shards import Death, ShardedSimulation, divided
from mainspring.messages.model import ModelSpec
from mainspring.messages.sharding import ShardMap, first_map
from mainspring.messages.tables import ConfigError
from mainspring.simulator.cluster import Cluster, build_cluster, preload
from mainspring.simulator.offered import expected_rates
from mainspring.simulator.run import simulate
from mainspring.simulator.spec import DeviceGroup, ModelGroup, SimulationSpec
from mainspring.simulator.spec_file import read_spec
from mainspring.simulator.workloads import build_source
from mainspring.traces.records import OUTPUTS, Records

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "azure_8h.toml"
PAGES_SHARE = 0.6
SLICE_NS = 50_000_000
ROUND_S = 1.0
MOST_MOVES = 200


def the_spec(
    devices: int,
    models: int,
    mixes: int,
    load: float,
    slower: float,
    slo_ms: float,
    warm_up_s: float,
    duration_s: float,
) -> SimulationSpec:
    """Return the example's cluster at another size; raise `ConfigError` if the example can't be read."""
    example = read_spec(EXAMPLE)
    share, more = divmod(models, len(example.models))
    groups = [_slowed(group, slower, share + (index < more)) for index, group in enumerate(example.models)]
    workload = tuple(
        msgspec.structs.replace(
            example.workload[0],
            models=_every(mixes, mix),
            rate=None,
            load=load / mixes,
            slo_ms=slo_ms * slower,
            seed=mix,
        )
        for mix in range(mixes)
    )
    spec = msgspec.structs.replace(
        example,
        models=tuple(groups),
        devices=(DeviceGroup(count=devices),),
        workload=workload,
        preload="once",
        warm_up_s=warm_up_s,
        duration_s=duration_s,
    )
    pages = sum(model.pages for model in build_cluster(spec).models)
    most = max(model.pages for model in build_cluster(spec).models)
    each = max(most, round(PAGES_SHARE * pages / devices))
    return msgspec.structs.replace(spec, devices=(DeviceGroup(count=devices, pages=each),))


def at_rate(spec: SimulationSpec, cluster: Cluster) -> SimulationSpec:
    """Return a spec whose workloads say their rate instead of the load, which takes long to find out."""
    rate = sum(expected_rates(spec, cluster.models).values()) / len(spec.workload)
    workload = tuple(msgspec.structs.replace(each, load=None, rate=rate) for each in spec.workload)
    return msgspec.structs.replace(spec, workload=workload)


def _slowed(group: ModelGroup, slower: float, copies: int) -> ModelGroup:
    return msgspec.structs.replace(
        group,
        copies=copies,
        load_ms=group.load_ms * slower,
        infer_ms={size: duration * slower for size, duration in group.infer_ms.items()},
    )


def _every(mixes: int, mix: int) -> str:
    digits = "0123456789"[mix::mixes]
    return f"*[{digits}]"


def balanced(spec: SimulationSpec, cluster: Cluster, shard_map: ShardMap, rounds: int) -> ShardMap:
    """Return the map that `mainspring balance` comes to in some rounds."""
    short = msgspec.structs.replace(spec, warm_up_s=ROUND_S / 2, duration_s=ROUND_S)
    for turn in range(rounds):
        records, simulation = several(short, cluster, shard_map)
        seen = observed(simulation, records, shard_map, cluster.models)
        found = plan(seen, most_models=MOST_MOVES)
        loads = " ".join(f"{shard.load:.2f}{'!' if shard.overloaded else ''}" for shard in seen)
        print(f"  round {turn + 1}: loads {loads}; {len(found.models)} models move {found.why}", flush=True)
        if not found.models:
            break
        shard_map = shard_map.moved({move.model: move.target for move in found.models})
    return shard_map


def observed(
    simulation: ShardedSimulation, records: Records, shard_map: ShardMap, models: Sequence[ModelSpec]
) -> list[Observed]:
    """Return the shards as `mainspring balance` would see them at the end of a run."""
    specs = {model.name: model for model in models}
    pages = {model.name: model.pages for model in models}
    sent, replied = records.columns()
    slo_ns = int(sent["slo_ns"].max())
    names = np.array(records.models)
    place = np.array([shard_map.place(name) for name in records.models])[sent["model"]]
    found = []
    for number, shard in enumerate(simulation.shards):
        assert shard is not None, "a controller is down while the cluster is looked at"
        mine = place == number
        asked, counts = np.unique(sent["model"][mine], return_counts=True)
        arrived = {str(names[model]): int(count) for model, count in zip(asked, counts, strict=True)}
        busy_ns = sum(worker.busy_ns for worker in shard.workers.values())
        found.append(
            Observed(
                number=number,
                workers=tuple(shard.workers),
                largest_pages=max(worker.pages for worker in shard.workers.values()),
                busy=busy_ns / (simulation.now_ns * len(shard.workers)),
                arrived=arrived,
                rejected=int((mine & (replied["outcome"] != OUTPUTS)).sum()),
                pages=pages,
                needs={
                    name: needed(next(iter(specs[name].profiles.values())).infer_ns, count / ROUND_S, slo_ns)
                    for name, count in arrived.items()
                },
            )
        )
    return found


def several(
    spec: SimulationSpec, cluster: Cluster, shard_map: ShardMap, deaths: Sequence[Death] = ()
) -> tuple[Records, ShardedSimulation]:
    """Play a spec with several controllers; return what became of each request, and the simulation."""
    count = len(shard_map.shards)
    workers = [cluster.workers[number::count] for number in range(count)]
    parts = divided(shard_map, cluster.models, workers, {})
    held = {number: preload(part.models, part.workers, "once") for number, part in enumerate(parts)}
    records = Records()
    warm_up_ns = round(spec.warm_up_s * 1e9)
    simulation = ShardedSimulation(
        spec.scheduler,
        shard_map,
        divided(shard_map, cluster.models, workers, held),
        seed=spec.seed,
        faults=spec.fault_options(),
        cost=spec.cost,
        source=build_source(spec, cluster.models),
        records=records,
        records_from_ns=warm_up_ns,
        deaths=deaths,
    )
    while not simulation.finished():
        simulation.run(simulation.now_ns + SLICE_NS)
    return records, simulation


def in_time(records: Records) -> tuple[int, int]:
    """Return how many requests there are, and how many were answered by their deadline."""
    sent, replied = records.columns()
    good = (replied["outcome"] == OUTPUTS) & (replied["replied_ns"] - sent["intended_ns"] <= sent["slo_ns"])
    return len(sent), int(good.sum())


def unlike(first: Records, other: Records, shard_map: ShardMap, dead: int) -> tuple[int, int]:
    """Return how many requests there are for models of living shards, and how many ended otherwise."""
    (sent, replied), (_, also) = first.columns(), other.columns()
    alive = np.array([shard_map.place(name) != dead for name in first.models])[sent["model"]]
    fields = [name for name in replied.dtype.names or () if name != "worker"]
    same = np.all([replied[name] == also[name] for name in fields], axis=0)
    return int(alive.sum()), int((alive & ~same).sum())


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run from a command line, print what was found, and return it."""
    options = _parser().parse_args(arguments)
    spec = the_spec(
        *(options.devices, options.models, options.mixes, options.load, options.slower, options.slo_ms),
        *(options.warm_up, options.duration),
    )
    cluster = build_cluster(spec)
    spec = at_rate(spec, cluster)
    shard_map = first_map([f"tcp://shard-{number}:7401" for number in range(options.shards)])
    found: dict[str, Any] = {"pages": spec.devices[0].pages}
    if options.moved is not None and options.moved.exists():
        shard_map = shard_map.moved(json.loads(options.moved.read_text(encoding="utf-8")))
    else:
        shard_map = balanced(spec, cluster, shard_map, options.rounds)
        if options.moved is not None:
            options.moved.write_text(json.dumps(shard_map.models), encoding="utf-8")
    found["moved"] = len(shard_map.models)
    if not options.only_one:
        _play_several(options, spec, cluster, shard_map, found)
    if not options.skip_one:
        began_s = time.perf_counter()
        alone = simulate(spec, cluster=cluster, analyse=False)
        found["requests"], found["one"] = in_time(alone.records)
        _say("one controller, free", found["one"], found["requests"], began_s)
        if "sharded" in found:
            print(f"  goodput of {options.shards} / of one: {found['sharded'] / found['one']:.4f}")
    return found


def _play_several(
    options: argparse.Namespace,
    spec: SimulationSpec,
    cluster: Cluster,
    shard_map: ShardMap,
    found: dict[str, Any],
) -> None:
    began_s = time.perf_counter()
    records, _ = several(spec, cluster, shard_map)
    found["requests"], found["sharded"] = in_time(records)
    _say(f"{options.shards} controllers", found["sharded"], found["requests"], began_s)
    if options.death is not None:
        began_s = time.perf_counter()
        middle_ns = round((spec.warm_up_s + spec.duration_s / 2) * 1e9)
        death = Death(options.death, middle_ns, down_ns=10**9)
        after, _ = several(spec, cluster, shard_map, (death,))
        found["after_death"] = in_time(after)[1]
        found["others"], found["unlike"] = unlike(records, after, shard_map, options.death)
        _say(f"shard {options.death} dead for a second", found["after_death"], found["requests"], began_s)
        print(f"  of {found['others']:,} requests to other shards {found['unlike']:,} ended otherwise")


def _say(what: str, good: int, requests: int, began_s: float) -> None:
    wall_s = time.perf_counter() - began_s
    print(f"{what:28} {good:>10,} of {requests:,} in time ({100 * good / requests:.3f} %), {wall_s:.0f} s")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shards", type=int, default=10)
    parser.add_argument("--devices", type=int, default=2_560)
    parser.add_argument("--models", type=int, default=64_000)
    parser.add_argument("--mixes", type=int, default=10, help="of 1, 2, 5 or 10")
    parser.add_argument("--rounds", type=int, default=4, help="looks at the cluster before it is measured")
    parser.add_argument("--load", type=float, default=0.8, help="of what the devices can do")
    parser.add_argument(
        "--slower", type=float, default=10.0, help="durations and deadlines, times the example's"
    )
    parser.add_argument("--slo-ms", type=float, default=100.0, help="deadline, before it is slowed down too")
    parser.add_argument("--warm-up", type=float, default=2.0, help="virtual seconds before requests count")
    parser.add_argument("--duration", type=float, default=2.0, help="virtual seconds of requests that count")
    parser.add_argument("--death", type=int, help="a shard whose controller dies in the middle, for 1 s")
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument("--skip-one", action="store_true", help="leave the one controller out")
    parts.add_argument("--only-one", action="store_true", help="play nothing but the one controller")
    parser.add_argument(
        "--moved",
        type=Path,
        metavar="FILE",
        help="which models the rounds moved: read if it exists, and written if not, so that a large size can "
        "be played in parts",
    )
    return parser


if __name__ == "__main__":
    try:
        main()
    except ConfigError as error:
        raise SystemExit(str(error)) from None
