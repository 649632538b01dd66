"""Figure 5: goodput and latency of 15 copies of ResNet-50 on one device as the SLO tightens (section 6.1).

Each model has one closed-loop client with 16 requests in flight. The paper compares with Clipper and
INFaaS; here our own ``clipper`` policy stands in for the first and ``fifo``, dynamic batching with a delay as
in Triton, for a server that knows deadlines only coarsely. ``python -m
mainspring.experiments.figures.figure5``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from matplotlib.axes import Axes

from mainspring.experiments.figures.canvas import Page, look
from mainspring.experiments.figures.case import Case, Observed, percentile
from mainspring.experiments.figures.experiment import Experiment, main
from mainspring.experiments.figures.options import DEFAULT_POLICIES, Options
from mainspring.experiments.figures.paper import (
    DEVICE_PAGES,
    FIGURE5,
    FIGURE5_CONCURRENCY,
    FIGURE5_MODELS,
    FIGURE5_SLOS_MS,
    INDEPENDENT_FIGURE5,
    MILLISECOND_NS,
)
from mainspring.experiments.figures.profiles import model_names, resnet50_table
from mainspring.experiments.figures.report import Line
from mainspring.telemetry.style import BLACK, GREY, finish_axes, plain_log_ticks
from mainspring.traces.generators import closed_loop

POLICIES = (*DEFAULT_POLICIES, "clipper", "fifo")
TAIL_PERCENTS = (1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 85, 90, 95, 98, 99, 99.5, 99.9, 99.95, 99.99, 100)
SHORT_S, LIVE_S, FULL_S = 5.0, 6.0, 1_800.0
WARM_UP_SHARE = 0.25
DRAWN_SLOS_MS = (25.0, 100.0, 500.0)


class Row(msgspec.Struct, frozen=True):
    """One policy at one SLO."""

    policy: str
    slo_ms: float
    goodput_rate: float
    least_model_rate: float
    """Goodput of the model that gets least."""
    answered_rate: float
    rejected_rate: float
    in_time_share: float | None
    p50_ms: float | None
    p99_ms: float | None
    max_ms: float | None
    mean_batch: float | None
    latencies_ms: list[float | None]


def cases(options: Options) -> list[Case]:
    """Return one case for each policy and SLO."""
    table = resnet50_table(options.profiles, options.io_kb)
    names = model_names(table, FIGURE5_MODELS)
    length_s = options.seconds(LIVE_S if options.live else SHORT_S, FULL_S)
    return [
        Case(
            label=f"SLO {slo_ms:g} ms",
            policy=policy,
            table=table,
            copies=FIGURE5_MODELS,
            devices=1,
            pages=DEVICE_PAGES,
            workload=closed_loop(
                names,
                concurrency=FIGURE5_CONCURRENCY,
                duration_ns=round(length_s * 1e9),
                slo_ns=round(slo_ms * MILLISECOND_NS),
            ),
            length_s=length_s,
            warm_up_s=length_s * WARM_UP_SHARE,
            seed=options.seed,
            facts={"slo_ms": slo_ms},
        )
        for policy in options.chosen(POLICIES)
        for slo_ms in FIGURE5_SLOS_MS
    ]


def measure(case: Case, observed: Observed) -> Row:
    """Count what was sent after the warm-up."""
    seen = observed.outcomes
    counted = seen.between(case.warm_up_s, case.length_s)
    seconds = case.length_s - case.warm_up_s
    answered = seen.answered & counted
    latency = seen.latency_ms[answered]
    number = int(answered.sum())
    by_model = np.bincount(seen.model[seen.in_time & counted], minlength=case.copies)
    return Row(
        policy=case.policy,
        slo_ms=case.facts["slo_ms"],
        goodput_rate=int((seen.in_time & counted).sum()) / seconds,
        least_model_rate=int(by_model.min()) / seconds,
        answered_rate=number / seconds,
        rejected_rate=int((seen.rejected & counted).sum()) / seconds,
        in_time_share=int((seen.in_time & counted).sum()) / number if number else None,
        p50_ms=percentile(latency, 50),
        p99_ms=percentile(latency, 99),
        max_ms=percentile(latency, 100),
        mean_batch=float(np.mean(seen.batch_size[answered])) if number else None,
        latencies_ms=[percentile(latency, percent) for percent in TAIL_PERCENTS],
    )


def compare(rows: Sequence[Row], options: Options) -> list[Line]:
    """Return goodput at each SLO, and the longest latency at the largest."""
    lines = [
        Line(
            name=f"goodput, SLO {slo_ms:g} ms",
            unit="r/s",
            ours={row.policy: row.goodput_rate for row in rows if row.slo_ms == slo_ms},
            paper=FIGURE5["goodput at 500 ms"] if slo_ms == FIGURE5_SLOS_MS[-1] else None,
            independent=None if options.live else INDEPENDENT_FIGURE5[slo_ms],
        )
        for slo_ms in FIGURE5_SLOS_MS
    ]
    lines += [
        Line(
            name=f"least of 15 models, SLO {slo_ms:g} ms",
            unit="r/s",
            ours={row.policy: row.least_model_rate for row in rows if row.slo_ms == slo_ms},
        )
        for slo_ms in FIGURE5_SLOS_MS[:4]
    ]
    largest = [row for row in rows if row.slo_ms == FIGURE5_SLOS_MS[-1]]
    lines.append(
        Line(
            name="longest latency, SLO 500 ms",
            unit="ms",
            ours={row.policy: row.max_ms for row in largest},
            paper=FIGURE5["longest latency at 500 ms"],
        )
    )
    return lines


def draw(path: Path, rows: Sequence[Row], options: Options) -> None:
    """Draw goodput against the SLO, and the tails of latency at three SLOs."""
    policies = tuple(dict.fromkeys(row.policy for row in rows))
    kind = "live" if options.live else "simulated"
    page = Page(f"Figure 5: 15 x ResNet-50 on one device, 16 requests in flight each ({kind})", 2, 2)
    _goodput(page.panel(0, 0), rows, policies)
    for place, slo_ms in zip(((0, 1), (1, 0), (1, 1)), DRAWN_SLOS_MS, strict=True):
        _tail(page.panel(*place), [row for row in rows if row.slo_ms == slo_ms], policies, slo_ms)
    page.save(path)


def _goodput(axes: Axes, rows: Sequence[Row], policies: tuple[str, ...]) -> None:
    for policy in policies:
        own = [row for row in rows if row.policy == policy]
        colour, dash, marker = look(policy, policies)
        axes.plot(
            [row.slo_ms for row in own], [row.goodput_rate for row in own],
            color=colour, linestyle=dash, marker=marker, label=policy,
        )  # fmt: skip
    axes.plot([500], [FIGURE5["goodput at 500 ms"].value], color=BLACK, marker="x", markersize=9,
              linestyle="none", label="the paper's Clockwork and INFaaS")  # fmt: skip
    axes.set_xscale("log")
    plain_log_ticks(axes.xaxis)
    axes.set_xticks(FIGURE5_SLOS_MS)
    axes.set_ylim(0, max([800.0, *(row.goodput_rate for row in rows)]) * 1.45)
    finish_axes(axes, "Goodput", "requests / s", "SLO, milliseconds")
    axes.legend(loc="upper left", ncols=2, fontsize=9)


def _tail(axes: Axes, rows: Sequence[Row], policies: tuple[str, ...], slo_ms: float) -> None:
    places = [-np.log10(max(1 - percent / 100, 1e-5)) for percent in TAIL_PERCENTS]
    for row in rows:
        colour, dash, _ = look(row.policy, policies)
        points = [(x, y) for x, y in zip(row.latencies_ms, places, strict=True) if x is not None]
        axes.plot(
            [x for x, _ in points], [y for _, y in points], color=colour, linestyle=dash, label=row.policy
        )
    axes.axvline(slo_ms, color=GREY, linewidth=1.2)
    axes.annotate("SLO", (slo_ms, 0.03), xycoords=("data", "axes fraction"), xytext=(4, 0),
                  textcoords="offset points", color=GREY)  # fmt: skip
    axes.set_yticks([0.3010, 1, 2, 3, 4], ["50", "90", "99", "99.9", "99.99"])
    axes.set_ylim(0, 5)
    axes.set_xscale("log")
    axes.set_xlim(slo_ms / 15, slo_ms * 6)
    plain_log_ticks(axes.xaxis)
    finish_axes(axes, f"Latency of answers, SLO {slo_ms:g} ms", "percentile", "milliseconds")
    if rows:
        axes.legend(loc="upper left", fontsize=9)


def notes(_options: Options) -> list[str]:
    """Return what stands in for what."""
    return [
        "clipper and fifo stand in for the paper's Clipper and INFaaS, which are not run here.",
        "The profile is resnet50_v2's (17.3 ms for a batch of 16: 925 r/s at most); the paper's 20 ms are"
        " those of resnet50_v1s (785 r/s at most).",
        "Latencies are of answers with outputs; a client whose request is rejected sends another at once.",
    ]


FIGURE = Experiment(
    name="figure5",
    title="Figure 5: goodput as the SLO tightens",
    cases=cases,
    measure=measure,
    compare=compare,
    draw=draw,
    notes=notes,
)

if __name__ == "__main__":
    main(FIGURE)
