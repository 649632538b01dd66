"""Measures and draws figure 2 on this machine's device; ``--help`` says what may be chosen."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator
from rich.console import Console

from mainspring.cli.profiling.lone_device import as_exec_thread, device_for, random_rows
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.choosing.durations import Ints
from mainspring.compiler.zoo.catalogue import compile_zoo
from mainspring.experiments.bench.report import this_machine, wide_console
from mainspring.experiments.bench.usage import stolen_s
from mainspring.experiments.figures.canvas import Page
from mainspring.experiments.figures.paper import Fact
from mainspring.experiments.figures.report import Line, Report
from mainspring.experiments.predictability.concurrent import (
    Level,
    Series,
    measure_levels,
    repeat_in_isolation,
    series_of,
)
from mainspring.messages.model import ModelSpec
from mainspring.telemetry.report import write_json
from mainspring.telemetry.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    finish_axes,
    plain_log_ticks,
)
from mainspring.worker.config import WorkerConfig
from mainspring.worker.realtime import Rights

TICKS = (0.5, 0.1, 0.01, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
"""Shares of the runs beyond a duration at which the axis of a tail is marked."""
_LEVELS = ((BLUE, "-"), (GREEN, "--"), (ORANGE, "-."), (RED, ":"), (PURPLE, "-"), (SKY, "--"))
_SERIES = ((BLUE, "-"), (GREY, "--"))


def draw(path: Path, title: str, isolated: Sequence[Series], levels: Sequence[Level]) -> None:
    """Write the figure as PNG; a part that was not measured gets no panel."""
    panels = (1 if isolated else 0) + (2 if levels else 0)
    page = Page(title, 1, panels)
    if isolated:
        runs = isolated[0].runs
        _tails(
            page.panel(0, 0), f"a: {runs:,} inferences in isolation",
            [(series.name, series, *_SERIES[index % 2]) for index, series in enumerate(isolated)],
        )  # fmt: skip
    if levels:
        _rates(page.panel(0, panels - 2), levels)
        _tails(
            page.panel(0, panels - 1), "b: latency",
            [
                (str(level.concurrency), level.latency, *_LEVELS[index % len(_LEVELS)])
                for index, level in enumerate(levels)
            ],
            legend="at a time",
        )  # fmt: skip
    page.save(path)


def _tails(
    axes: Axes, title: str, curves: Sequence[tuple[str, Series, str, str]], legend: str | None = None
) -> None:
    for name, series, colour, dash in curves:
        shown = [(1 / share, duration) for share, duration in series.tail if share <= TICKS[0]]
        axes.plot([x for x, _ in shown], [y for _, y in shown], color=colour, linestyle=dash, label=name)
    most = max(series.runs for _, series, _, _ in curves)
    axes.set_xscale("log")
    axes.set_xlim(1 / TICKS[0], max(10, most))
    axes.xaxis.set_major_locator(FixedLocator([1 / tick for tick in TICKS if 1 / tick <= max(10, most)]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{100 - 100 / x:.7g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    durations = [
        duration for _, series, _, _ in curves for share, duration in series.tail if share <= TICKS[0]
    ]
    if max(durations) > 3 * min(durations):
        axes.set_yscale("log")
        plain_log_ticks(axes.yaxis)
        axes.set_ylim(min(durations) * 0.8, max(durations) * (max(durations) / min(durations)) ** 0.35)
    else:
        axes.set_ylim(0, max(durations) * 1.35)
    finish_axes(axes, title, "milliseconds", "percentile")
    axes.legend(loc="upper left", fontsize=9, title=legend, ncols=min(len(curves), 5), alignment="left")


def _rates(axes: Axes, levels: Sequence[Level]) -> None:
    places = range(len(levels))
    bars = axes.bar(places, [level.rate for level in levels], width=0.6, color=BLUE)
    axes.bar_label(bars, [f"{level.rate / levels[0].rate:.2f} x" for level in levels], fontsize=9, padding=2)
    axes.set_xticks(list(places), [str(level.concurrency) for level in levels])
    axes.set_ylim(0, max(level.rate for level in levels) * 1.15)
    finish_axes(axes, "b: throughput", "inferences / s", "inferences at a time")
    axes.margins(x=0.05)


SPREAD = Fact(0.03, "%", "section 2")
GAIN = Fact(1.25, "x", "figure 2", approximate=True)
""""up to 25 %"."""
TAIL = Fact(100, "x", "section 3", approximate=True)
""""tail latency to increase by 100x"."""
TAIL_PERCENT = "99.9"


class LatencyReport(Report, frozen=True, kw_only=True):
    """Contents of ``figure2.json``."""

    isolated: list[Series]
    levels: list[Level]


def compare(isolated: Sequence[Series], levels: Sequence[Level]) -> list[Line]:
    """Return the figure's numbers as lines, the paper's beside those that it names."""
    return [*_isolated_lines(isolated), *_level_lines(levels)]


def _isolated_lines(isolated: Sequence[Series]) -> list[Line]:
    if not isolated:
        return []
    percents = list(isolated[0].percentiles_ms)
    lines = [
        Line(
            name=f"2a: {'maximum' if percent == '100' else f'{percent}th percentile'}",
            unit="ms",
            ours={series.name: series.percentiles_ms[percent] for series in isolated},
        )
        for percent in percents
    ]
    spread = {series.name: None if series.spread is None else 100 * series.spread for series in isolated}
    lines.append(Line(name="2a: 99.99th above the median", unit="%", ours=spread, paper=SPREAD))
    return lines


def _level_lines(levels: Sequence[Level]) -> list[Line]:
    if not levels:
        return []
    alone, most = levels[0], max(levels, key=lambda level: level.rate)
    lines = [
        Line(name=f"2b: throughput, {level.concurrency} at a time", unit="r/s", ours={"device": level.rate})
        for level in levels
    ]
    lines.append(
        Line(
            name=f"2b: most throughput / that of {alone.concurrency}",
            unit="x",
            ours={"device": most.rate / alone.rate},
            paper=GAIN,
        )
    )
    return lines + _tail_lines(levels)


def _tail_lines(levels: Sequence[Level]) -> list[Line]:
    tails = [level.latency.percentiles_ms.get(TAIL_PERCENT) for level in levels]
    lines = [
        Line(
            name=f"2b: {TAIL_PERCENT}th percentile, {level.concurrency} at a time",
            unit="ms",
            ours={"device": tail},
        )
        for level, tail in zip(levels, tails, strict=True)
    ]
    known = [tail for tail in tails[1:] if tail is not None]
    grown = max(known) / tails[0] if known and tails[0] else None
    lines.append(
        Line(
            name=f"2b: longest of these / that of {levels[0].concurrency}",
            unit="x",
            ours={"device": grown},
            paper=TAIL,
        )
    )
    return lines


OUTPUT = Path("out/predictability")
NAME = "figure2"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The measurement to make."""

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
    run(plan, output, wide_console())


if __name__ == "__main__":
    typer.run(main)
