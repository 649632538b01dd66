"""Requests a second that the simulator plays on one core, and where the time goes.

Six devices and 61 models, as the paper's table has them or of about its sizes, Poisson arrivals at equal
rates, SLO 100 ms, the default policy. ``python -m mainspring.experiments.bench.simulator``, which
``make bench-simulator`` runs.
"""

from __future__ import annotations

import cProfile
import gc
import io
import pstats
import statistics
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from mainspring.experiments.bench.cluster import PROFILES
from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.experiments.scheduler_load import KIND, varieties
from mainspring.messages.actions import Command
from mainspring.messages.events import Event, Wakeup
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.core import Scheduler
from mainspring.simulator.cluster import Cluster, build_cluster, preload
from mainspring.simulator.run import SimulatedRun, simulate
from mainspring.simulator.spec import DeviceGroup, ModelGroup, SimulationSpec, WorkloadSpec

TARGET = 50_000.0
"""Requests a second."""
FLUID_RATE = 3_607.0
LOADS = (0.7, 1.0, 1.5)
DEVICES = 6
SHORT_COPIES = 50
SHORT_TARGET = 30_000.0


def spec_of(load: float, seconds: float, policy: str, copies: int = 1) -> tuple[SimulationSpec, Cluster]:
    """Return what is played, and on which cluster; with some ``copies`` of each model."""
    spec = SimulationSpec(
        devices=(DeviceGroup(count=DEVICES),),
        models=(ModelGroup(profiles=str(PROFILES), exclude="*tuned*", copies=copies),),
        workload=(WorkloadSpec(rate=load * FLUID_RATE),),
        scheduler=SchedulerConfig(policy=policy, response_margin_ms=0.3),
        warm_up_s=1.0,
        duration_s=seconds,
    )
    if PROFILES.is_file():
        return spec, build_cluster(spec)
    models = tuple(varieties(61 * copies))
    workers = tuple((f"worker-{index}", KIND, 1984) for index in range(DEVICES))
    return spec, Cluster(models, workers, preload(models, workers, "fill"))


def speed(spec: SimulationSpec, cluster: Cluster, *, analyse: bool) -> tuple[float, SimulatedRun]:
    """Return how many requests were played in a second of processor time, and the run.

    Real time would count what other processes take of the core.
    """
    gc.collect()
    began_s = time.process_time()
    run = simulate(spec, cluster=cluster, analyse=analyse)
    took_s = time.process_time() - began_s
    offered = run.summary.offered * (spec.warm_up_s + spec.duration_s) / spec.duration_s
    return offered / took_s, run


def scheduler_alone(spec: SimulationSpec, cluster: Cluster) -> float:
    """Return the processor time, in seconds, in which the scheduler alone decides a run again."""
    entries: list[tuple[int, Event | Command]] = []
    simulate(spec, cluster=cluster, analyse=False, record=lambda *entry: entries.append(entry))
    events = [(now_ns, entry) for now_ns, entry in entries if isinstance(entry, Event)]
    scheduler = Scheduler(spec.scheduler)
    gc.collect()
    began_s = time.process_time()
    for now_ns, event in events:
        if isinstance(event, Wakeup):
            scheduler.schedule(now_ns)
        else:
            scheduler.handle(now_ns, event)
            scheduler.taken()
    return time.process_time() - began_s


def profile(spec: SimulationSpec, cluster: Cluster) -> str:
    """Return a profile of one run, by the functions' own time."""
    profiler = cProfile.Profile()
    profiler.enable()
    simulate(spec, cluster=cluster)
    profiler.disable()
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(30)
    return "\n".join(each for each in text.getvalue().splitlines() if each.strip())


def main(
    seconds: Annotated[float, typer.Option(min=0.5, help="Virtual seconds of each run.")] = 8.0,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each; the median counts.")] = 3,
    policy: Annotated[str, typer.Option(help="The policy.")] = SchedulerConfig().policy,
    profiled: Annotated[bool, typer.Option("--profile", help="Print a profile as well.")] = False,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = OUTPUT,
) -> None:
    """Measure the simulator's speed at three loads, with and without the report's analysis."""
    rows = []
    for load in LOADS:
        spec, cluster = spec_of(load, seconds, policy)
        for analyse in (True, False):
            runs = [speed(spec, cluster, analyse=analyse) for _ in range(repeats)]
            rate = statistics.median(each for each, _ in runs)
            summary = runs[0][1].summary
            note = f"{summary.goodput_share:.1%} in time, batch {summary.mean_batch or 0:.1f}"
            name = f"load {load:g} x fluid{', with analysis' if analyse else ''}"
            rows.append(Figure(name, rate, "requests/s", TARGET, at_least=True, note=note))
            rows.append(Figure("  for each request", 1e6 / rate, "us"))
    spec, cluster = spec_of(1.0, seconds, policy, SHORT_COPIES)
    short = [speed(spec, cluster, analyse=False) for _ in range(repeats)]
    rate, summary = statistics.median(each for each, _ in short), short[0][1].summary
    note = f"{len(cluster.models):,} models, {summary.goodput_share:.1%} in time"
    rows.append(Figure("short of memory, load 1", rate, "requests/s", SHORT_TARGET, at_least=True, note=note))
    offered = summary.offered * (spec.warm_up_s + spec.duration_s) / spec.duration_s
    alone_s = statistics.median(scheduler_alone(spec, cluster) for _ in range(repeats))
    without = offered / max(1e-9, offered / rate - alone_s)
    rows.append(Figure("  the same, had the scheduler taken no time", without, "requests/s"))
    source = "clockwork table 1" if PROFILES.is_file() else "varieties of about the paper's sizes"
    title = f"Simulated requests a second: 6 devices, 61 models ({source}), {policy}"
    publish("simulator", title, rows, output)
    if profiled:
        spec, cluster = spec_of(1.0, seconds, policy)
        typer.echo(profile(msgspec.structs.replace(spec, duration_s=seconds / 2), cluster))


if __name__ == "__main__":
    typer.run(main)
