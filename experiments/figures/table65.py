"""The table of section 6.5: the Azure workload at 6,174 requests/s on 20 devices, SLO 100 and 25 ms.

``python -m mainspring.experiments.figures.table65``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from matplotlib.axes import Axes

from mainspring.experiments.figures.azure import azure, trace_note
from mainspring.experiments.figures.canvas import Page, look
from mainspring.experiments.figures.case import Case, Observed, percentile
from mainspring.experiments.figures.experiment import Experiment, main
from mainspring.experiments.figures.options import Options
from mainspring.experiments.figures.paper import (
    AZURE_COPIES,
    DEVICE_PAGES,
    SCALE_DEVICES,
    SCALE_LENGTH_S,
    SCALE_RATE,
    SCALE_SLOS_MS,
    TABLE65,
)
from mainspring.experiments.figures.profiles import model_names, varieties_table
from mainspring.experiments.figures.report import Line
from mainspring.telemetry.style import BLACK, RED, finish_axes

SHORT_S, LIVE_S = 24.0, 20.0
WARM_UP_SHARE = 0.2
TAIL_PERCENTS = (1, 10, 25, 50, 75, 90, 95, 98, 99, 99.5, 99.9, 99.95, 99.99, 100)


class Row(msgspec.Struct, frozen=True):
    """One policy at one SLO."""

    policy: str
    slo_ms: float
    requests: int
    offered_rate: float
    goodput_rate: float
    in_time_share: float
    rejected: int
    late: int
    max_ms: float | None
    latencies_ms: list[float | None]

    def latency_ms(self, percent: float) -> float | None:
        """Return the latency at one of `TAIL_PERCENTS`."""
        return self.latencies_ms[TAIL_PERCENTS.index(percent)]


def cases(options: Options) -> list[Case]:
    """Return one case for each SLO and policy."""
    table = varieties_table(options.profiles, options.io_kb)
    copies = options.count(AZURE_COPIES)
    names = model_names(table, copies)
    played_s = options.seconds(LIVE_S if options.live else SHORT_S, SCALE_LENGTH_S)
    found = []
    for slo_ms in SCALE_SLOS_MS:
        workload = azure(
            options, names, rate=options.share(SCALE_RATE), played_s=played_s, trace_s=SCALE_LENGTH_S,
            slo_ms=slo_ms,
        )  # fmt: skip
        found += [
            Case(
                label=f"SLO {slo_ms:g} ms",
                policy=policy,
                table=table,
                copies=copies,
                devices=options.count(SCALE_DEVICES),
                pages=DEVICE_PAGES,
                workload=workload,
                length_s=played_s,
                warm_up_s=played_s * WARM_UP_SHARE,
                seed=options.seed,
                facts={"slo_ms": slo_ms},
            )
            for policy in options.chosen()
        ]
    return found


def measure(case: Case, observed: Observed) -> Row:
    """Count what was sent after the warm-up."""
    seen = observed.outcomes
    counted = seen.between(case.warm_up_s, case.length_s)
    seconds, number = case.length_s - case.warm_up_s, int(counted.sum())
    in_time = int((seen.in_time & counted).sum())
    latency = seen.latency_ms[seen.answered & counted]
    return Row(
        policy=case.policy,
        slo_ms=case.facts["slo_ms"],
        requests=number,
        offered_rate=number / seconds,
        goodput_rate=in_time / seconds,
        in_time_share=in_time / max(number, 1),
        rejected=int((seen.rejected & counted).sum()),
        late=int((seen.late & counted).sum()),
        max_ms=percentile(latency, 100),
        latencies_ms=[percentile(latency, percent) for percent in TAIL_PERCENTS],
    )


def compare(rows: Sequence[Row], _options: Options) -> list[Line]:
    """Return the table's cells, one line each."""
    lines = []
    for slo_ms in SCALE_SLOS_MS:
        own = [row for row in rows if row.slo_ms == slo_ms]
        values: dict[str, dict[str, float | None]] = {
            "goodput": {row.policy: row.goodput_rate for row in own},
            "in time": {row.policy: 100 * row.in_time_share for row in own},
            "late": {row.policy: row.late for row in own},
            "p50": {row.policy: row.latency_ms(50) for row in own},
            "p99.99": {row.policy: row.latency_ms(99.99) for row in own},
        }
        lines.append(
            Line(
                name=f"SLO {slo_ms:g} ms: offered",
                unit="r/s",
                ours={row.policy: row.offered_rate for row in own},
            )
        )
        for name, ours in values.items():
            fact = TABLE65[slo_ms][name]
            lines.append(Line(name=f"SLO {slo_ms:g} ms: {name}", unit=fact.unit, ours=ours, paper=fact))
    return lines


def draw(path: Path, rows: Sequence[Row], options: Options) -> None:
    """Draw the distribution of latency at both SLOs, with the paper's two percentiles."""
    policies = tuple(dict.fromkeys(row.policy for row in rows))
    kind = "live, a sixth of it" if options.live else "simulated"
    page = Page(f"Section 6.5: the Azure workload on 20 devices ({kind})", 1, len(SCALE_SLOS_MS))
    for column, slo_ms in enumerate(SCALE_SLOS_MS):
        _tail(page.panel(0, column), [row for row in rows if row.slo_ms == slo_ms], policies, slo_ms)
    page.save(path)


def _tail(axes: Axes, rows: Sequence[Row], policies: tuple[str, ...], slo_ms: float) -> None:
    places = [-np.log10(max(1 - percent / 100, 1e-5)) for percent in TAIL_PERCENTS]
    for row in rows:
        colour, dash, _ = look(row.policy, policies)
        points = [(x, y) for x, y in zip(row.latencies_ms, places, strict=True) if x is not None]
        label = f"{row.policy} ({row.in_time_share:.2%} in time)"
        axes.plot([x for x, _ in points], [y for _, y in points], color=colour, linestyle=dash, label=label)
    paper = TABLE65[slo_ms]
    axes.plot(
        [paper["p50"].value, paper["p99.99"].value], [0.3010, 4], color=BLACK, marker="x", linestyle="none",
        markersize=9, label=f"the paper ({paper['in time'].value:g}% in time)",
    )  # fmt: skip
    axes.axvline(slo_ms, color=RED, linewidth=1.2)
    axes.set_yticks([0.3010, 1, 2, 3, 4], ["50", "90", "99", "99.9", "99.99"])
    axes.set_ylim(0, 7)
    axes.set_xlim(0, slo_ms * 1.05)
    finish_axes(axes, f"Latency of answers, SLO {slo_ms:g} ms", "percentile", "milliseconds")
    axes.legend(loc="upper left", fontsize=9)


def notes(options: Options) -> list[str]:
    """Return what the workload is and what is scaled."""
    told = [trace_note(options), "Late: answered with outputs, but after the deadline; others were rejected."]
    if not options.full:
        told.append("Short: one hour of the trace passes in the time that is played, at the paper's rate.")
    if options.live:
        told.append("Live: a sixth of the devices, of the models and of the load.")
    return told


FIGURE = Experiment(
    name="table65",
    title="Section 6.5: tighter SLOs at larger scale",
    cases=cases,
    measure=measure,
    compare=compare,
    draw=draw,
    notes=notes,
)

if __name__ == "__main__":
    main(FIGURE)
