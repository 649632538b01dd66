"""Devices that one controller serves: 10 to 150 emulated ones (the paper's artifact; sections 6.5 and 7).

The paper calls centralised scheduling "itself a scalability bottleneck" and shows 20 GPUs at 6,174
requests/s; its artifact has a run with up to 150 emulated devices. Here every device brings four copies of
ResNet-50 and a part of what it can do at best, with an SLO of 100 ms. In a simulation the devices and the
network cost nothing, and the scheduler's own time is measured beside it: requests/s times that is the share
of a core that the controller's decisions take. ``python -m mainspring.experiments.figures.scalability``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from matplotlib.axes import Axes

from mainspring.experiments.figures.canvas import Page, known, look
from mainspring.experiments.figures.case import Case, Observed, percentile
from mainspring.experiments.figures.experiment import Experiment, main
from mainspring.experiments.figures.options import Options
from mainspring.experiments.figures.paper import (
    DEVICE_PAGES,
    EMULATED_DEVICES,
    MILLISECOND_NS,
    SCALE_DEVICES,
    SCALE_RATE,
    Fact,
)
from mainspring.experiments.figures.profiles import model_names, resnet50_table
from mainspring.experiments.figures.report import Line
from mainspring.telemetry.style import BLACK, finish_axes
from mainspring.traces.generators import Poisson

MODELS_A_DEVICE = 4
DEVICE_RATE = 925.0
"""Requests a second of one device in batches of 16 of ResNet-50 (17.3 ms)."""
SLO_MS = 100.0
LOADS = (0.5, 0.9)
SHORT_DEVICES = (10, 20, 40)
LIVE_DEVICES = (1, 2, 4, 8, 12)
LIVE_LOADS = (0.05, 0.1)
"""Sockets and the load generator share this machine's cores with the controller."""
SHORT_S, LIVE_S, FULL_S = 0.8, 5.0, 60.0
WARM_UP_SHARE = 0.25
PAPER = Fact(SCALE_RATE, "r/s", "section 6.5: 20 GPUs")


class Row(msgspec.Struct, frozen=True):
    """One policy on so many devices."""

    policy: str
    devices: int
    load: float
    offered_rate: float
    goodput_rate: float
    in_time: float
    p99_ms: float | None
    scheduler_us: float | None
    """CPU of the scheduler for each request; None live."""
    requests_per_wall_s: float


def cases(options: Options) -> list[Case]:
    """Return one case for each policy, number of devices and load."""
    table = resnet50_table(options.profiles, options.io_kb)
    devices_tried = EMULATED_DEVICES if options.full else SHORT_DEVICES
    loads = LOADS
    if options.live:
        devices_tried, loads = LIVE_DEVICES, LIVE_LOADS
    length_s = options.seconds(LIVE_S if options.live else SHORT_S, FULL_S)
    return [
        Case(
            label=f"{devices} devices at {load:.0%}",
            policy=policy,
            table=table,
            copies=devices * MODELS_A_DEVICE,
            devices=devices,
            pages=DEVICE_PAGES,
            workload=_even(model_names(table, devices * MODELS_A_DEVICE), load * devices * DEVICE_RATE)
            .cut(0, round(length_s * 1e9))
            .with_requests(slo_ns=round(SLO_MS * MILLISECOND_NS)),
            length_s=length_s,
            warm_up_s=length_s * WARM_UP_SHARE,
            seed=options.seed,
            costed=True,
            facts={"load": load},
        )
        for policy in options.chosen()
        for devices in devices_tried
        for load in loads
    ]


def _even(names: list[str], rate: float) -> Poisson:
    return Poisson(dict.fromkeys(names, rate / len(names)))


