"""Figure 2a: how long each of very many inferences of one model takes, with nothing beside them."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import numpy as np

from mainspring.compiler.choosing.durations import Ints, quantile

WARM_UP = 50
PERCENTS = (50.0, 90.0, 99.0, 99.9, 99.99, 99.999, 100.0)
TOLD_EVERY = 1000
"""Runs between two looks at the clock to tell how far it is."""


class Series(msgspec.Struct, frozen=True):
    """Durations of one kind, brief enough to be kept and whole enough to be drawn."""

    name: str
    runs: int
    percentiles_ms: dict[str, float]
    """By percentage; those that fewer than one run lies beyond are left out, but for the maximum."""
    tail: list[tuple[float, float]]
    """Share of the runs that took longer, falling, and the duration in ms: for a plot."""

    @property
    def spread(self) -> float | None:
        """By what share the 99.99th percentile is above the median; None if there are too few runs."""
        high = self.percentiles_ms.get("99.99")
        return None if high is None else high / self.percentiles_ms["50"] - 1


def repeat_in_isolation(
    run: Callable[[], int], runs: int, *, cpu_time: bool, told: Callable[[int], None] = lambda _: None
) -> dict[str, Ints]:
    """Return the durations in ns of ``runs`` runs: what ``run`` returned, as ``device``.

    With ``cpu_time`` also what this thread spent computing, as ``cpu``: where the processor is the device,
    the difference is time that the machine gave to others. ``told`` hears now and then how many are done.
    """
    for _ in range(WARM_UP):
        run()
    device, cpu = np.zeros(runs, np.int64), np.zeros(runs, np.int64)
    clock = time.thread_time_ns if cpu_time else _no_time
    for begin in range(0, runs, TOLD_EVERY):
        for index in range(begin, min(begin + TOLD_EVERY, runs)):
            before_ns = clock()
            device[index] = run()
            cpu[index] = clock() - before_ns
        told(min(begin + TOLD_EVERY, runs))
    return {"device": device, "cpu": cpu} if cpu_time else {"device": device}


def series_of(name: str, durations_ns: Ints, points: int = 200) -> Series:
    """Return durations as percentiles and as a tail of about so many points, dense where they are rare."""
    runs = len(durations_ns)
    ascending = np.sort(durations_ns)
    known = [percent for percent in PERCENTS if percent == 100 or runs * (100 - percent) >= 100 * (1 - 1e-9)]
    beyond = np.unique(np.geomspace(1, runs, points).astype(np.int64))[::-1]
    return Series(
        name=name,
        runs=runs,
        percentiles_ms={f"{percent:g}": quantile(ascending, percent) / 1e6 for percent in known},
        tail=[(float(count) / runs, float(ascending[runs - count]) / 1e6) for count in beyond],
    )


def _no_time() -> int:
    return 0
