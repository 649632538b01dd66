"""What streams of the fake device are told to do."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import NamedTuple


class Kernel(NamedTuple):
    """What a kernel computes, given the values of its parameters, and how long that takes."""

    run: Callable[..., None]
    duration_ns: int = 10_000
    parameters: int = 1
    placed: bool = False
    """Whether its parameters are places; it gets addresses, by the table as it is when the kernel runs."""


def move(target: int, source: int | bytes, size: int) -> None:
    """Copy bytes now."""
    ctypes.memmove(target, source, size)


def clear(address: int, size: int) -> None:
    """Write zeros now."""
    ctypes.memset(address, 0, size)


class Work:
    """One thing that a stream was told."""

    def __init__(
        self,
        number: int,
        what: str,
        stream: int,
        engine: str | None = None,
        duration_ns: int = 0,
        run: Callable[[], None] = lambda: None,
        after: Work | None = None,
    ) -> None:
        self.number = number
        self.what = what
        self.stream = stream
        self.engine = engine
        self.duration_ns = duration_ns
        self.run = run
        self.after = after
        self.told_ns = 0
        self.begin_ns = -1
        self.end_ns = -1
        self.size = 0
