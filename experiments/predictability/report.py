"""What figure 2 came out as, beside what the paper says of it."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.experiments.figures.comparison import Line
from mainspring.experiments.figures.paper import Fact
from mainspring.experiments.figures.report import Report
from mainspring.experiments.predictability.concurrent import Level
from mainspring.experiments.predictability.isolated import Series

SPREAD = Fact(0.03, "%", "section 2")
"""Of the 99.99th percentile above the median, for ResNet50v2 on a V100 and 11 million inferences."""
GAIN = Fact(1.25, "x", "figure 2", approximate=True)
""""up to 25 %"."""
TAIL = Fact(100, "x", "section 3", approximate=True)
""""tail latency to increase by 100x"."""
TAIL_PERCENT = "99.9"
"""Of the levels; the paper does not say which it means."""


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
