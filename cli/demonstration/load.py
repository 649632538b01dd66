"""What the devices can do, and a workload at a fraction of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from mainspring.messages.model import ModelSpec, Profile
from mainspring.traces.arrival import SECOND_NS, WorkloadError
from mainspring.traces.recipe import Recipe, build
from mainspring.traces.schema import chosen_kind
from mainspring.traces.workload import Workload


class Capacity(msgspec.Struct, frozen=True):
    """Requests per second of a workload's mix of models that the devices can execute, by their profiles."""

    capacity_rate: float
    """If every request runs in the best of its model's batches that end within the deadline."""
    capacity_single_rate: float
    """If every request runs alone."""
    load: float
    """The share of ``capacity_rate`` that is asked for."""


def recipe_for(trace: Path | None, duration_ns: int, slo_ns: int, seed: int) -> Recipe:
    """Return the workload: an Azure trace's file of either schema, or a synthetic mix of that shape."""
    return Recipe(
        kind=chosen_kind(None, trace), trace=trace, duration_ns=duration_ns, slo_ns=slo_ns, seed=seed
    )


def at_load(
    recipe: Recipe, specs: Sequence[ModelSpec], device_kind: str, *, load: float, devices: int
) -> tuple[Recipe, Capacity]:
    """Scale a workload so that its average is ``load`` times what the devices can do with its mix.

    Durations come from the models' profiles for ``device_kind``; each counts as often as the workload
    names its model. Raises `WorkloadError` for a workload without any request.
    """
    profiles = {spec.name: spec.profiles[device_kind] for spec in specs}
    workload = build(recipe, [spec.name for spec in specs])
    assert isinstance(workload, Workload)
    used = [profiles[arrival.model] for arrival in workload.arrivals(np.random.default_rng(recipe.seed))]
    if not used:
        raise WorkloadError(f"the workload has no request in its first {recipe.duration_ns / SECOND_NS:g} s")
    best = devices * SECOND_NS / float(np.mean([best_row_ns(profile, recipe.slo_ns) for profile in used]))
    single = devices * SECOND_NS / float(np.mean([min(profile.infer_ns.values()) for profile in used]))
    scale = load * best * recipe.duration_ns / SECOND_NS / len(used)
    return msgspec.structs.replace(recipe, scale=scale), Capacity(best, single, load)


def best_row_ns(profile: Profile, slo_ns: int | None) -> float:
    """Return the least time per row of any batch size that takes ``slo_ns`` at most, or of the smallest."""
    smallest = min(profile.infer_ns)
    return min(
        duration / size
        for size, duration in profile.infer_ns.items()
        if size == smallest or slo_ns is None or duration <= slo_ns
    )
