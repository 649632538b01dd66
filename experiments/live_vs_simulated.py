"""The same cluster and the same requests live and simulated, side by side.

Live is real: client, gateway, controller and two emulated workers as processes of their own, over sockets.
The simulator gets what a first live run at light load shows of the path between them, and what the scheduler
costs on this machine; then both play the same arrivals at rising loads.
``python -m mainspring.experiments.live_vs_simulated`` writes ``out/live_vs_simulated/`` and prints a table.
"""

from __future__ import annotations

import statistics
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.compiler.artifact.profiles import COLUMNS
from mainspring.experiments.bench.report import this_machine
from mainspring.experiments.bench.usage import usage_of_all
from mainspring.messages.actions import Infer, Load, Result, Unload
from mainspring.messages.codes import Status
from mainspring.messages.events import RequestArrived
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.calibrate import calibrate
from mainspring.simulator.cluster import Cluster, build_cluster
from mainspring.simulator.costs import ControllerCost, CostSpec, ProcessCosts
from mainspring.simulator.device import Preloaded
from mainspring.simulator.run import simulate
from mainspring.simulator.spec import (
    DeviceGroup,
    FaultsSpec,
    ModelGroup,
    NetworkSpec,
    SimulationSpec,
    WorkloadSpec,
)
from mainspring.telemetry.log import read_log
from mainspring.telemetry.report import Summary, write_json
from mainspring.traces.arrival import Kind
from mainspring.traces.recipe import Recipe, build
from mainspring.traces.records import OUTPUTS, Records
from mainspring.traces.replayer import ReplayConfig, Replayer
from tests.emulated_cluster import cluster_of

BATCHES_MS = {1: 10.0, 2: 15.0, 4: 24.0, 8: 40.0, 16: 70.0}
"""A model four times as slow as ResNet-50, so that two devices are busy with what two cores can drive."""
DEVICES, COPIES, PAGES = 2, 8, 256
FLUID_RATE = DEVICES * 16 / BATCHES_MS[16] * 1e3
SLO_MS = 400.0
LOADS = (0.5, 0.7, 0.9, 1.0, 1.2)
LIGHT_LOAD = 0.3
SEED = 7
KIND = "emulated"


class WayShown(msgspec.Struct, frozen=True):
    """Times between the processes in a live run: medians, in microseconds."""

    result_us: float
    inputs_us: float
    action_us: float
    turn_us: float
    client_us: float
    controller_us: float
    """Processor time of the controller for each request, where it was least."""
    jitter: float
    """Standard deviation of the logarithm of INFERs' durations over their medians."""


class Pair(msgspec.Struct, frozen=True):
    """One load, live and simulated."""

    load: float
    live: Summary
    simulated: Summary
    free: Summary
    """Simulated without any cost of the controller."""


class Live:
    """A live cluster with a replayer."""

    def __init__(self, cluster: LocalCluster, run_dir: Path) -> None:
        self.cluster = cluster
        self.log = run_dir / "events"
        config = ReplayConfig(address=cluster.address, seed=SEED, straggler_wait_s=3)
        self.replayer = Replayer(config)
        self.names = sorted(spec.name for spec in self.replayer.specs)
        self._used: list[tuple[float, float]] = []

    def play(self, load: float, seconds: float) -> tuple[Summary, Records]:
        """Play Poisson arrivals at a multiple of the best rate."""
        before = usage_of_all(self.cluster.supervisor, ["controller"])["controller"]
        asked = recipe(load, seconds)
        summary, records = self.replayer.play(build(asked, self.names), duration_ns=asked.duration_ns)
        after = usage_of_all(self.cluster.supervisor, ["controller"])["controller"]
        used_us = after.since(before).cpu_ns / 1e3
        self._used.append((summary.offered_rate, used_us / seconds))
        return summary, records

    def controller_us(self) -> float:
        """Return what a request took of the controller in the play where it was least.

        Some of it is the controller's own beat, whatever is asked of it: its share is least under load.
        """
        return min(used_us / rate for rate, used_us in self._used)


def recipe(load: float, seconds: float) -> Recipe:
    """Return the workload of a load."""
    return Recipe(
        kind=Kind.POISSON,
        duration_ns=round(seconds * 1e9),
        slo_ns=round(SLO_MS * 1e6),
        rate=load * FLUID_RATE,
        seed=SEED,
    )


