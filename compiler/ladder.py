"""The ceilings of a symbol's sizes, up to which a request belongs to a bucket."""

from __future__ import annotations

import math

from mainspring.compiler.forms import Range

_SMALLEST_CEILING = 16
"""Sizes up to this are one bucket: they hardly differ in time."""
_PARTS = (4, 2, 1)
"""Ceilings between a power of two and the next, the finest that the number of buckets allows."""


def ladder(sizes: Range, most: int) -> tuple[int, ...]:
    """Return at most ``most`` ceilings up to the limit: powers of two, and as many between as there is room.

    Each is a number of steps from the base.
    """
    for parts in _PARTS:
        found = _ceilings(sizes, parts)
        if len(found) <= most:
            return found
    return found[-most:]


def short_ladder(sizes: Range, most: int) -> tuple[int, ...]:
    """Return at most ``most`` ceilings up to the limit, for what is compiled for each of them.

    They are powers of two, or of four, and so on: what is padded to one is at least that part of it.
    """
    found = _ceilings(sizes, _PARTS[-1])
    return found[:: -math.ceil(len(found) / most)][::-1]


def _ceilings(sizes: Range, parts: int) -> tuple[int, ...]:
    found = set[int]()
    power = 1
    while power < sizes.limit:
        for part in range(parts):
            size = power + power * part // parts
            ceiling = sizes.base - (sizes.base - size) // sizes.step * sizes.step
            if max(sizes.least, _SMALLEST_CEILING) <= ceiling < sizes.limit:
                found.add(ceiling)
        power *= 2
    return (*sorted(found), sizes.limit)
