"""Figure 7, left: how tight an SLO can be (section 6.3).

Six devices, 12 or 48 copies of ResNet-50, 600, 1,200 or 2,400 requests/s of Poisson arrivals in all, and an
SLO that rises from one execution (2.9 ms) by half every 30 s. ``python -m
mainspring.experiments.figures.figure7_left``.
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
    FIGURE7_DEVICES,
    FIGURE7_LEFT,
    FIGURE7_MODELS,
    FIGURE7_RATES,
    FIGURE7_STAGES,
)
from mainspring.experiments.figures.profiles import model_names, resnet50_table
from mainspring.experiments.figures.report import Line
from mainspring.experiments.figures.workloads import (
    MULTIPLIERS,
    SATISFIED,
    nearest_stage,
    rising,
    satisfaction,
    satisfied_from,
    stage_seconds,
)
from mainspring.telemetry.style import BLACK, finish_axes, plain_log_ticks

SHORT_STAGE_S = 2.0
LOOSE = 0.99
"""A share in time that a reader of the paper's plot could not tell from all."""


class Row(msgspec.Struct, frozen=True):
    """One policy with one workload."""

    policy: str
    models: int
    paper_rate: float
    """The paper's, of which a live run has a part."""
    multipliers: list[float]
    shares: list[float | None]


def cases(options: Options) -> list[Case]:
    """Return one case for each policy, number of models and rate."""
    table = resnet50_table(options.profiles, options.io_kb)
    stage_s = stage_seconds(options, SHORT_STAGE_S)
    return [
        Case(
            label=f"{models} models, {rate:g} requests/s",
            policy=policy,
            table=table,
            copies=options.count(models),
            devices=options.count(FIGURE7_DEVICES),
            pages=DEVICE_PAGES,
            workload=rising(_even(model_names(table, options.count(models)), options.share(rate)), stage_s),
            length_s=stage_s * FIGURE7_STAGES,
            seed=options.seed,
            facts={"models": models, "rate": rate, "stage_s": stage_s},
        )
        for policy in options.chosen()
        for models in FIGURE7_MODELS
        for rate in FIGURE7_RATES
    ]


def _even(names: list[str], rate: float) -> dict[str, float]:
    return dict.fromkeys(names, rate / len(names))


def measure(case: Case, observed: Observed) -> Row:
    """Count each stage."""
    return Row(
        policy=case.policy,
        models=int(case.facts["models"]),
        paper_rate=case.facts["rate"],
        multipliers=list(MULTIPLIERS),
        shares=satisfaction(observed.outcomes, case.facts["stage_s"]),
    )


def compare(rows: Sequence[Row], _options: Options) -> list[Line]:
    """Return, for each workload, from which SLO on it is satisfied, and the share at the paper's."""
    lines = []
    for models in FIGURE7_MODELS:
        for rate in FIGURE7_RATES:
            own = [row for row in rows if (row.models, row.paper_rate) == (models, rate)]
            name, paper = f"{models} models, {rate:g} r/s", FIGURE7_LEFT[rate]
            stage = nearest_stage(paper.value)
            at_paper = {row.policy: _percent(row.shares[stage]) for row in own}
            lines += [
                Line(name=f"{name}: 99% in time from", unit="x", ours=_from(own, LOOSE), paper=paper),
                Line(name=f"{name}: 99.9% in time from", unit="x", ours=_from(own, SATISFIED)),
                Line(name=f"{name}: in time at {paper.value:g} x", unit="%", ours=at_paper),
            ]
    return lines


def _from(rows: Sequence[Row], least: float) -> dict[str, float | None]:
    return {row.policy: satisfied_from(row.shares, least) for row in rows}


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def draw(path: Path, rows: Sequence[Row], options: Options) -> None:
    """Draw satisfaction against the SLO: a panel for each rate and number of models."""
    policies = tuple(dict.fromkeys(row.policy for row in rows))
    kind = "live, a sixth of the load" if options.live else "simulated"
    page = Page(f"Figure 7, left: the share in time as the SLO rises ({kind})", len(FIGURE7_RATES), 2)
    for column, models in enumerate(FIGURE7_MODELS):
        for number, rate in enumerate(FIGURE7_RATES):
            own = [row for row in rows if (row.models, row.paper_rate) == (models, rate)]
            _panel(page.panel(number, column), own, policies, f"{models} models, {rate:,g} requests/s", rate)
    page.save(path)


def _panel(axes: Axes, rows: Sequence[Row], policies: tuple[str, ...], title: str, rate: float) -> None:
    for row in rows:
        colour, dash, marker = look(row.policy, policies)
        xs, ys = known([FIGURE7_BASE_MS * value for value in row.multipliers], row.shares)
        axes.plot(xs, [100 * y for y in ys], color=colour, linestyle=dash, marker=marker, label=row.policy)
    paper_ms = FIGURE7_LEFT[rate].value * FIGURE7_BASE_MS
    axes.axvline(paper_ms, color=BLACK, linewidth=1.2, linestyle=":", label="the paper: satisfied from here")
    axes.set_xscale("log")
    plain_log_ticks(axes.xaxis)
    axes.set_ylim(0, 107)
    finish_axes(axes, title, "% in time", "SLO, milliseconds")
    axes.legend(loc="lower right", fontsize=9)


def notes(options: Options) -> list[str]:
    """Return what is scaled."""
    told = ["x: multiples of 2.9 ms. The paper says from which SLO on a workload was satisfied, not how far."]
    if options.live:
        told.append("Live: one device instead of six, a sixth of the models and of the rates.")
    return told


FIGURE = Experiment(
    name="figure7_left",
    title="Figure 7, left: how low an SLO can be",
    cases=cases,
    measure=measure,
    compare=compare,
    draw=draw,
    notes=notes,
)

if __name__ == "__main__":
    main(FIGURE)
