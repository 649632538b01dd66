"""The models that are served, and the SLO of a request."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta
from difflib import get_close_matches
from time import monotonic_ns
from types import MappingProxyType
from typing import Any, overload

from mainspring.client.durations import BadDuration, parse_duration_ns
from mainspring.client.errors import InvalidSlo, UnknownModel, kind_of
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
    if not math.isfinite(slo_ms) or abs(slo_ms) > _LONGEST_SLO_MS:
        raise InvalidSlo(
            f"an SLO of {slo_ms} ms makes no sense; pass milliseconds, or None for best effort",
            Reason.BAD_SLO,
        )
    return round(slo_ms * 1e6)
