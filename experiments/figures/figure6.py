"""Figure 6: one device serves more and more models, up to 3,601 (section 6.2).

A minor workload of one model at 200 requests/s, and a major one of 1,000 requests/s that is spread over one
more model each second. Time here is the paper's minutes: in the short form they pass faster, which changes
nothing that takes less than the seconds between two models. ``python -m
mainspring.experiments.figures.figure6``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from matplotlib.axes import Axes

from mainspring.experiments.figures.canvas import Page, known, look
from mainspring.experiments.figures.case import Case, Floats, Observed
from mainspring.experiments.figures.experiment import Experiment, main
from mainspring.experiments.figures.options import Options
from mainspring.experiments.figures.paper import (
    FIGURE6,
    FIGURE6_LEAD_S,
    FIGURE6_MAJOR_RATE,
    FIGURE6_MINOR_RATE,
    FIGURE6_MODELS,
    FIGURE6_PAGES,
    FIGURE6_SLO_MS,
    FIGURE6_STEP_S,
    MILLISECOND_NS,
)
from mainspring.experiments.figures.profiles import model_names, read_models, resnet50_table
from mainspring.experiments.figures.report import Line
from mainspring.experiments.figures.workloads import Delayed, Growing, Together
from mainspring.telemetry.style import GREY, RED, finish_axes, plain_log_ticks
from mainspring.telemetry.summary import Analysis
from mainspring.traces.generators import Poisson

X_LABEL = "minutes of the paper since the major workload began"


def draw(path: Path, rows: Sequence[Row], options: Options) -> None:
    """Draw the paper's panels (a) to (e), the policies beside each other."""
    policies = tuple(row.policy for row in rows)
    kind = "live" if options.live else "simulated"
    page = Page(f"Figure 6: one device, one more model each second ({kind})", 3, 2)
    _goodput(page.panel(0, 0), rows, policies)
    _latency(page.panel(0, 1), rows, policies)
    _percent(
        page.panel(1, 0), rows, policies, "unready_share", "Cold or unserved, major workload", "% of requests"
    )
    _percent(page.panel(1, 1), rows, policies, "pages_used", "Pages that hold weights", "%")
    _percent(page.panel(2, 0), rows, policies, "load_busy", "LOAD executor (PCIe)", "% busy")
    _percent(page.panel(2, 1), rows, policies, "exec_busy", "EXEC executor (GPU)", "% busy")
    page.share_x(rows[0].minute[0], rows[0].minute[-1])
    page.save(path)


def _goodput(axes: Axes, rows: Sequence[Row], policies: tuple[str, ...]) -> None:
    for row in rows:
        colour, _, _ = look(row.policy, policies)
        axes.plot(row.minute, row.goodput, color=colour, label=f"{row.policy}, both")
        axes.plot(row.minute, row.minor_goodput, color=colour, linestyle=":", label=f"{row.policy}, minor")
    axes.set_ylim(0, max(max(row.goodput) for row in rows) * 1.45)
    finish_axes(axes, "Goodput", "requests / s", X_LABEL)
    axes.legend(loc="upper right", ncols=2, fontsize=9)


def _latency(axes: Axes, rows: Sequence[Row], policies: tuple[str, ...]) -> None:
    for row in rows:
        colour, _, _ = look(row.policy, policies)
        for values, dash, name in (
            (row.minor_mean_ms, ":", "minor, mean"),
            (row.major_mean_ms, "-", "major, mean"),
            (row.max_ms, "--", "longest"),
        ):
            axes.plot(*known(row.minute, values), color=colour, linestyle=dash, label=f"{row.policy}: {name}")
    axes.axhline(FIGURE6_SLO_MS, color=RED, linewidth=1.2)
    axes.annotate("SLO", (0.005, FIGURE6_SLO_MS), xycoords=("axes fraction", "data"), xytext=(0, 3),
                  textcoords="offset points", color=RED)  # fmt: skip
    axes.set_yscale("log")
    axes.set_ylim(1, 900)
    plain_log_ticks(axes.yaxis)
    finish_axes(axes, "Latency of answers", "milliseconds", X_LABEL)
    axes.legend(loc="upper right", ncols=2, fontsize=8)


