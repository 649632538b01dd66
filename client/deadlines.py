"""Durations as people write them, and the SLOs and deadlines of requests.

Deadlines that calls share (``with client.deadline("300ms")``) are kept in a context variable: a task of
asyncio that begins within the block has them, too, as has what `asyncio.to_thread` runs. A new thread, or one
of a pool, is in none of them: there, a deadline is passed as ``deadline=``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextvars import ContextVar
from datetime import timedelta
from time import monotonic_ns
from types import TracebackType
from typing import Any, Self

from mainspring.client.errors import DeadlinePassed, InvalidSlo, OfOneProcess, kind_of
from mainspring.messages.codes import Reason

_LONGEST_SLO_MS = 1e12
_UNIT_NS = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "min": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_DURATION = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)\s*([a-z]+)", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?")
_NO_DURATION = ("none", "never", "")


class BadDuration(ValueError):
    """Text that is not a duration; the message says how to write one."""


def parse_duration_ns(text: str, unit: str = "") -> int | None:
    """Return the nanoseconds that ``text`` means, or None for ``none``; raise `BadDuration`.

    ``unit`` is that of a number alone, such as ``s``; without, such a number other than 0 is refused.
    """
    plain = text.strip().lower()
    if unit and _NUMBER.fullmatch(plain):
        plain += unit
    if plain in _NO_DURATION:
        return None
    found = _DURATION.fullmatch(plain)
    if _NUMBER.fullmatch(plain):
        if not float(plain):
            return 0
        raise BadDuration(
            f"{text!r} is not a duration: write a number and a unit, like 50ms or 0.05s; did you mean "
            f"{plain}s or {plain}ms?"
        )
    if found is None or found[2] not in _UNIT_NS:
        raise BadDuration(
            f"{text!r} is not a duration; write a number and a unit ({', '.join(_UNIT_NS)}) like 50ms or "
            "0.05s, or none"
        )
    value = float(found[1]) * _UNIT_NS[found[2]]
    if not abs(value) < 2**62:
        raise BadDuration(f"{text!r} is too long a duration; write one below a hundred years")
    return round(value)


def format_duration(duration_ns: int | None) -> str:
    """Return a duration for a person, such as ``12.3 ms``; ``none`` for None."""
    if duration_ns is None:
        return "none"
    for unit in ("s", "ms", "us"):
        if abs(duration_ns) >= _UNIT_NS[unit]:
            return f"{duration_ns / _UNIT_NS[unit]:.4g} {unit}"
    return f"{duration_ns} ns"


def slo_nanoseconds(slo_ms: float | None, slo: Any = None) -> int | None:
    """Return an SLO in nanoseconds, None for best effort.

    ``slo_ms`` are milliseconds, ``slo`` is text such as ``100ms`` or a `datetime.timedelta`; at most one of
    the two. Raises TypeError for a value of the wrong type, `InvalidSlo` for one that is not a duration.
    """
    if slo is not None:
        if slo_ms is not None:
            raise TypeError(f"both slo_ms={slo_ms!r} and slo={slo!r} were given; pass one of them")
        return duration_nanoseconds(slo, "slo")
    if slo_ms is None:
        return None
    if isinstance(slo_ms, str | bytes):
        raise TypeError(f"slo_ms is {kind_of(slo_ms)}; pass milliseconds as a number, or slo={slo_ms!r}")
    try:
        value = float(slo_ms)
    except OverflowError:
        value = math.inf
    except (TypeError, ValueError):
        raise TypeError(f"slo_ms is {kind_of(slo_ms)}; pass milliseconds as a number") from None
    return _in_nanoseconds(value)


def duration_nanoseconds(given: object, name: str) -> int | None:
    """Return what text such as ``100ms`` or a `datetime.timedelta` means, None for ``none``.

    Raises TypeError, which names the argument, for anything else; `InvalidSlo` for what is not a duration.
    """
    if isinstance(given, timedelta):
        return _in_nanoseconds(given / timedelta(milliseconds=1))
    if not isinstance(given, str):
        number = f", or slo_ms={given!r}" if name == "slo" else ""
        raise TypeError(f"{name} is {kind_of(given)}; pass text with a unit such as '100ms'{number}")
    try:
        return parse_duration_ns(given)
    except BadDuration as error:
        raise InvalidSlo(str(error), Reason.BAD_SLO) from None


def _in_nanoseconds(slo_ms: float) -> int:
    if not abs(slo_ms) <= _LONGEST_SLO_MS:
        raise InvalidSlo(
            f"an SLO of {str(slo_ms)[:40]} ms makes no sense; pass milliseconds, or None for best effort",
            Reason.BAD_SLO,
        )
    return round(slo_ms * 1e6)


_BLOCKS: ContextVar[tuple[Deadline, ...]] = ContextVar("deadlines", default=())


class Deadline(OfOneProcess):
    """An instant by which several requests are to have their answers, as `Client.deadline` makes it.

    Requests within its `with` block (``async with`` is the same), by whatever client, and those that are
    given it as ``deadline=``, have what is left of its time, or their own SLO where that ends earlier. Of
    blocks within one another the earliest deadline holds. It ends neither a block nor what a caller computes.
    """

    _instead = "pass what is left of it (left_ms) as slo_ms"

    def __init__(self, client: Any, within: str | timedelta) -> None:
        """Let it be ``within`` from now: text such as ``300ms``, or a `datetime.timedelta`.

        Raises TypeError for anything else, `InvalidSlo` for what is not a duration, or none from 1 ns on.
        """
        left_ns = duration_nanoseconds(within, "deadline")
        if left_ns is None or left_ns <= 0:
            raise InvalidSlo(
                f"a deadline is some time from now, such as '300ms', not {within!r}", Reason.BAD_SLO
            )
        self.client = client
        """Client whose `infer` and `submit` it has."""
        self.at_ns = monotonic_ns() + left_ns
        """Instant of the deadline, on `time.monotonic_ns`."""

    @property
    def left_ms(self) -> float:
        """Milliseconds that are left; negative once it has passed."""
        return (self.at_ns - monotonic_ns()) / 1e6

    @property
    def passed(self) -> bool:
        """Return whether it has passed."""
        return monotonic_ns() >= self.at_ns

    @property
    def infer(self) -> Any:
        """Call `infer` of its client with this deadline, in any thread."""
        return _with(self, self.client.infer)

    @property
    def submit(self) -> Any:
        """Call `submit` of its client with this deadline, in any thread."""
        return _with(self, self.client.submit)

    def __enter__(self) -> Self:
        _BLOCKS.set((*_BLOCKS.get(), self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        blocks = _BLOCKS.get()
        if self in blocks:
            last = len(blocks) - 1 - blocks[::-1].index(self)
            _BLOCKS.set((*blocks[:last], *blocks[last + 1 :]))

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.left_ms:.1f} ms left)"


def _with(deadline: Deadline, call: Callable[..., Any]) -> Callable[..., Any]:
    def within(*arguments: Any, **named: Any) -> Any:
        return call(*arguments, **{"deadline": deadline, **named})

    return within


AnyDeadline = Deadline | str | timedelta | None
"""The types of ``deadline=``: a deadline that calls share, or a time from the call."""


def deadline_of(called_ns: int, own: AnyDeadline = None) -> int | None:
    """Return the earliest deadline of a call at ``called_ns`` (`time.monotonic_ns`), None if it has none.

    ``own`` is the call's; beside it hold those of the blocks that the caller is in. Raises TypeError for what
    is not a deadline, `InvalidSlo` for what is not a duration.
    """
    found = [each.at_ns for each in _BLOCKS.get()]
    if isinstance(own, Deadline):
        found.append(own.at_ns)
    elif own is not None and (left_ns := duration_nanoseconds(own, "deadline")) is not None:
        found.append(called_ns + left_ns)
    return min(found, default=None)


def within(called_ns: int, slo_ns: int | None, deadline_ns: int | None) -> int | None:
    """Return the SLO of a call at ``called_ns``, which has ``slo_ns`` of its own and is to end by a deadline.

    Raises `DeadlinePassed` if the deadline was over already.
    """
    if deadline_ns is None:
        return slo_ns
    left_ns = deadline_ns - called_ns
    if left_ns <= 0:
        raise DeadlinePassed(
            f"called {-left_ns / 1e6:.1f} ms after the deadline that it was to keep, and not sent",
            Reason.DEADLINE_PASSED,
        )
    return left_ns if slo_ns is None else min(slo_ns, left_ns)
