"""Cost of the scheduler itself: `handle` and `schedule` alone, no sockets, no workers, virtual time.

`python -m mainspring.experiments.bench_scheduler` (or `make bench-scheduler`) plays the request mix of
Clockwork's section 6.5 (61 varieties in 66 copies, 12 devices, deadline 100 ms) and then lets the numbers of
models, devices and queued requests grow; ``wide`` has every model on every device that has room for it, and
``fleet``, which takes minutes and is played only if ``--only`` says so, is 64,000 models on 256 devices, with
the memory that they take; ``changes``, likewise, is the same while workers and models come and go. The mix is
played by the policy ``clockwork`` and by the one of ``--policy``, compiled if it is, and as Python beside
that for comparison. A bare program, compiled likewise, says what a request takes before anything is decided.
Writes ``out/bench/scheduler.json`` and ``scheduler.png``; with ``--only`` what else the file has is kept.
"""

from __future__ import annotations

import gc
import math
from pathlib import Path
from typing import Annotated

import matplotlib as mpl
import matplotlib.pyplot as plt
import msgspec
import numpy as np
import typer
from matplotlib.axes import Axes
from rich.console import Console
from rich.table import Table

from mainspring.experiments.scheduler_cost import (
    COMPILED,
    Cost,
    Done,
    Task,
    apart,
    described,
    interpreted,
    measure,
    memory_per_model,
    profile_text,
    way,
)
from mainspring.experiments.scheduler_load import Setting
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.policies.clockwork import Clockwork
from mainspring.scheduler.policies.registry import policy_class

FLAT = 0.05
"""An exponent below this is called flat: less than 1.13 times the cost for ten times as much."""
LOGARITHMIC = 0.2
"""Below this growth is called logarithmic at most: log2(n) itself grows as n^0.11 from 1,000 to 64,000."""
FIELDS = {"models": "models", "devices": "devices", "queued": "backlog", "wide": "devices"}
NOUNS = {
    "models": "models",
    "devices": "devices and requests",
    "queued": "queue",
    "wide": "devices and requests, every model wherever there is room",
}
LABELS = {
    "models": "models",
    "devices": "devices (200 requests/s each)",
    "queued": "requests in the queue of the busiest model",
    "wide": "devices that hold all they can (200 requests/s each)",
}


class Growth(msgspec.Struct, frozen=True):
    """Costs of one sweep, and the exponent of the power of n that fits the least cost of a request best."""

    name: str
    xs: tuple[int, ...]
    costs: tuple[Cost, ...]
    exponent: float

    def text(self) -> str:
        """Say how the cost grows."""
        more = self.xs[-1] / self.xs[0]
        factor = self.costs[-1].request_us_least / self.costs[0].request_us_least
        kind = f"n^{self.exponent:.2f}, {self.verdict()}"
        return f"{more:,.0f} x the {NOUNS[self.name]}: {factor:.2f} x the cost ({kind})"

    def verdict(self) -> str:
        """Name the kind of growth."""
        if abs(self.exponent) < FLAT:
            return "flat"
        if self.exponent < 0:
            return "falling"
        return "at most logarithmic" if self.exponent < LOGARITHMIC else "more than logarithmic"


def growth_of(name: str, costs: list[Cost]) -> Growth:
    """Fit a sweep's costs."""
    xs = tuple(int(getattr(cost.setting, FIELDS[name])) for cost in costs)
    logs = [math.log(cost.request_us_least) for cost in costs]
    exponent = float(np.polyfit(np.log(xs), logs, 1)[0])
    return Growth(name, xs, tuple(costs), exponent)


