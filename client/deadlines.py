"""Deadlines that calls share: ``with client.deadline("300ms")``.

The `with` blocks that a caller is in are kept in a context variable: a task of asyncio that begins within a
block has them, too, as has what `asyncio.to_thread` runs. A new thread, or one of a pool, is in none of them:
there, and wherever a call is to keep a certain deadline, it is handed over as ``deadline=``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from datetime import timedelta
from time import monotonic_ns
from types import TracebackType
from typing import Any, Self

from mainspring.client.catalog import duration_nanoseconds
from mainspring.client.errors import DeadlinePassed, InvalidSlo, OfOneProcess
from mainspring.messages.codes import Reason

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

        Raises TypeError for anything else, `InvalidSlo` for what is no duration, or none from 1 ns on.
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
    is no deadline, `InvalidSlo` for what is no duration.
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
