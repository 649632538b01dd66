"""Checks that numbers of a spec are in their ranges; errors name the key and what would be right."""

from __future__ import annotations

import math

OF_UNIT: dict[str, float] = {
    "_s": 366 * 24 * 3600.0,
    "_ms": 24 * 3600e3,
    "_us": 1e9,
    "_mb": 1e6,
    "_kb": 1e7,
}
"""The most of each unit that anything could have, by the end of a key: a year, a day, a quarter of an hour, a
terabyte, ten gigabytes. More is taken for another unit, or for a slip."""
MOST: dict[str, float] = {
    "count": 10_000,
    "least": 10_000,
    "most": 10_000,
    "pages": 1 << 20,
    "speed": 1e6,
    "price": 1e9,
    "copies": 100_000,
    "rate": 1e7,
    "load": 1e4,
    "scale": 1e6,
    "time_scale": 1e6,
    "cv": 1e3,
    "zipf_exponent": 100,
    "concurrency": 1_000_000,
    "rows": 1 << 20,
    "max_batch": 1 << 20,
    "seed": (1 << 63) - 1,
    "burst_messages": 1_000_000,
    "sigma": 10,
    "duration_jitter": 10,
    "long_factor": 1e6,
    "infer_factor": 1e6,
    "load_factor": 1e6,
    "input_ns_per_byte": 1e6,
}
"""The most of a key that has no unit."""
LEAST_MS = 1e-6
"""A nanosecond."""
MOST_SAID = 40


def check_range(
    name: str,
    value: float,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
) -> None:
    """Raise `ValueError` unless a number is finite and in its range; ``most`` is by default the key's own."""
    # A compiled caller has made a float of a whole number.
    said = str(value).removesuffix(".0")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} is {said}; it must be a number that is finite")
    if most is None:
        most = most_of(name)
    if (above is not None and value <= above) or (least is not None and value < least) or value > most:
        low = f"greater than {above:g}" if above is not None else f"at least {least:g}"
        if least is not None and 0 < least < 1 and value <= 0:
            low = "greater than 0"
        said = said if len(said) <= MOST_SAID else f"a number of {len(said)} characters"
        high = "" if most == math.inf else f" and at most {most:,.10g}"
        raise ValueError(f"{name} is {said}; it must be {low}{high}")


def most_of(name: str) -> float:
    """Return the most that a key may have, by its name or its unit; infinity for one that has neither."""
    key = name.partition(".")[0]
    if key in MOST:
        return MOST[key]
    return next((most for unit, most in OF_UNIT.items() if key.endswith(unit)), math.inf)


def check_durations(name: str, by_size: dict[str, float]) -> None:
    """Raise `ValueError` unless these are positive durations by batch size."""
    for size, value in by_size.items():
        if not (size.isdecimal() and len(size) <= 9 and 1 <= int(size) <= MOST["rows"]):
            raise ValueError(
                f"{name} has {size!r} for a batch size; it must be a whole number from 1 to {MOST['rows']:,}"
            )
        check_range(f"{name}.{size}", value, least=LEAST_MS)
