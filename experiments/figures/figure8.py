"""Figure 8: the Azure Functions workload on six machines, 4,026 models, SLO 100 ms (section 6.5).

The paper's six machines have two GPUs each, and it does not say whether both served: here twelve devices do,
and six. ``python -m mainspring.experiments.figures.figure8``; ``azure.py``
says what the workload is made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from matplotlib.axes import Axes

from mainspring.experiments.figures.azure import azure, trace_note
from mainspring.experiments.figures.canvas import Page, known, look
from mainspring.experiments.figures.case import Case, Observed, Outcomes, percentile
from mainspring.experiments.figures.experiment import Experiment, main
from mainspring.experiments.figures.options import Options
from mainspring.experiments.figures.paper import (
    AZURE_COPIES,
    AZURE_LENGTH_S,
    AZURE_MACHINES,
    AZURE_RATE,
    AZURE_SLO_MS,
    DEVICE_PAGES,
    FIGURE8,
    GPUS_A_MACHINE,
)
from mainspring.experiments.figures.profiles import model_names, varieties_table
from mainspring.experiments.figures.report import Line
from mainspring.telemetry.style import GREY, RED, finish_axes, plain_log_ticks

X_LABEL = "hours of the trace"


def draw(path: Path, rows: Sequence[Row], options: Options) -> None:
    """Draw the paper's panels, the policies beside each other."""
    policies = tuple(dict.fromkeys(row.policy for row in rows))
    sizes = list(dict.fromkeys(row.devices for row in rows))
    kind = "live, a sixth of it" if options.live else "simulated"
    page = Page(f"Figure 8: the Azure Functions workload, SLO 100 ms ({kind})", 4, len(sizes))
    for column, devices in enumerate(sizes):
        own = [row for row in rows if row.devices == devices]
        name = f"on {devices} devices"
        _rates(page.panel(0, column), own, policies, name)
        _latency(page.panel(1, column), own, policies)
        _curves(
            page.panel(2, column), own, policies, "mean_batch", "Batch of the average request", "requests"
        )
        _curves(page.panel(3, column), own, policies, "cold_rate", "Cold requests", "requests / s")
    page.save(path)


def _rates(axes: Axes, rows: Sequence[Row], policies: tuple[str, ...], name: str) -> None:
    axes.plot(rows[0].hour, rows[0].offered, color=GREY, linewidth=4, alpha=0.4, label="offered")
    for row in rows:
        colour, dash, _ = look(row.policy, policies)
        axes.plot(row.hour, row.goodput, color=colour, linestyle=dash, label=row.policy)
    axes.set_ylim(0, max(rows[0].offered) * 1.35)
    finish_axes(axes, f"Goodput {name}", "requests / s", X_LABEL)
    axes.legend(loc="upper right", ncols=3, fontsize=9)


def _latency(axes: Axes, rows: Sequence[Row], policies: tuple[str, ...]) -> None:
    for row in rows:
        colour, _, _ = look(row.policy, policies)
        for name, dash, values in (
            ("p50", "-", row.p50_ms), ("p99", "--", row.p99_ms), ("max", ":", row.max_ms)
        ):  # fmt: skip
            xs, ys = known(row.hour, values)
            axes.plot(xs, ys, color=colour, linestyle=dash, linewidth=1.2, label=f"{row.policy} {name}")
    axes.axhline(AZURE_SLO_MS, color=RED, linewidth=1.2)
    axes.set_yscale("log")
    axes.set_ylim(1, 1500)
    plain_log_ticks(axes.yaxis)
    finish_axes(axes, "Latency of answers (red: SLO)", "milliseconds", X_LABEL)
    axes.legend(loc="upper right", ncols=2, fontsize=8)


def _curves(
    axes: Axes, rows: Sequence[Row], policies: tuple[str, ...], field: str, title: str, unit: str
) -> None:
    highest = 1.0
    for row in rows:
        colour, dash, _ = look(row.policy, policies)
        xs, ys = known(row.hour, getattr(row, field))
        axes.plot(xs, ys, color=colour, linestyle=dash, label=row.policy)
        highest = max([highest, *ys])
    axes.set_ylim(0, highest * 1.35)
    finish_axes(axes, title, unit, X_LABEL)
    axes.legend(loc="upper right", ncols=3, fontsize=9)


DEVICES = (AZURE_MACHINES * GPUS_A_MACHINE, AZURE_MACHINES)
SHORT_S, LIVE_S = 32.0, 40.0
WARM_UP_SHARE = 0.1
BINS = 96
"""Points of the plot: one for each five minutes of the trace."""
COLD_WINDOW_S = 60.0


class Row(msgspec.Struct, frozen=True):
    """One policy on so many devices; columns of one entry for each bin."""

    policy: str
    devices: int
    """The paper's, of which a live run has a part."""
    models: int
    hour: list[float]
    offered: list[float]
    goodput: list[float]
    p50_ms: list[float | None]
    p99_ms: list[float | None]
    max_ms: list[float | None]
    mean_batch: list[float | None]
    cold_rate: list[float]
    requests: int
    """Counted, after the warm-up; so are the others that follow."""
    offered_rate: float
    goodput_rate: float
    missed: int
    late: int
    cold_requests_rate: float
    cold_models: float
    """Models with at least one cold start in a window of 60 s, on average; in shorter runs, in all of it."""
    longest_ms: float | None
    latency_p50_ms: float | None
    latency_p99_ms: float | None


def cases(options: Options) -> list[Case]:
    """Return one case for each number of devices and policy."""
    return [case for devices in DEVICES for case in cases_on(options, devices)]