def _percent(
    axes: Axes, rows: Sequence[Row], policies: tuple[str, ...], field: str, title: str, unit: str
) -> None:
    for row in rows:
        colour, dash, _ = look(row.policy, policies)
        xs, ys = known(row.minute, getattr(row, field))
        axes.plot(xs, [100 * y for y in ys], color=colour, linestyle=dash, label=row.policy)
    axes.axhline(100, color=GREY, linewidth=0.8)
    axes.set_ylim(0, 135)
    axes.set_yticks([0, 25, 50, 75, 100])
    finish_axes(axes, title, unit, X_LABEL)
    axes.legend(loc="upper right", ncols=2, fontsize=9)


RAMP_S = FIGURE6_MODELS * FIGURE6_STEP_S
SHORT_RAMP_S = 120.0
BINS_A_RAMP = 60
"""Points of the plot from the first model of the major workload to the last: one for each minute."""


class Row(msgspec.Struct, frozen=True):
    """One policy's run; columns of one entry for each bin."""

    policy: str
    minute: list[float]
    """Middle of each bin in the paper's minutes: 0 when the first model of the major workload comes."""
    active_models: list[float]
    goodput: list[float]
    """Requests a second of both workloads."""
    minor_goodput: list[float]
    minor_mean_ms: list[float | None]
    major_mean_ms: list[float | None]
    max_ms: list[float | None]
    cold_share: list[float | None]
    unready_share: list[float | None]
    exec_busy: list[float | None]
    load_busy: list[float | None]
    pages_used: list[float | None]
    models_that_fit: int
    minor_rate: float


def cases(options: Options) -> list[Case]:
    """Return one case for each policy."""
    table = resnet50_table(options.profiles, options.io_kb)
    models = options.count(FIGURE6_MODELS)
    names = model_names(table, models + 1)
    ramp_s = options.seconds(SHORT_RAMP_S, RAMP_S)
    lead_s, tail_s = ramp_s * FIGURE6_LEAD_S / RAMP_S / 2.5, ramp_s / 15
    major = Growing(tuple(names[1:]), options.half(FIGURE6_MAJOR_RATE), round(ramp_s / models * 1e9))
    end_ns = round((lead_s + ramp_s + tail_s) * 1e9)
    minor = Poisson({names[0]: options.half(FIGURE6_MINOR_RATE)})
    both = tuple(
        part.cut(0, end_ns).with_requests(slo_ns=round(FIGURE6_SLO_MS * MILLISECOND_NS))
        for part in (minor, Delayed(major, round(lead_s * 1e9)))
    )
    return [
        Case(
            label=f"{models + 1} models, {ramp_s:g} s from the first to the last",
            policy=policy,
            table=table,
            copies=models + 1,
            devices=1,
            pages=options.count(FIGURE6_PAGES),
            workload=Together(both),
            length_s=end_ns / 1e9,
            seed=options.seed,
            preloaded=False,
            log=True,
            facts={"lead_s": lead_s, "ramp_s": ramp_s, "models": models, "minor_rate": minor.rates[names[0]]},
        )
        for policy in options.chosen()
    ]


def measure(case: Case, observed: Observed) -> Row:
    """Count in bins of a paper's minute. The lead is shorter than the paper's 15 minutes, all alike."""
    seen, facts = observed.outcomes, case.facts
    width_s = facts["ramp_s"] / BINS_A_RAMP
    first_s = facts["lead_s"] - int(facts["lead_s"] / width_s) * width_s
    edges = np.arange(first_s, case.length_s + width_s / 2, width_s)
    middle = (edges[:-1] + edges[1:]) / 2
    # The minor workload alone is there at first.
    minor = seen.model == seen.model[0]
    major = ~minor
    minutes = (middle - facts["lead_s"]) / facts["ramp_s"] * (RAMP_S / 60)
    active = np.clip((middle - facts["lead_s"]) / facts["ramp_s"] * facts["models"], 0, facts["models"])
    assert observed.analysis is not None
    return Row(
        policy=case.policy,
        minute=minutes.tolist(),
        active_models=active.tolist(),
        goodput=seen.rate(seen.in_time, edges),
        minor_goodput=seen.rate(seen.in_time & minor, edges),
        minor_mean_ms=seen.means(seen.latency_ms, seen.answered & minor, edges),
        major_mean_ms=seen.means(seen.latency_ms, seen.answered & major, edges),
        max_ms=seen.percentiles(seen.answered, 100, edges),
        unready_share=seen.shares(~seen.answered | seen.cold, major, edges),
        cold_share=seen.shares(seen.cold, seen.answered & major, edges),
        exec_busy=_busy(observed, "exec_utilisation", edges),
        load_busy=_busy(observed, "load_utilisation", edges),
        pages_used=_busy(observed, "page_occupancy", edges),
        models_that_fit=case.pages // read_models(case.table, 1)[0].pages,
        minor_rate=facts["minor_rate"],
    )