def plot(sweeps: list[Growth], what: str, path: Path) -> None:
    """Draw each sweep with its fit; ``what`` says of which scheduler."""
    mpl.use("Agg")
    figure, axes = plt.subplots(
        1, len(sweeps), figsize=(4.6 * len(sweeps), 4.4), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, growth in zip(axes[0], sweeps, strict=True):
        _draw(axis, growth)
    axes[0][0].set_ylabel("CPU us for each request")
    axes[0][0].set_ylim(0)
    axes[0][0].legend(loc="lower right", fontsize=8)
    figure.suptitle(
        f"Cost of Scheduler.handle and Scheduler.schedule: {what}; logarithmic x axes, target 25 us"
    )
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _draw(axis: Axes, growth: Growth) -> None:
    xs = np.array(growth.xs, np.float64)
    least = np.array([cost.request_us_least for cost in growth.costs])
    fit = np.exp(np.log(least).mean() + growth.exponent * (np.log(xs) - np.log(xs).mean()))
    axis.semilogx(xs, least, "o-", color="#0072B2", label="median request, least of the plays")
    means = [cost.request_us_mean for cost in growth.costs]
    axis.semilogx(xs, means, "s--", color="#E69F00", label="mean request, median of the plays")
    axis.semilogx(xs, fit, ":", color="#555555", label="fitted power of n")
    axis.axhline(25, color="#999999", linewidth=0.8)
    for x, cost in zip(xs, growth.costs, strict=True):
        axis.annotate(
            f"{cost.request_us_least:.0f}",
            (x, cost.request_us_least),
            xytext=(0, -12),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color="#0072B2",
        )
    axis.set_title(growth.text(), fontsize=9)
    axis.set_xlabel(LABELS[growth.name])
    axis.set_xticks(xs, [f"{x:,}" for x in growth.xs])
    axis.minorticks_off()
    axis.grid(alpha=0.3)


OVERLOAD = Setting()
STEADY = Setting(rate=2_500.0)
MODELS = (1_000, 4_026, 16_000, 64_000)
DEVICES = (1, 4, 12, 64, 256)
WIDE = (12, 64, 128, 256)
"""Devices of the part ``wide``, each of which holds the models that are asked for most."""
FLEET = Setting(models=64_000, devices=256, rate=51_200.0, seconds=0.3)
DEVICE_RATE = 200.0
"""Requests per second for each device where their number grows."""
QUEUES = (1_000, 10_000, 64_000)
LEAST_REQUESTS = 4_000
"""A setting is played for at least so many, and for at most `MOST_REQUESTS`."""
MOST_REQUESTS = 25_000
CHANGES = msgspec.structs.replace(FLEET, changes=4)
"""The same, while workers and models come and go."""
FLEET_PART = "fleet"
CHANGES_PART = "changes"
OUTPUT = Path("out/bench")
COLUMNS = (
    "", "models", "devices", "req/s", "queued", "us/request", "least", "p99.99 call", "least", "max",
    "in time", "LOADs/request",
)  # fmt: skip


class Report(msgspec.Struct, frozen=True):
    """Everything that was measured."""

    policy: str = ""
    way: str = ""
    base: dict[str, Cost] = {}
    interpreted: dict[str, Cost] = {}
    """The same as Python; empty where everything was."""
    bytes_per_model: float | None = None
    growth: dict[str, Growth] = {}
    fleet: Cost | None = None
    fleet_bytes: int = 0
    """The memory that its scheduler takes."""
    changes: Cost | None = None


def main(
    policy: Annotated[
        str, typer.Option(help="The policy; the base settings show clockwork beside it.")
    ] = SchedulerConfig().policy,
    seconds: Annotated[
        float, typer.Option(min=0.2, help="Virtual seconds that the base settings are played for.")
    ] = 4.0,
    plays: Annotated[
        int, typer.Option(min=1, help="How often the same events are played with each clock.")
    ] = 5,
    quick: Annotated[bool, typer.Option(help="Only the base settings.")] = False,
    only: Annotated[
        str, typer.Option(help="Only one part: base, models, devices, queued, wide, fleet or changes.")
    ] = "",
    profiled: Annotated[bool, typer.Option("--profile/--no-profile", help="Print a profile too.")] = True,
    output: Annotated[Path, typer.Option(help="Folder for scheduler.json and scheduler.png.")] = OUTPUT,
) -> None:
    """Measure the scheduler's own cost."""
    parts = ("base", *sweeps(policy), FLEET_PART, CHANGES_PART)
    if only not in ("", *parts):
        raise typer.BadParameter(f"there is no part {only!r}; choose one of {', '.join(parts)}")
    try:
        policy_class(policy)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    console = Console(width=140)
    console.print(f"policy {policy}; the scheduler runs {described()}")
    file = output / "scheduler.json"
    report = _begun(file, policy, console) if only else Report(policy, way())
    if only in ("", "base"):
        report = _measure_base(console, report, seconds, plays, profiled)
    for name, settings in sweeps(policy).items():
        if only == name or not (only or quick):
            growth = growth_of(name, [measure(setting, max(2, plays // 2)) for setting in settings])
            report = msgspec.structs.replace(report, growth={**report.growth, name: growth})
            console.print(_costs(growth.text(), {str(growth.xs[i]): c for i, c in enumerate(growth.costs)}))
    if only == FLEET_PART:
        report = _measure_fleet(console, report)
    if only == CHANGES_PART:
        report = _measure_changes(console, report)
    output.mkdir(parents=True, exist_ok=True)
    file.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    if report.growth:
        plot(list(report.growth.values()), f"policy {policy}, {report.way}", output / "scheduler.png")
    console.print(f"{file}")


def _begun(file: Path, policy: str, console: Console) -> Report:
    if file.exists():
        report = msgspec.json.decode(file.read_bytes(), type=Report)
        if (report.policy, report.way) == (policy, way()):
            return report
        console.print(f"{file} is of policy {report.policy or '?'}, {report.way or '?'}: it is made again")
    return Report(policy, way())


def sweeps(policy: str) -> dict[str, list[Setting]]:
    """Return the settings whose cost shows how it grows with something."""
    replace = msgspec.structs.replace
    steady = replace(STEADY, policy=policy)
    return {
        "models": [_bounded(replace(steady, models=models)) for models in MODELS],
        "devices": [_bounded(replace(steady, devices=n, rate=DEVICE_RATE * n)) for n in DEVICES],
        "queued": [_bounded(replace(steady, backlog=backlog)) for backlog in QUEUES],
        "wide": [_bounded(replace(steady, devices=n, rate=DEVICE_RATE * n, everywhere=True)) for n in WIDE],
    }


def _bounded(setting: Setting) -> Setting:
    seconds = min(MOST_REQUESTS / setting.rate, max(2.0, LEAST_REQUESTS / setting.rate))
    return msgspec.structs.replace(setting, seconds=max(0.2, seconds))


def base_settings(policy: str, seconds: float) -> dict[str, Setting]:
    """Return the request mix at two rates, for clockwork and for a policy."""
    return {
        f"{name} {load}": msgspec.structs.replace(setting, policy=name, seconds=seconds)
        for load, setting in (("steady", STEADY), ("overload", OVERLOAD))
        for name in dict.fromkeys((Clockwork.name, policy))
    }


def _measure_base(console: Console, report: Report, seconds: float, plays: int, profiled: bool) -> Report:
    settings = base_settings(report.policy, seconds)
    base = {name: measure(setting, plays) for name, setting in settings.items()}
    under_profiler = msgspec.structs.replace(STEADY, policy=report.policy) if profiled else None
    if report.way == COMPILED:
        other = interpreted(Task(settings, max(2, plays // 2), under_profiler))
    else:
        other = Done(report.way, {}, profile_text(under_profiler) if under_profiler else "")
    console.print(_costs(f"The request mix of section 6.5, {report.way}", base))
    if other.costs:
        console.print(_costs("The same, interpreted", other.costs))
        console.print(_comparison(base, other.costs))
    for name, cost in base.items():
        console.print(_budget(f"{name}, {report.way}", cost))
    bytes_per_model = memory_per_model(OVERLOAD)
    console.print(f"{bytes_per_model:,.0f} bytes for each model on {OVERLOAD.devices} devices")
    if profiled:
        console.print(f"{report.policy} steady under a profiler, interpreted:\n{other.profile}")
    return msgspec.structs.replace(
        report, base=base, interpreted=other.costs, bytes_per_model=bytes_per_model
    )


def _measure_fleet(console: Console, report: Report) -> Report:
    setting = msgspec.structs.replace(FLEET, policy=report.policy)
    done = apart(Task({FLEET_PART: setting}, 2))
    console.print(_costs("The largest cluster", done.costs))
    console.print(
        f"{done.scheduler_bytes / 1e9:.2f} GB for {setting.models:,} models on {setting.devices} devices"
    )
    return msgspec.structs.replace(report, fleet=done.costs[FLEET_PART], fleet_bytes=done.scheduler_bytes)


def _measure_changes(console: Console, report: Report) -> Report:
    setting = msgspec.structs.replace(CHANGES, policy=report.policy)
    cost = measure(setting, 2)
    console.print(_costs("The largest cluster, while workers and models come and go", {CHANGES_PART: cost}))
    console.print(_budget(CHANGES_PART, cost))
    return msgspec.structs.replace(report, changes=cost)


def _comparison(base: dict[str, Cost], as_python: dict[str, Cost]) -> str:
    said = [
        f"{name} {as_python[name].request_us_least / cost.request_us_least:.2f} x"
        for name, cost in base.items()
    ]
    return f"interpreted by compiled, least CPU a request: {', '.join(said)}"


def _costs(title: str, costs: dict[str, Cost]) -> Table:
    table = Table(title=title, caption="targets: 25 us a request (median of slices of 50 ms), 1 ms a call")
    for index, name in enumerate(COLUMNS):
        table.add_column(name, justify="right" if index else "left")
    for name, cost in costs.items():
        setting = cost.setting
        table.add_row(
            name,
            f"{setting.models:,}",
            str(setting.devices),
            f"{setting.rate:,.0f}",
            f"{setting.backlog:,}",
            f"{cost.request_us_p50:.1f}",
            f"{cost.request_us_least:.1f}",
            f"{cost.call_us_p9999:,.0f}",
            f"{cost.call_us_p9999_least:,.0f}",
            f"{cost.call_us_max_least:,.0f}",
            f"{cost.in_time:.1%}",
            f"{cost.loads_per_request:.3f}",
        )
    return table


def _budget(name: str, cost: Cost) -> Table:
    longest = "; ".join(
        f"{call.us:.0f} us {call.call} {call.event} {call.commands or ''}".rstrip()
        for call in cost.longest[:3]
    )
    table = Table(title=f"{name}: where a request's time goes (least of each call)", caption=longest)
    for index, column in enumerate(("event", "for each request", "handle us", "schedule us", "us/request")):
        table.add_column(column, justify="right" if index else "left")
    for kind, share in cost.budget.items():
        per_request_us = share.per_request * (share.handle_us + share.schedule_us)
        figures = (share.per_request, share.handle_us, share.schedule_us, per_request_us)
        table.add_row(kind, *(f"{figure:.2f}" for figure in figures))
    return table


if __name__ == "__main__":
    gc.disable()
    np.seterr(all="raise")
    typer.run(main)