def cases_on(options: Options, devices: int) -> list[Case]:
    """Return one case for each policy on so many devices."""
    table = varieties_table(options.profiles, options.io_kb)
    copies = options.count(AZURE_COPIES)
    names = model_names(table, copies)
    played_s = options.seconds(LIVE_S if options.live else SHORT_S, AZURE_LENGTH_S)
    rate = options.share(AZURE_RATE)
    workload = azure(
        options, names, rate=rate, played_s=played_s, trace_s=AZURE_LENGTH_S, slo_ms=AZURE_SLO_MS
    )
    return [
        Case(
            label=f"{len(names):,} models on {options.count(devices)} devices, {played_s:g} s",
            policy=policy,
            table=table,
            copies=copies,
            devices=options.count(devices),
            pages=DEVICE_PAGES,
            workload=workload,
            length_s=played_s,
            warm_up_s=played_s * WARM_UP_SHARE,
            seed=options.seed,
            facts={"models": len(names), "devices": devices},
        )
        for policy in options.chosen()
    ]


def measure(case: Case, observed: Observed) -> Row:
    """Count by bins, and all after the warm-up."""
    seen = observed.outcomes
    edges = np.linspace(0, case.length_s, BINS + 1)
    counted = seen.between(case.warm_up_s, case.length_s)
    seconds = case.length_s - case.warm_up_s
    latency = seen.latency_ms[seen.answered & counted]
    in_time = int((seen.in_time & counted).sum())
    return Row(
        policy=case.policy,
        devices=int(case.facts["devices"]),
        models=int(case.facts["models"]),
        hour=((edges[:-1] + edges[1:]) / 2 / case.length_s * AZURE_LENGTH_S / 3600).tolist(),
        offered=seen.rate(np.ones_like(counted), edges),
        goodput=seen.rate(seen.in_time, edges),
        p50_ms=seen.percentiles(seen.answered, 50, edges),
        p99_ms=seen.percentiles(seen.answered, 99, edges),
        max_ms=seen.percentiles(seen.answered, 100, edges),
        mean_batch=seen.means(seen.batch_size, seen.answered, edges),
        cold_rate=seen.rate(seen.cold, edges),
        requests=int(counted.sum()),
        offered_rate=int(counted.sum()) / seconds,
        goodput_rate=in_time / seconds,
        missed=int(counted.sum()) - in_time,
        late=int((seen.late & counted).sum()),
        cold_requests_rate=int((seen.cold & counted).sum()) / seconds,
        cold_models=_cold_models(seen, case.warm_up_s, case.length_s),
        longest_ms=percentile(latency, 100),
        latency_p50_ms=percentile(latency, 50),
        latency_p99_ms=percentile(latency, 99),
    )


def _cold_models(seen: Outcomes, start_s: float, end_s: float) -> float:
    width_s = min(COLD_WINDOW_S, end_s - start_s)
    starts = [start_s + width_s * number for number in range(int((end_s - start_s) / width_s + 1e-9))]
    counts = [
        len(np.unique(seen.model[seen.cold & seen.between(begin_s, begin_s + width_s)])) for begin_s in starts
    ]
    return float(np.mean(counts))


def compare(rows: Sequence[Row], _options: Options) -> list[Line]:
    """Return the text's numbers beside those on each number of devices."""
    return [
        line
        for devices in dict.fromkeys(row.devices for row in rows)
        for line in _lines([row for row in rows if row.devices == devices], devices)
    ]


def _lines(rows: Sequence[Row], devices: int) -> list[Line]:
    values: dict[str, tuple[str, dict[str, float | None]]] = {
        "offered": ("r/s", {row.policy: row.offered_rate for row in rows}),
        "goodput": ("r/s", {row.policy: row.goodput_rate for row in rows}),
        "in time": ("%", {row.policy: 1e2 * (1 - row.missed / max(row.requests, 1)) for row in rows}),
        "not in time": ("per million", {row.policy: 1e6 * row.missed / max(row.requests, 1) for row in rows}),
        "models with a cold start a minute": ("models", {row.policy: row.cold_models for row in rows}),
        "share of models with one": ("%", {row.policy: 1e2 * row.cold_models / row.models for row in rows}),
        "cold requests": ("r/s", {row.policy: row.cold_requests_rate for row in rows}),
        "share of cold requests": (
            "%",
            {row.policy: 1e2 * row.cold_requests_rate / max(row.offered_rate, 1) for row in rows},
        ),
        "longest latency": ("ms", {row.policy: row.longest_ms for row in rows}),
        "p50": ("ms", {row.policy: row.latency_p50_ms for row in rows}),
        "p99": ("ms", {row.policy: row.latency_p99_ms for row in rows}),
    }
    return [
        Line(name=f"{devices} devices: {name}", unit=unit, ours=ours, paper=FIGURE8.get(name))
        for name, (unit, ours) in values.items()
    ]


def notes(options: Options) -> list[str]:
    """Return what the workload is and what is scaled."""
    told = [
        trace_note(options),
        "The paper's six machines have two GPUs each; it does not say whether both of them served.",
    ]
    if not options.full:
        told.append("Short: the eight hours pass in the time that is played, at the paper's rate.")
    if options.live:
        told.append("Live: a sixth of the devices, of the models and of the load.")
    return told


FIGURE = Experiment(
    name="figure8",
    title="Figure 8: a realistic workload",
    cases=cases,
    measure=measure,
    compare=compare,
    draw=draw,
    notes=notes,
)

if __name__ == "__main__":
    main(FIGURE)
