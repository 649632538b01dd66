"""Work that takes long, cut into slices: its driver serves others between two of them. Pure.

A generator that yields between slices and returns what came of them. One that has little to do never yields,
so that small answers cost no more than without.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")
Steps = Generator[None, None, T]

SLICE_VALUES = 4_096
"""Values that are written as JSON in one slice: less than half a millisecond."""
SLICE_BYTES = 1 << 18
"""Bytes of BYTES elements that are read in one slice."""


def whole(steps: Steps[T]) -> T:
    """Do all slices, one after the other."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            result: T = ended.value
            return result


def mapped(found: Iterable[list[S]], work: Callable[[list[S]], T]) -> Steps[list[T]]:
    """Return what becomes of each list, with a pause before they have more than `SLICE_VALUES` together."""
    results: list[T] = []
    done = 0
    for some in found:
        if done and done + len(some) > SLICE_VALUES:
            yield
            done = 0
        done += len(some)
        results.append(work(some))
    return results
