"""Arrivals that change: between gamma processes (SoCC '20, section 6), and by the minutes of real traces."""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mainspring.planner.problem import Whole

SHARED = Path("../shared/traces")
DAY = "azure2019_d01_random400_invocations.csv.gz"
PEAK = 300.0
MINUTES = 60
FINE = 60
"""Fewest invocations of the busiest minute: fewer are too coarse."""
MINUTE_S = 30.0
"""A minute of the trace is played in so many seconds, as the authors do."""
TRACE_COLUMNS = 4
"""Columns before the counts."""


def gamma(rng: np.random.Generator, rate: float, cv: float, seconds: float) -> Whole:
    """Return arrivals with gaps of a squared coefficient of variation ``cv``, in nanoseconds."""
    gaps: list[np.ndarray] = []
    total = 0.0
    while total < seconds:
        more = rng.gamma(1 / cv, cv / rate, max(64, int(rate * seconds * 0.2)))
        gaps.append(more)
        total += float(more.sum())
    found = np.cumsum(np.concatenate(gaps))
    whole: Whole = np.rint(found[found < seconds] * 1e9).astype(np.int64)
    return whole


def evolving(
    seed: int, rates: tuple[float, float], cvs: tuple[float, float], *, hold_s: float, transition_s: float
) -> Whole:
    """Return arrivals of one process, then of ones in between for the transition, then of another."""
    rng, parts, at_s = np.random.default_rng(seed), list[Whole](), 0.0
    steps = max(1, round(transition_s))
    shares = [(0.0, hold_s), *[((step + 1) / steps, transition_s / steps) for step in range(steps)]]
    for share, seconds in [*shares, (1.0, hold_s)]:
        rate = rates[0] + share * (rates[1] - rates[0])
        cv = cvs[0] + share * (cvs[1] - cvs[0])
        parts.append(gamma(rng, rate, cv, seconds) + round(at_s * 1e9))
        at_s += seconds
    whole: Whole = np.concatenate(parts)
    return whole


def day(shared: Path = SHARED) -> np.ndarray:
    """Return the invocations of each function of a day by the minute, a row each."""
    with gzip.open(shared / DAY, "rt", newline="") as file:
        rows = list(csv.reader(file))[1:]
    return np.array([[int(each) for each in row[TRACE_COLUMNS:]] for row in rows], np.int64)


def big_spike(counts: np.ndarray) -> np.ndarray:
    """Return the hour of any function with the highest spike of at most five minutes, which lies in the part
    that is served, over a calm base of at least a sixth of it."""
    return _best(counts, _spike)


def sudden_fall(counts: np.ndarray) -> np.ndarray:
    """Return the hour that rises and then falls most within five minutes each, and stays low."""
    return _best(counts, _fall)


def _best(counts: np.ndarray, score: Callable[[np.ndarray], float]) -> np.ndarray:
    found: np.ndarray | None = None
    best = -math.inf
    for row in counts:
        if row.max() < FINE:
            continue
        for begin in range(0, len(row) - MINUTES + 1, 5):
            hour = row[begin : begin + MINUTES]
            if hour.max() >= FINE and (value := score(hour / hour.max())) > best:
                found, best = hour, value
    assert found is not None
    return found


def _spike(hour: np.ndarray) -> float:
    """Prefer what stays furthest below its spike for the rest of the hour."""
    top, first = int(hour.argmax()), MINUTES // 4
    others = np.concatenate([hour[: max(0, top - 2)], hour[top + 3 :]])
    middle = first + 10 <= top < MINUTES - 10
    return -float(others.max()) if middle and np.median(hour) >= 1 / 6 else -math.inf


def _fall(hour: np.ndarray) -> float:
    """Prefer what rises and falls most within five minutes each; what is calm on most of the way is no such
    hour, nor what rises before the sample ends."""
    sample, live = hour[: MINUTES // 4], hour[MINUTES // 4 :]
    if not 0.2 <= sample.mean() <= 0.6 or live.mean() < 0.35 or np.abs(np.diff(hour)).max() > 0.5:
        return -math.inf
    steps = live[5:] - live[:-5]
    top, bottom = int(steps.argmax()), int(steps.argmin())
    return float(steps[top] - steps[bottom] - live[bottom + 5 :].mean()) if top < bottom else -math.inf


def minutes(hour: np.ndarray, seed: int, peak: float = PEAK) -> tuple[Whole, Whole]:
    """Return the sample, the first quarter of an hour, and the rest, each from 0 on."""
    rng, parts = np.random.default_rng(seed), list[Whole]()
    for place, rate in enumerate((hour / hour.max() * peak).tolist()):
        if rate > 0:
            parts.append(gamma(rng, rate, 1.0, MINUTE_S) + round(place * MINUTE_S * 1e9))
    whole = np.concatenate(parts)
    cut_ns = round(MINUTES / 4 * MINUTE_S * 1e9)
    return whole[whole < cut_ns], whole[whole >= cut_ns] - cut_ns
