"""From counts for each model in a slot of time to arrivals within the slot.

The Azure files count invocations a minute; the synthetic mix counts them a quarter of a second. Within a
slot an arrival is uniform, so that a slot whose counts are Poisson is a Poisson process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from mainspring.traces.arrival import Arrival

MAX_SLOT_ARRIVALS = 65_536
"""More arrivals than this are drawn in parts, which bounds memory at any rate."""


def spread(
    counts: npt.NDArray[np.int64],
    models: Sequence[str],
    start_ns: int,
    slot_ns: int,
    rng: np.random.Generator,
) -> Iterator[Arrival]:
    """Yield ``counts[i]`` arrivals of ``models[i]``, uniform in ``[start_ns, start_ns + slot_ns)``, in order.

    ``counts`` is of shape (models,). A slot with very many arrivals is divided into equal parts first, the
    counts by a multinomial draw, which leaves their distribution as it was.
    """
    parts = min(slot_ns, -(-int(counts.sum()) // MAX_SLOT_ARRIVALS))
    if parts <= 1:
        yield from _draw(counts, models, start_ns, slot_ns, rng)
        return
    left = counts
    for part in range(parts):
        share = left if part == parts - 1 else rng.binomial(left, 1.0 / (parts - part))
        left = left - share
        begin_ns, end_ns = slot_ns * part // parts, slot_ns * (part + 1) // parts
        yield from _draw(share, models, start_ns + begin_ns, end_ns - begin_ns, rng)


def _draw(
    counts: npt.NDArray[np.int64],
    models: Sequence[str],
    start_ns: int,
    slot_ns: int,
    rng: np.random.Generator,
) -> Iterator[Arrival]:
    chosen = np.repeat(np.arange(len(counts)), counts)
    times = start_ns + rng.integers(0, slot_ns, len(chosen))
    order = np.argsort(times, kind="stable")
    for time_ns, model in zip(times[order].tolist(), chosen[order].tolist(), strict=True):
        yield Arrival(time_ns, models[model])
