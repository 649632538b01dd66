"""Durations as people write them: ``50ms``, ``0.05s``, ``none``."""

from __future__ import annotations

import re

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
