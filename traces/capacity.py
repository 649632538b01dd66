"""The capacity of devices: the unit that a load is a multiple of.

A load of 1 is the *fluid* capacity: what the devices do if every batch has the size that is best for it and
is full, memory is no bound, and nothing waits. A batch that takes longer than the deadline allows is none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist, fmean

PARTS = 400
"""Number of parts that a distribution is cut into, for the mean of a batch's duration."""


def best_request_ns(infer_ns: Mapping[int, float], slo_ns: float | None, rows: int = 1) -> float:
    """Return the least time that a request of ``rows`` rows takes of a device, in nanoseconds.

    In the best of the batches that end within the SLO; if none does, in the smallest that holds it.
    ``infer_ns`` has durations by batch size. A request larger than all batches takes as long as the largest.
    """
    able = {size: duration_ns for size, duration_ns in infer_ns.items() if size >= rows}
    if not able:
        return float(infer_ns[max(infer_ns)])
    smallest = min(able)
    return min(
        duration_ns / (size // rows)
        for size, duration_ns in able.items()
        if size == smallest or slo_ns is None or duration_ns <= slo_ns
    )


def device_s(request_ns: Mapping[str, float], devices: Mapping[str, int]) -> float:
    """Return which part of all devices' time a request takes, in seconds.

    ``request_ns`` says what it takes of each kind of device (`best_request_ns`), ``devices`` how many there
    are of each.
    """
    return 1 / sum(1e9 * count / request_ns[kind] for kind, count in devices.items())


def slowest_of(requests: int, sigma: float) -> float:
    """Return the mean of the largest of several multiples whose logarithms are normal around 0."""
    normal = NormalDist(0.0, sigma)
    ranks = [((part + 0.5) / PARTS) ** (1 / requests) for part in range(PARTS)]
    return fmean(math.exp(normal.inv_cdf(rank)) for rank in ranks)