def measure(case: Case, observed: Observed) -> Row:
    """Count what was sent after the warm-up."""
    seen = observed.outcomes
    counted = seen.between(case.warm_up_s, case.length_s)
    seconds, number = case.length_s - case.warm_up_s, int(counted.sum())
    in_time = int((seen.in_time & counted).sum())
    return Row(
        policy=case.policy,
        devices=case.devices,
        load=case.facts["load"],
        offered_rate=number / seconds,
        goodput_rate=in_time / seconds,
        in_time=in_time / max(number, 1),
        p99_ms=percentile(seen.latency_ms[seen.answered & counted], 99),
        scheduler_us=observed.scheduler_us,
        requests_per_wall_s=observed.summary.offered / max(observed.wall_s, 1e-9),
    )


def compare(rows: Sequence[Row], options: Options) -> list[Line]:
    """Return goodput, the share in time, and the scheduler's cost at each size and load."""
    lines = []
    for devices, load in dict.fromkeys((row.devices, row.load) for row in rows):
        own = [row for row in rows if (row.devices, row.load) == (devices, load)]
        name = f"{devices} devices at {load:.0%}"
        lines += [
            Line(name=f"{name}: goodput", unit="r/s", ours={row.policy: row.goodput_rate for row in own},
                 paper=PAPER if devices == SCALE_DEVICES else None),
            Line(name=f"{name}: in time", unit="%", ours={row.policy: 1e2 * row.in_time for row in own}),
        ]  # fmt: skip
        if not options.live:
            lines.append(
                Line(
                    name=f"{name}: scheduler",
                    unit="us/request",
                    ours={row.policy: row.scheduler_us for row in own},
                )
            )
    return lines


def draw(path: Path, rows: Sequence[Row], options: Options) -> None:
    """Draw goodput, the share in time and the scheduler's cost against the number of devices."""
    policies = tuple(dict.fromkeys(row.policy for row in rows))
    kind = "live" if options.live else "simulated"
    page = Page(f"One controller, more and more devices ({kind})", 1, 2 if options.live else 3)
    _panel(page.panel(0, 0), rows, policies, "goodput_rate", "Goodput", "requests / s")
    _panel(page.panel(0, 1), rows, policies, "in_time", "In time", "share of the requests")
    if not options.live:
        _panel(page.panel(0, 2), rows, policies, "scheduler_us", "The scheduler's CPU", "us for each request")
    page.save(path)


def _panel(
    axes: Axes, rows: Sequence[Row], policies: tuple[str, ...], field: str, title: str, unit: str
) -> None:
    highest = 0.0
    for policy in policies:
        colour, _, marker = look(policy, policies)
        for load, dash in zip(dict.fromkeys(row.load for row in rows), ("--", "-", ":"), strict=False):
            own = [row for row in rows if (row.policy, row.load) == (policy, load)]
            xs, ys = known([float(row.devices) for row in own], [getattr(row, field) for row in own])
            axes.plot(xs, ys, color=colour, linestyle=dash, marker=marker, label=f"{policy}, {load:.0%}")
            highest = max([highest, *ys])
    if field == "goodput_rate":
        axes.plot([SCALE_DEVICES], [SCALE_RATE], color=BLACK, marker="x", markersize=9, linestyle="none",
                  label="the paper's 20 GPUs")  # fmt: skip
    axes.set_ylim(0, highest * 1.5)
    finish_axes(axes, title, unit, "devices")
    axes.legend(loc="upper left", ncols=2, fontsize=9)


def notes(options: Options) -> list[str]:
    """Return what limits what."""
    if options.live:
        return ["Live: the limit is this machine's cores, which devices, sockets and load generator share."]
    return [
        "The percentages are of what the devices do in batches of 16 (925 r/s each).",
        "One core for the scheduler's decisions is enough for 1,000,000 / (us/request) r/s.",
    ]


FIGURE = Experiment(
    name="scalability",
    title="Scalability: 10 to 150 devices",
    cases=cases,
    measure=measure,
    compare=compare,
    draw=draw,
    notes=notes,
)

if __name__ == "__main__":
    main(FIGURE)
