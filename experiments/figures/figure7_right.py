"""Figure 7, right: latency-sensitive clients beside batch clients without a deadline (section 6.4).

Six models at 200 requests/s each in an open loop, whose SLO rises as on the left, beside no batch clients,
12 with 16 requests in flight each, or 48 with 4, in a closed loop. ``python -m
mainspring.experiments.figures.figure7_right``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from matplotlib.axes import Axes

from mainspring.experiments.figures.canvas import Page, known, look
from mainspring.experiments.figures.case import Case, Observed
from mainspring.experiments.figures.experiment import Experiment, main
from mainspring.experiments.figures.options import Options
from mainspring.experiments.figures.paper import (
    DEVICE_PAGES,
    FIGURE7_BASE_MS,
    FIGURE7_BATCH_CLIENTS,
    FIGURE7_DEVICES,
    FIGURE7_RIGHT,
    FIGURE7_SENSITIVE,
    FIGURE7_SENSITIVE_RATE,
    FIGURE7_STAGES,
)
from mainspring.experiments.figures.profiles import model_names, resnet50_table
from mainspring.experiments.figures.report import Line
from mainspring.experiments.figures.workloads import (
    MULTIPLIERS,
    Together,
    nearest_stage,
    rising,
    satisfaction,
    satisfied_from,
    stage_seconds,
    throughput,
)
from mainspring.telemetry.style import BLACK, finish_axes, plain_log_ticks
from mainspring.traces.generators import closed_loop
from mainspring.traces.source import Playable

SHORT_STAGE_S = 1.5
COMPARED = (3.4, 7.6, 11.4, 25.6)
"""Multipliers that the text names."""


class Row(msgspec.Struct, frozen=True):
    """One policy beside one set of batch clients."""

    policy: str
    clients: int
    """The paper's, of which a live run has a part."""
    in_flight: int
    multipliers: list[float]
    shares: list[float | None]
    batch_rates: list[float]
    """Answers to batch clients a second, at each multiplier."""
    sensitive_rates: list[float]
    """Latency-sensitive goodput a second."""


def cases(options: Options) -> list[Case]:
    """Return one case for each policy and set of batch clients."""
    table = resnet50_table(options.profiles, options.io_kb)
    stage_s = stage_seconds(options, SHORT_STAGE_S)
    found = []
    for policy in options.chosen():
        for clients, in_flight in FIGURE7_BATCH_CLIENTS:
            sensitive, batch = options.count(FIGURE7_SENSITIVE), options.count(clients) if clients else 0
            names = model_names(table, sensitive + batch)
            parts: list[Playable] = [
                rising(dict.fromkeys(names[:sensitive], FIGURE7_SENSITIVE_RATE), stage_s)
            ]
            if batch:
                length_ns = round(stage_s * FIGURE7_STAGES * 1e9)
                parts.append(
                    closed_loop(names[sensitive:], concurrency=in_flight, duration_ns=length_ns, slo_ns=None)
                )
            found.append(
                Case(
                    label=_name(clients, in_flight),
                    policy=policy,
                    table=table,
                    copies=sensitive + batch,
                    devices=options.count(FIGURE7_DEVICES),
                    pages=DEVICE_PAGES,
                    workload=Together(tuple(parts)),
                    length_s=stage_s * FIGURE7_STAGES,
                    seed=options.seed,
                    facts={"clients": clients, "in_flight": in_flight, "stage_s": stage_s},
                )
            )
    return found


def _name(clients: int, in_flight: int) -> str:
    return f"{clients} x {in_flight} batch clients" if clients else "no batch clients"


def measure(case: Case, observed: Observed) -> Row:
    """Count each stage, for both kinds of clients."""
    seen, stage_s = observed.outcomes, case.facts["stage_s"]
    return Row(
        policy=case.policy,
        clients=int(case.facts["clients"]),
        in_flight=int(case.facts["in_flight"]),
        multipliers=list(MULTIPLIERS),
        shares=satisfaction(seen, stage_s),
        batch_rates=throughput(seen, seen.answered & seen.best_effort, stage_s),
        sensitive_rates=throughput(seen, seen.in_time & ~seen.best_effort, stage_s),
    )


