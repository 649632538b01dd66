"""Whether numbers of a spec are in their ranges; errors name the key and what would be right."""

from __future__ import annotations

import math


def check_range(
    name: str, value: float, *, above: float | None = None, least: float | None = None, most: float = math.inf
) -> None:
    """Raise `ValueError` unless a number is finite and in its range."""
    # A compiled caller has made a float of a whole number.
    said = str(value).removesuffix(".0")
    if not math.isfinite(value):
        raise ValueError(f"{name} is {said}; it must be a number that is finite")
    if (above is not None and value <= above) or (least is not None and value < least) or value > most:
        low = f"greater than {above:g}" if above is not None else f"at least {least:g}"
        high = "" if most == math.inf else f" and at most {most:g}"
        raise ValueError(f"{name} is {said}; it must be {low}{high}")


def check_durations(name: str, by_size: dict[str, float]) -> None:
    """Raise `ValueError` unless these are positive durations by batch size."""
    for size, value in by_size.items():
        if not (size.isdecimal() and int(size) >= 1):
            raise ValueError(f"{name} has {size!r} for a batch size; it must be a whole number from 1")
        check_range(f"{name}.{size}", value, above=0)
