"""Decisions of many simulated runs, recorded by one version of the scheduler and decided again by another.

``python -m mainspring.experiments.scheduler_decisions record FOLDER`` plays seeded simulations of every
policy and writes their event logs; ``... check FOLDER`` gives the same events to the scheduler that is there
now, and counts the runs that came out otherwise. A change of structure alone shows none. Logs are written by
the older version: run this file with the Python of its checkout.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from mainspring.controller.logged_scheduler import about
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.policies.registry import policy_names
from mainspring.simulator.redecide import redecide
from mainspring.simulator.run import simulate
from mainspring.simulator.spec import (
    Crash,
    DeviceGroup,
    FaultsSpec,
    ModelGroup,
    NetworkSpec,
    SimulationSpec,
    WorkloadSpec,
)
from mainspring.telemetry.log import EventLogWriter

app = typer.Typer(
    help="Decisions recorded by one version, and decided again by another.", add_completion=False
)

QUICK = ModelGroup(name="quick", infer_ms={"1": 2.6, "2": 3.9, "4": 6.0, "8": 10.2, "16": 17.3}, copies=20)
SLOW = ModelGroup(name="slow", infer_ms={"1": 9.0, "4": 20.0, "8": 38.0}, copies=8, weights_mb=300.0)
EXACT = FaultsSpec(duration_jitter=0.0)
ROUGH = FaultsSpec(
    duration_jitter=0.03,
    slow_probability=0.002,
    engine_error_probability=0.002,
    crashes=(Crash(worker="worker-1", at_s=1.0, down_s=0.7),),
)


def _spec(
    devices: tuple[DeviceGroup, ...], rate: float, faults: FaultsSpec = EXACT, **more: object
) -> SimulationSpec:
    whole = SimulationSpec(
        devices=devices,
        models=(QUICK, SLOW),
        workload=(
            WorkloadSpec(models="quick*", rate=0.8 * rate, zipf_exponent=0.9),
            WorkloadSpec(models="slow*", rate=0.2 * rate, slo_ms=150.0, kind="gamma"),
            WorkloadSpec(models="quick*", rate=0.02 * rate, best_effort=True),
        ),
        faults=faults,
        warm_up_s=0.0,
        duration_s=2.0,
    )
    return msgspec.structs.replace(whole, **more)


def specs() -> dict[str, SimulationSpec]:
    """Return what is played, by name, for one policy."""
    few, scarce = (DeviceGroup(count=3),), (DeviceGroup(count=4, pages=120),)
    kinds = (DeviceGroup(count=6, kind="old", speed=0.6, pages=200), DeviceGroup(count=6, pages=200))
    many = (DeviceGroup(count=24),)
    return {
        "few devices": _spec(few, 900.0),
        "few devices, overload": _spec(few, 2_000.0),
        "few devices, faults": _spec(few, 900.0, ROUGH),
        "scarce memory": _spec(scarce, 800.0, preload="none"),
        "scarce memory, faults": _spec(scarce, 1_100.0, ROUGH),
        "two kinds": _spec(kinds, 1_500.0, preload="once"),
        "large inputs": _spec(few, 700.0, network=NetworkSpec(input_ns_per_byte=2.0)),
        "many devices": _spec(many, 3_000.0),
        "many devices, overload": _spec(many, 14_000.0, duration_s=0.6),
        "many devices, faults": _spec(many, 5_000.0, ROUGH),
    }


@app.command()
def record(
    folder: Path,
    policy: Annotated[str, typer.Option(help="Record this policy alone.")] = "",
    seeds: Annotated[int, typer.Option(min=1, help="Play each scenario with this many seeds.")] = 6,
) -> None:
    """Write the event log of each run to an empty folder: 60 runs of each policy, unless told otherwise."""
    for name in [policy] if policy else policy_names():
        for seed, (told, spec) in itertools.product(range(seeds), specs().items()):
            played = msgspec.structs.replace(spec, scheduler=SchedulerConfig(policy=name), seed=seed)
            run = folder / f"{name}, {told}, seed {seed}"
            if run.exists():
                raise typer.BadParameter(f"{run} has a run already: give an empty folder")
            log = EventLogWriter(run, about=about(played.scheduler))
            simulate(played, analyse=False, record=log.append)
            log.close()
            typer.echo(run.name)


@app.command()
def check(
    folder: Path,
    only: Annotated[str, typer.Option(help="Only the runs whose names hold this.")] = "",
    tell: Annotated[bool, typer.Option(help="Tell the first difference of each run.")] = False,
) -> None:
    """Decide all runs again; exit with 1 if one came out otherwise."""
    commands = differing = runs = 0
    for log in sorted(folder.iterdir()):
        if only not in log.name:
            continue
        found = redecide(log)
        runs, commands = runs + 1, commands + found.commands
        if found.difference is not None:
            differing += 1
            at = f"after {found.difference.command:,} commands, at {found.difference.now_ns / 1e6:.1f} ms"
            typer.echo(f"{log.name}: {found.difference.story() if tell else at}")
    typer.echo(f"{commands:,} commands of {runs} runs decided again; {differing} runs differ")
    raise typer.Exit(int(differing > 0))


if __name__ == "__main__":
    app()