def path_of(log: Path, start_ns: int, records: Records, controller_us: float) -> WayShown:
    """Read a run's log from an instant on, as long as the run's own requests last, and compare it with what
    its client saw."""
    sent: dict[int, tuple[int, Infer]] = {}
    arrived: dict[int, int] = {}
    results, inputs, actions, ratios, at_controller = [], [], [], [], []
    ends: dict[str, list[tuple[int, int, int]]] = {}
    for now_ns, entry in read_log(log):
        if now_ns < start_ns:
            continue
        if isinstance(entry, RequestArrived):
            if len(arrived) == len(records):
                break
            arrived[entry.request_id] = now_ns
        elif isinstance(entry, Infer):
            sent[entry.action_id] = (now_ns, entry)
        elif isinstance(entry, Result) and entry.action_id in sent and entry.status is Status.OK:
            sent_ns, action = sent.pop(entry.action_id)
            duration_ns = entry.end_ns - entry.begin_ns
            results.append(now_ns - entry.end_ns)
            inputs.append(entry.inputs_ns - sent_ns)
            actions.append(duration_ns - BATCHES_MS[action.batch_size] * 1e6)
            ratios.append(duration_ns / (BATCHES_MS[action.batch_size] * 1e6))
            ready_ns = max(entry.inputs_ns, action.earliest_ns)
            ends.setdefault(entry.worker, []).append((ready_ns, entry.begin_ns, entry.end_ns))
            at_controller += [now_ns - arrived[request] for request in action.request_ids]
    turns = [
        begin_ns - end_ns
        for row in ends.values()
        for (_, _, end_ns), (ready_ns, begin_ns, _) in pairwise(sorted(row, key=lambda each: each[1]))
        if ready_ns <= end_ns
    ]
    columns, replied = records.columns()
    done = replied["outcome"] == OUTPUTS
    at_client = (replied["replied_ns"] - columns["intended_ns"])[done]
    return WayShown(
        result_us=statistics.median(results) / 1e3,
        inputs_us=statistics.median(inputs) / 1e3,
        action_us=statistics.median(actions) / 1e3,
        turn_us=statistics.median(turns) / 1e3 if turns else 0.0,
        client_us=float(np.median(at_client) - np.median(at_controller)) / 1e3,
        controller_us=controller_us,
        jitter=float(np.std(np.log(ratios))),
    )


def spec_of(path: WayShown, load: float, seconds: float, cost: ControllerCost) -> SimulationSpec:
    """Return the spec that a live run with this path corresponds to."""
    delay_us = path.result_us
    return SimulationSpec(
        devices=(DeviceGroup(count=DEVICES, kind=KIND, pages=PAGES),),
        models=(
            ModelGroup(
                name="model",
                infer_ms={str(size): value for size, value in BATCHES_MS.items()},
                load_ms=3.0,
                weights_mb=16.0,
                input_kb=4.0,
                copies=COPIES,
            ),
        ),
        workload=(WorkloadSpec(rate=load * FLUID_RATE, slo_ms=SLO_MS),),
        scheduler=SchedulerConfig(),
        network=NetworkSpec(delay_us=delay_us, client_delay_us=max(0.0, (path.client_us - delay_us) / 2)),
        processes=ProcessCosts(
            worker_input_us=max(0.0, path.inputs_us - 2 * delay_us),
            worker_action_us=max(0.0, path.action_us),
            worker_turn_us=max(0.0, path.turn_us),
        ),
        faults=FaultsSpec(duration_jitter=path.jitter),
        cost=CostSpec(mode="table", controller=cost),
        warm_up_s=0.0,
        duration_s=seconds,
        seed=SEED,
    )


def cost_of(path: WayShown, seconds: float) -> ControllerCost:
    """Return the controller's cost: the scheduler's calls as measured, the rest of its processor time spread
    over what it receives and sends."""
    spec = spec_of(path, LIGHT_LOAD, seconds, ControllerCost())
    cost = calibrate(spec)
    run = simulate(msgspec.structs.replace(spec, cost=CostSpec(mode="table", controller=cost)))
    busy_us = float(run.summary.notes["controller_busy_s"] or 0) * 1e6 / run.summary.offered
    # A request at light load: its arrival and its result come in, its INFER and its dispatch go out.
    beside_us = max(0.0, path.controller_us - busy_us) / 4
    return msgspec.structs.replace(cost, receive_us=beside_us, send_us=2 * beside_us)


def resident_at(log: Path, until_ns: int) -> dict[str, list[str]]:
    """Return which models each worker held at an instant of a live run."""
    held: dict[str, dict[str, None]] = {}
    moves: dict[int, Load | Unload] = {}
    for now_ns, entry in read_log(log):
        if now_ns >= until_ns:
            break
        if isinstance(entry, Load | Unload):
            moves[entry.action_id] = entry
        elif isinstance(entry, Result) and entry.status is Status.OK and entry.action_id in moves:
            move = moves.pop(entry.action_id)
            models = held.setdefault(move.worker, {})
            if isinstance(move, Load):
                models[move.model] = None
            else:
                models.pop(move.model, None)
    return {worker: list(models) for worker, models in held.items()}