def compare(rows: Sequence[Row], _options: Options) -> list[Line]:
    """Return the latency-sensitive clients' share and the batch clients' throughput at the text's SLOs."""
    lines = []
    for clients, in_flight in FIGURE7_BATCH_CLIENTS:
        own, name = [row for row in rows if row.clients == clients], _name(clients, in_flight)
        lines.append(
            Line(
                name=f"{name}: 99.9% in time from",
                unit="x",
                ours={row.policy: satisfied_from(row.shares) for row in own},
                paper=FIGURE7_RIGHT if clients else None,
            )
        )
        for multiplier in COMPARED:
            stage = nearest_stage(multiplier)
            shares = {row.policy: row.shares[stage] for row in own}
            lines.append(
                Line(
                    name=f"{name}: in time at {multiplier:g} x",
                    unit="%",
                    ours={policy: None if share is None else 100 * share for policy, share in shares.items()},
                )
            )
            if clients:
                lines.append(
                    Line(
                        name=f"{name}: batch throughput at {multiplier:g} x",
                        unit="r/s",
                        ours={row.policy: row.batch_rates[stage] for row in own},
                    )
                )
    return lines


def draw(path: Path, rows: Sequence[Row], options: Options) -> None:
    """Draw a row of panels for each set of batch clients: satisfaction, and the throughput of both kinds."""
    policies = tuple(dict.fromkeys(row.policy for row in rows))
    kind = "live, one device of six" if options.live else "simulated"
    page = Page(f"Figure 7, right: beside batch clients ({kind})", len(FIGURE7_BATCH_CLIENTS), 2)
    for number, (clients, in_flight) in enumerate(FIGURE7_BATCH_CLIENTS):
        own = [row for row in rows if row.clients == clients]
        _satisfaction(page.panel(number, 0), own, policies, _name(clients, in_flight))
        _throughput(page.panel(number, 1), own, policies, _name(clients, in_flight))
    page.save(path)


def _satisfaction(axes: Axes, rows: Sequence[Row], policies: tuple[str, ...], title: str) -> None:
    for row in rows:
        colour, dash, marker = look(row.policy, policies)
        xs, ys = known([FIGURE7_BASE_MS * value for value in row.multipliers], row.shares)
        axes.plot(xs, [100 * y for y in ys], color=colour, linestyle=dash, marker=marker, label=row.policy)
    if rows and rows[0].clients:
        paper_ms = FIGURE7_RIGHT.value * FIGURE7_BASE_MS
        axes.axvline(paper_ms, color=BLACK, linewidth=1.2, linestyle=":", label="the paper: many lost below")
    _finish(axes, f"Latency-sensitive, {title}", "% in time", 107)
    axes.legend(loc="lower right", fontsize=9)


def _throughput(axes: Axes, rows: Sequence[Row], policies: tuple[str, ...], title: str) -> None:
    highest = 1.0
    for row in rows:
        colour, dash, marker = look(row.policy, policies)
        xs = [FIGURE7_BASE_MS * value for value in row.multipliers]
        if row.clients:
            axes.plot(xs, row.batch_rates, color=colour, linestyle=dash, marker=marker,
                      label=f"{row.policy}: batch")  # fmt: skip
        axes.plot(xs, row.sensitive_rates, color=colour, linestyle=":", label=f"{row.policy}: in time")
        highest = max([highest, *row.batch_rates, *row.sensitive_rates])
    _finish(axes, f"Throughput, {title}", "requests / s", highest * 1.45)
    axes.legend(loc="upper left", ncols=2, fontsize=9)


def _finish(axes: Axes, title: str, unit: str, top: float) -> None:
    axes.set_xscale("log")
    plain_log_ticks(axes.xaxis)
    axes.set_ylim(0, top)
    finish_axes(axes, title, unit, "SLO of the latency-sensitive, milliseconds")


def notes(options: Options) -> list[str]:
    """Return what is scaled."""
    told = ["x: multiples of 2.9 ms. Batch clients have no deadline: the scheduler's best-effort class."]
    if options.live:
        told.append("Live: one device instead of six, and a sixth of both kinds of clients.")
    return told


FIGURE = Experiment(
    name="figure7_right",
    title="Figure 7, right: isolation from batch clients",
    cases=cases,
    measure=measure,
    compare=compare,
    draw=draw,
    notes=notes,
)

if __name__ == "__main__":
    main(FIGURE)
