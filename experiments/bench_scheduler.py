"""What the scheduler itself costs: `handle` and `schedule` alone, no sockets, no workers, virtual time.

`python -m mainspring.experiments.bench_scheduler` (or `make bench-scheduler`) plays the request mix of
Clockwork's section 6.5 (61 varieties in 66 copies, 12 devices, SLO 100 ms) and then lets the numbers of
models, devices and queued requests grow. CPU time is that of the calling thread, so that other processes
of the machine do not count. Writes ``out/bench/scheduler.json`` and ``scheduler.png``.
"""

from __future__ import annotations

import cProfile
import gc
import io
import pstats
from pathlib import Path
from typing import Annotated

import matplotlib as mpl
import matplotlib.pyplot as plt
import msgspec
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from mainspring.experiments.scheduler_cost import Cost, Setting, measure, memory_per_model

MODELS = (1_000, 4_026, 16_000, 64_000)
DEVICES = (1, 4, 12, 64, 256)
QUEUES = (100, 1_000, 10_000)
OUTPUT = Path("out/bench")
COLUMNS = ("models", "devices", "req/s", "queued", "us/req", "p99.99 us", "max us", "in time")


class Report(msgspec.Struct, frozen=True):
    """Everything that was measured."""

    base: Cost
    bytes_per_model: float
    by_models: tuple[Cost, ...]
    by_devices: tuple[Cost, ...]
    by_queue: tuple[Cost, ...]


def main(
    seconds: Annotated[float, typer.Option(help="Virtual seconds that each setting is played for.")] = 4.0,
    quick: Annotated[bool, typer.Option(help="Only the base setting.")] = False,
    profile: Annotated[bool, typer.Option(help="Print where the base setting's time goes.")] = True,
    output: Annotated[Path, typer.Option(help="Folder for scheduler.json and scheduler.png.")] = OUTPUT,
) -> None:
    """Measure the scheduler's own cost."""
    console = Console()
    base = Setting(seconds=seconds)
    cost = measure(base)
    sweeps: list[list[Setting]] = [[], [], []]
    if not quick:
        sweeps = [
            [msgspec.structs.replace(base, models=models) for models in MODELS],
            [msgspec.structs.replace(base, devices=devices, rate=400.0 * devices) for devices in DEVICES],
            [msgspec.structs.replace(base, backlog=backlog) for backlog in QUEUES],
        ]
    by_models, by_devices, by_queue = [[measure(setting) for setting in sweep] for sweep in sweeps]
    report = Report(cost, memory_per_model(base), tuple(by_models), tuple(by_devices), tuple(by_queue))
    console.print(_table(report))
    if profile:
        console.print(_profile(base))
    output.mkdir(parents=True, exist_ok=True)
    (output / "scheduler.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    if not quick:
        _plot(report, output / "scheduler.png")
    console.print(f"{output / 'scheduler.json'}")


def _table(report: Report) -> Table:
    table = Table(title="CPU of the scheduler; targets: 25 us a request (median), 1 ms a call (p99.99)")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for cost in (report.base, *report.by_models, *report.by_devices, *report.by_queue):
        setting = cost.setting
        table.add_row(
            f"{setting.models:,}",
            str(setting.devices),
            f"{setting.rate:,.0f}",
            f"{setting.backlog:,}",
            f"{cost.request_us_p50:.1f}",
            f"{cost.call_us_p9999:,.0f}",
            f"{cost.call_us_max:,.0f}",
            f"{cost.in_time:.1%}",
        )
    devices = report.base.setting.devices
    table.caption = f"{report.bytes_per_model:,.0f} bytes of memory for each model on {devices} devices"
    return table


def _profile(setting: Setting) -> str:
    profiler = cProfile.Profile()
    measure(setting, around=profiler)
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats("scheduler|heapq", 16)
    return "\n".join(line for line in text.getvalue().splitlines() if line.strip())


def _plot(report: Report, path: Path) -> None:
    mpl.use("Agg")
    figure, axes = plt.subplots(1, 3, figsize=(13, 4), sharey=True, layout="constrained")
    sweeps = (
        ("models", [c.setting.models for c in report.by_models], report.by_models),
        ("devices, 400 requests/s each", [c.setting.devices for c in report.by_devices], report.by_devices),
        ("queued requests", [c.setting.backlog for c in report.by_queue], report.by_queue),
    )
    for axis, (label, xs, costs) in zip(axes, sweeps, strict=True):
        axis.semilogx(xs, [c.request_us_p50 for c in costs], "o-", color="#0072B2", label="median")
        axis.semilogx(xs, [c.request_us_mean for c in costs], "s--", color="#E69F00", label="mean")
        axis.set_xlabel(label)
        axis.set_xticks(xs, [f"{x:,}" for x in xs])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("CPU us for each request")
    axes[0].set_ylim(0)
    axes[0].legend()
    figure.suptitle("Cost of Scheduler.handle and Scheduler.schedule")
    figure.savefig(path, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    gc.disable()
    np.seterr(all="raise")
    typer.run(main)