def _busy(observed: Observed, name: str, edges: Floats) -> list[float | None]:
    analysis: Analysis | None = observed.analysis
    assert analysis is not None
    series = analysis.summary.log_series
    at_s = np.array(series.second) + (series.start_ns - observed.summary.start_ns) / 1e9 + 0.5
    values = np.array([np.nan if value is None else value for value in getattr(series, name)])
    good = ~np.isnan(values)
    if not good.any():
        return [None] * (len(edges) - 1)
    middle = (edges[:-1] + edges[1:]) / 2
    return np.interp(middle, at_s[good], values[good]).tolist()  # type: ignore[no-any-return]


def compare(rows: Sequence[Row], _options: Options) -> list[Line]:
    """Return the text's claims: before, at the beginning, and at the end."""
    found = {row.policy: _told(row) for row in rows}
    names = list(next(iter(found.values())))
    return [
        Line(
            name=name,
            unit=FIGURE6[name].unit if name in FIGURE6 else "%" if "answers" in name else "r/s",
            ours={policy: told[name] for policy, told in found.items()},
            paper=FIGURE6.get(name),
        )
        for name in names
    ]


def _told(row: Row) -> dict[str, float | None]:
    before = [place for place, minute in enumerate(row.minute) if minute < 0]
    end = [place for place, minute in enumerate(row.minute) if 55 <= minute < 60]
    full = [place for place, minute in enumerate(row.minute) if 25 <= minute < 60]
    first = [place for place, minute in enumerate(row.minute) if 0 <= minute < 3]
    percent = 100.0

    def mean(values: Sequence[float | None], places: list[int]) -> float | None:
        numbers = [value for place in places if (value := values[place]) is not None]
        return sum(numbers) / len(numbers) if numbers else None

    def share(values: Sequence[float | None], places: list[int]) -> float | None:
        found = mean(values, places)
        return None if found is None else found * percent

    longest = [value for value in row.max_ms if value is not None]
    return {
        "minor goodput before": mean(row.minor_goodput, before),
        "EXEC busy in the first 3 minutes": share(row.exec_busy, first),
        "models that fill memory": float(row.models_that_fit),
        "LOAD busy after that": share(row.load_busy, full),
        "cold starts at the end": share(row.unready_share, end),
        "cold starts of answers at the end": share(row.cold_share, end),
        "minor goodput at the end": mean(row.minor_goodput, end),
        "minor mean latency at the end": mean(row.minor_mean_ms, end),
        "goodput of both in the first 3 minutes": mean(row.goodput, first),
        "goodput of both at the end": mean(row.goodput, end),
        "longest latency": max(longest, default=None),
    }


def notes(options: Options) -> list[str]:
    """Return what is scaled."""
    told = [f"The device has {options.count(FIGURE6_PAGES)} pages, for as many models as the paper's."]
    if not options.full:
        told.append("Minutes of the paper pass faster: the models come in two minutes instead of sixty.")
    if options.live:
        told.append("Live: a sixth of the models and pages, half of the rates.")
    return told


FIGURE = Experiment(
    name="figure6",
    title="Figure 6: thousands of models on one device",
    cases=cases,
    measure=measure,
    compare=compare,
    draw=draw,
    notes=notes,
)

if __name__ == "__main__":
    main(FIGURE)
