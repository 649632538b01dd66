"""Measures and draws figure 2 on this machine's device; ``--help`` says what may be chosen."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from mainspring.cli.profiling.lone_device import as_exec_thread, device_for, random_rows
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.choosing.durations import Ints
from mainspring.compiler.zoo.catalogue import compile_zoo
from mainspring.experiments.bench.report import this_machine
from mainspring.experiments.bench.usage import stolen_s
from mainspring.experiments.figures.experiment import make_console
from mainspring.experiments.predictability.concurrent import (
    Level,
    Series,
    measure_levels,
    repeat_in_isolation,
    series_of,
)
from mainspring.experiments.predictability.report import LatencyReport, compare, draw
from mainspring.messages.model import ModelSpec
from mainspring.telemetry.report import write_json
from mainspring.worker.config import WorkerConfig
from mainspring.worker.realtime import Rights

OUTPUT = Path("out/predictability")
NAME = "figure2"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured."""

    model: ModelSpec
    config: WorkerConfig
    batch_size: int = 1
    runs: int = 10_000
    levels: tuple[int, ...] = (1, 2, 4, 8, 16)
    seconds: float = 8.0


def isolated(plan: Plan, console: Console) -> tuple[list[Series], list[str]]:
    """Measure figure 2a in a thread like a worker's EXEC; return it with what a reader must know."""
    rights = Rights(plan.config.realtime)
    model, size = plan.model, plan.batch_size

    def measure() -> dict[str, Ints]:
        with device_for([model], plan.config, copies=1) as device:
            device.prepare(model)
            device.load(model)
            device.fill(model, size, random_rows(model, size))
            with rights.claimed_process(), console.status("in isolation") as status:
                return repeat_in_isolation(
                    device.infer(model, size),
                    plan.runs,
                    cpu_time=plan.config.cuda_device is None,
                    told=lambda done: status.update(f"in isolation: {done:,} of {plan.runs:,}"),
                )

    began_s, stolen_before_s = time.monotonic(), stolen_s()
    durations = as_exec_thread(rights, measure)
    withheld = (stolen_s() - stolen_before_s) / (time.monotonic() - began_s)
    notes = [
        f"2a: {plan.runs:,} runs of {model.name} at batch size {size}; meanwhile the host withheld "
        f"{1000 * withheld:.1f} ms of processor time a second."
    ]
    if "cpu" in durations:
        notes.append(
            "device is what the engine reports; cpu is what its thread spent computing, so the difference "
            "is time that the machine gave to others."
        )
    return [series_of(name, found) for name, found in durations.items()], notes + rights.notes


def concurrent(plan: Plan, console: Console) -> list[Level]:
    """Measure figure 2b."""
    if not plan.levels:
        return []
    with console.status("several at a time") as status:
        return measure_levels(
            plan.config,
            plan.model,
            plan.batch_size,
            plan.levels,
            plan.seconds,
            lambda level: status.update(f"{level} at a time"),
        )


def run(plan: Plan, output: Path, console: Console) -> LatencyReport:
    """Measure both parts, write JSON and plot, and print the comparison."""
    began_s = time.monotonic()
    series, notes = isolated(plan, console) if plan.runs else ([], [])
    levels = concurrent(plan, console)
    report = LatencyReport(
        name=NAME,
        title=f"Figure 2: {plan.model.name} at batch size {plan.batch_size}, alone and several at a time",
        form=f"live, engine {plan.config.engine} on {plan.config.device}",
        notes=notes,
        machine=this_machine(),
        took_s=round(time.monotonic() - began_s, 1),
        lines=compare(series, levels),
        isolated=series,
        levels=levels,
    )
    write_json(output / f"{NAME}.json", report)
    draw(output / f"{NAME}.png", report.title, series, levels)
    report.show(output / NAME, console)
    return report


def parse_levels(text: str) -> tuple[int, ...]:
    """Return the numbers in ``1,2,4``; raise BadParameter if they can't be."""
    try:
        levels = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        levels = (0,)
    if any(not 1 <= level <= 64 for level in levels):
        raise typer.BadParameter(f"{text} are not numbers from 1 to 64, such as 1,2,4", param_hint="--levels")
    return levels


def main(
    model: Annotated[
        str, typer.Option(help="Architecture of the zoo, or a model of --store.")
    ] = "squeezenet",
    store: Annotated[Path | None, typer.Option(help="A store that has it; else it is compiled.")] = None,
    engine: Annotated[str, typer.Option(help="Engine that runs it.")] = "auto",
    device: Annotated[str, typer.Option(help="cpu, or cuda:0 for the first GPU.")] = "cpu",
    batch_size: Annotated[int, typer.Option(min=1, help="Rows of each inference.")] = 1,
    runs: Annotated[int, typer.Option(min=0, help="Inferences of figure 2a; 0 leaves it out.")] = 5_000,
    levels: Annotated[
        str, typer.Option(help="Inferences at a time in figure 2b; empty leaves it out.")
    ] = "1,2,4,8,16",
    seconds: Annotated[float, typer.Option(min=0.01, help="Length of each of these.")] = 8.0,
    realtime: Annotated[
        bool, typer.Option(help="Figure 2a at real-time priority on a core of its own.")
    ] = True,
    output: Annotated[Path, typer.Option(help="Folder for JSON, plot and compiled model.")] = OUTPUT,
) -> None:
    """Measure and draw figure 2 of the paper: is one inference at a time predictable, are several?"""
    numbers = parse_levels(levels)
    folder = store or output / "store"
    if store is None:
        for _ in compile_zoo([model], Store(folder), batch_sizes=(batch_size,)):
            pass
    spec = Store(folder).manifest(model).spec()
    if batch_size not in spec.batch_sizes:
        raise typer.BadParameter(f"{model} was compiled for {spec.batch_sizes}", param_hint="--batch-size")
    config = WorkerConfig(name=NAME, engine=engine, device=device, store=str(folder), realtime=realtime)
    plan = Plan(model=spec, config=config, batch_size=batch_size, runs=runs, levels=numbers, seconds=seconds)
    run(plan, output, make_console())


if __name__ == "__main__":
    typer.run(main)
