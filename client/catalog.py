"""The models that are served, and the SLOs and deadlines of requests.

Deadlines that calls share (``with client.deadline("300ms")``) are kept in a context variable: a task of
asyncio that begins within the block has them, too, as has what `asyncio.to_thread` runs. A new thread, or one
of a pool, is in none of them: there, a deadline is passed as ``deadline=``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import timedelta
from difflib import get_close_matches
from time import monotonic_ns
from types import MappingProxyType, TracebackType
from typing import Any, Self, overload

from mainspring.client.durations import BadDuration, parse_duration_ns
from mainspring.client.errors import DeadlinePassed, InvalidSlo, OfOneProcess, UnknownModel, kind_of
from mainspring.messages.codes import Reason
from mainspring.messages.model import ModelSpec

_LONGEST_SLO_MS = 1e12
_FRESH_NS = 30_000_000_000
_NO_TYPES: Mapping[str, str] = MappingProxyType({})


class Models(tuple[ModelSpec, ...]):
    """Models in the order of their names; ``models["name"]`` is one of them."""

    __slots__ = ()

    @overload  # type: ignore[override]
    def __getitem__(self, key: str | int) -> ModelSpec: ...

    @overload
    def __getitem__(self, key: slice) -> tuple[ModelSpec, ...]: ...

    def __getitem__(self, key: str | int | slice) -> ModelSpec | tuple[ModelSpec, ...]:
        """Return a model by its name or place; raise `UnknownModel`, which is a KeyError too."""
        if not isinstance(key, str):
            return super().__getitem__(key)
        found = [spec for spec in self if spec.name == key]
        if not found:
            raise _NoSuchModel(_not_served(key, self.names), Reason.UNKNOWN_MODEL)
        return max(found, key=lambda spec: spec.version)

    @property
    def names(self) -> list[str]:
        """Their names."""
        return [spec.name for spec in self]

    def __repr__(self) -> str:
        return f"Models({', '.join(self.names)})"


class _NoSuchModel(UnknownModel, KeyError):
    """An `UnknownModel` for code that looks a name up as in a dict."""

    __str__ = Exception.__str__


def _not_served(name: str, names: list[str]) -> str:
    near = " or ".join([repr(each) for each in get_close_matches(name, names, n=3)])
    return f"model {name!r} is not served" + (f"; did you mean {near}?" if near else "")


class InputTypes:
    """The types of models' inputs, as the gateway last listed them to this client."""

    def __init__(self) -> None:
        self._types: dict[str, dict[str, str]] = {}
        self._at_ns: int | None = None

    def known(self, model: str) -> Mapping[str, str] | None:
        """Return the dtypes of a model's inputs by name; None if the models must be requested first."""
        if self._at_ns is None or monotonic_ns() - self._at_ns > _FRESH_NS:
            return None
        return self._types.get(model)

    def learn(self, models: Models) -> None:
        """Take in the models that are served now."""
        self._types = {spec.name: {each.name: each.dtype for each in spec.inputs} for spec in models}
        self._at_ns = monotonic_ns()

    def of(self, model: str) -> Mapping[str, str]:
        """Return the dtypes as they are known; none for a model that is not."""
        return self._types.get(model, _NO_TYPES)


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

    Raises TypeError, which names the argument, for anything else; `InvalidSlo` for what is no duration.
    """
    if isinstance(given, timedelta):
        return _in_nanoseconds(given / timedelta(milliseconds=1))
    if not isinstance(given, str):
        raise TypeError(
            f"{name} is {kind_of(given)}; pass text with a unit such as '100ms', or slo_ms={given!r}"
        )
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
