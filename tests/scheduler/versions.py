"""Versions of some models that share executables and sizes of weights, with unlike profiles."""

from __future__ import annotations

import msgspec

from mainspring.messages.model import PAGE_BYTES, ModelSpec, Profile, Symbol, TensorSpec
from mainspring.simulator.scenario import TARGETS, give_targets

MS = 1_000_000
MODELS = 6
VERSIONS = 6
DEVICES = [("fast", ()), ("slow", ()), ("fast", TARGETS["fast"]), ("slow", TARGETS["slow"]), ("odd", ())]
"""What workers call their device, and which artifacts they run."""
SIZES = (1, 2, 4)


def version(number: int, variant: int) -> ModelSpec:
    """Return a version of a model: no two of all have equal durations, some have none; the last two have
    buckets, and two are for some hosts only."""
    single_ns = (2 + number + MODELS * variant) * MS
    pages = 1 + variant % 2
    tensor = (TensorSpec("x", "float32", (4,)),)
    infer_ns = {size: single_ns * (1 + size) // 2 for size in SIZES}
    profiles = {"fast": Profile(infer_ns, 3 * single_ns)} if variant % 3 else {}
    spec = ModelSpec(
        f"m{number}",
        f"m{number} version {variant}",
        f"graph {variant % 2}",
        SIZES,
        pages * PAGE_BYTES,
        (1,) * pages,
        tensor,
        tensor,
        profiles,
    )
    if variant > 3:
        spec = msgspec.structs.replace(spec, symbols=(Symbol("height", (2, 4), 1),))
        shaped = {"2": {size: ns // 2 for size, ns in infer_ns.items()}, "4": infer_ns}
        of = {kind: msgspec.structs.replace(each, shaped=shaped) for kind, each in profiles.items()}
        spec = msgspec.structs.replace(spec, profiles=of)
    return give_targets(spec, variant) if variant in (2, 5) else spec
