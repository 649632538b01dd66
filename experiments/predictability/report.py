"""What figure 2 came out as, beside what the paper says of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from mainspring.experiments.figures.canvas import Page
from mainspring.experiments.figures.paper import Fact
from mainspring.experiments.figures.report import Line, Report
from mainspring.experiments.predictability.concurrent import Level, Series
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
    """What ``figure2.json`` holds."""

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
