"""The first estimates, before anything is measured: durations of profiles."""

from __future__ import annotations

import functools

from mainspring.messages.model import ModelSpec, Profile
from mainspring.messages.targets import device_kind_of, kinds_build

UNKNOWN_INFER_NS = 50_000_000
"""Duration assumed of a batch that was never profiled or measured anywhere."""


@functools.lru_cache(maxsize=256)
def indices_by_rows(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return, for each number of rows up to the largest size, the index of the smallest that holds it."""
    return tuple(
        next(index for index, size in enumerate(sizes) if size >= rows) for rows in range(sizes[-1] + 1)
    )


def profile_of(kind: str, spec: ModelSpec) -> Profile | None:
    """Return the profile for a kind of workers, or the slowest other one rather than none."""
    profiles = kinds_build(kind, spec).profiles
    known = own_profile(kind, profiles)
    if known is not None:
        return known
    others = [profiles[name] for name in sorted(profiles)]
    return max(others, key=lambda profile: max(profile.infer_ns.values(), default=0), default=None)


def own_profile(kind: str, profiles: dict[str, Profile]) -> Profile | None:
    """Return the profile that was measured on a kind of workers' device; None if there is none."""
    return profiles.get(kind) or profiles.get(device_kind_of(kind))


def infer_seeds(profile: Profile | None, sizes: tuple[int, ...]) -> list[int]:
    """Return a seed for each size; a size without one gets the cost for each row of the nearest."""
    if profile is None or not profile.infer_ns:
        return [UNKNOWN_INFER_NS * size for size in sizes]
    known = profile.infer_ns
    seeds = []
    for size in sizes:
        nearest = min(known, key=lambda have: (abs(have - size), have))
        seeds.append(known[nearest] * max(size, nearest) // nearest if nearest != size else known[size])
    return seeds