def simulated(spec: SimulationSpec, names: list[str], load: float, held: dict[str, list[str]]) -> Summary:
    """Play exactly the arrivals of the live run on workers that hold what the live ones held."""
    source = build(recipe(load, spec.duration_s), names).source(np.random.default_rng(SEED))
    cluster = build_cluster(spec)
    models = {model.name: model for model in cluster.models}
    preloaded = {
        name: Preloaded(cluster.models, [models[each] for each in held.get(name, [])])
        for name, _, _ in cluster.workers
    }
    same = Cluster(cluster.models, cluster.workers, preloaded)
    return simulate(spec, cluster=same, source=source).summary


def table(pairs: list[Pair]) -> Table:
    """Return the comparison; differences are the simulated run's less the live run's."""
    made = Table(title="live against simulated", title_justify="left")
    for name in (
        "load",
        "offered/s",
        "goodput live",
        "simulated",
        "difference",
        "without cost",
        "p50 live",
        "simulated",
        "difference",
        "p99 live",
        "simulated",
        "batch live",
        "sim.",
    ):
        made.add_column(name, justify="right")  # fmt: skip
    for pair in pairs:
        live, virtual, free = pair.live, pair.simulated, pair.free
        made.add_row(
            f"{pair.load:g}",
            f"{live.offered_rate:,.0f}",
            f"{live.goodput_share:.2%}",
            f"{virtual.goodput_share:.2%}",
            f"{(virtual.goodput / max(live.goodput, 1) - 1) * 100:+.2f} %",
            f"{(free.goodput / max(live.goodput, 1) - 1) * 100:+.2f} %",
            f"{live.p50_ms or 0:.2f}",
            f"{virtual.p50_ms or 0:.2f}",
            f"{((virtual.p50_ms or 0) / (live.p50_ms or 1) - 1) * 100:+.1f} %",
            f"{live.p99_ms or 0:.1f}",
            f"{virtual.p99_ms or 0:.1f}",
            f"{live.mean_batch or 0:.2f}",
            f"{virtual.mean_batch or 0:.2f}",
        )
    return made


def main(
    seconds: Annotated[float, typer.Option(min=1, help="Length of each run.")] = 6.0,
    loads: Annotated[list[float] | None, typer.Option("--load", help="Multiples of the best rate.")] = None,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("out/live_vs_simulated"),
) -> None:
    """Play the same requests live and simulated, and print both."""
    with tempfile.TemporaryDirectory(prefix="mainspring-") as folder:
        run_dir = Path(folder)
        profiles = run_dir / "profiles.csv"
        row = ("model", 4, 4, 16, 3, *BATCHES_MS.values())
        profiles.write_text(",".join(COLUMNS) + "\n" + ",".join(map(str, row)) + "\n")
        tables = {
            "cluster": {"workers": DEVICES, "copies": COPIES},
            "worker": {"pages": PAGES, "io_bytes": 32 << 20},
        }
        with cluster_of(run_dir, profiles, tables) as cluster:
            live = Live(cluster, run_dir)
            try:
                live.play(LIGHT_LOAD, 1.0)
                light, records = live.play(LIGHT_LOAD, seconds)
                played = [(load, live.play(load, seconds)[0]) for load in loads or LOADS]
                names = live.names
                path = path_of(live.log, light.start_ns, records, live.controller_us())
            finally:
                live.replayer.close()
        held = [resident_at(run_dir / "events", summary.start_ns) for _, summary in played]
    cost = cost_of(path, seconds)
    pairs = []
    for (load, summary), models in zip(played, held, strict=True):
        spec = spec_of(path, load, seconds, cost)
        free = msgspec.structs.replace(spec, cost=CostSpec())
        virtual = [simulated(each, names, load, models) for each in (spec, free)]
        pairs.append(Pair(load, summary, virtual[0], virtual[1]))
    console = Console(width=170)
    console.print(msgspec.json.format(msgspec.json.encode({"path": path, "cost": cost})).decode())
    console.print(table(pairs))
    write_json(
        output / "comparison.json", {"machine": this_machine(), "path": path, "cost": cost, "pairs": pairs}
    )
    console.print(f"{output / 'comparison.json'}")


if __name__ == "__main__":
    typer.run(main)
