"""Variants of a kernel that are timed on a GPU: what the compiler sends to a worker's driver, and the answer.

The process with the GPU (`mainspring.worker.engines.cuda.timing`) reads a `Trial` and writes a `Timed` for
each, one on a line as JSON.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from mainspring.compiler.artifact.plan import Plans


class TimerFailed(Exception):
    """Variants could not be timed; the text says why."""


class Trial(msgspec.Struct, frozen=True):
    """Variants of one function, and the order in which to run them."""

    plans: Plans
    """A plan for each variant, numbered from 1 where a model's plans have the batch size. All operands are in
    the workspace."""
    image: bytes
    """The machine code of all variants."""
    order: tuple[int, ...] = ()
    """Numbers of the plans; each may come many times."""


class Timed(msgspec.Struct, frozen=True):
    """The answer to a trial: durations, or why there are none."""

    ns: tuple[int, ...] = ()
    """Duration of each run in nanoseconds, in the trial's order."""
    failed: str = ""


Timer = Callable[[Trial], tuple[int, ...]]
"""Runs a trial; returns the duration of each run in ns; raises `TimerFailed`."""
