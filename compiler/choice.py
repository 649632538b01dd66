"""The choice among several artifacts of one model: the one that takes the least time for a row is kept.

On the CPU the compiler's own measurements decide. This folder can't measure a GPU, because it may not import
the worker: the caller passes a *judge* that measures artifacts on their device
(`mainspring.cli.profiling.gpu_judge`).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.manifest import CPU, Manifest
from mainspring.compiler.artifact.store import Store
from mainspring.messages.model import Profile

AUTO = "auto"
"""Value in place of an engine's name: the faster engine."""

_NS_PER_MS = 1e6


class Contender(NamedTuple):
    """An artifact that could be kept, as a judge sees it."""

    engine: str
    executable: str
    """Its SHA-256; two artifacts of one executable, with weights of the same length, take the same time."""
    weights_bytes: int
    put: Callable[[Store, str], Manifest]
    """Stores the whole artifact under a name, as a worker needs it."""


class Judged(NamedTuple):
    """An artifact's performance on its device."""

    infer_ns: Mapping[int, int] = {}
    """Usual duration of an INFER, by batch size."""
    device_kind: str = CPU
    profile: Profile | None = None
    """Seed durations on that kind of device."""
    failed: str = ""
    """Reason why it can't run there; then the other fields are empty."""


Judge = Callable[[Sequence[Contender]], Sequence[Judged]]
"""Returns each contender's performance."""


def per_row_ns(infer_ns: Mapping[int, int]) -> float:
    """Return the geometric mean, over one or more batch sizes, of the time for one row."""
    # A device's clock may be too coarse for a tiny model.
    return statistics.geometric_mean(max(1, ns) / size for size, ns in infer_ns.items())


def fastest(judged: Mapping[str, Judged]) -> str:
    """Return the engine that takes the least time for a row; the first of equals.

    Raises `CompileError`, which gives each engine's reason, if none can run the model.
    """
    able = {engine: per_row_ns(each.infer_ns) for engine, each in judged.items() if not each.failed}
    if not able:
        reasons = "; ".join(f"{engine}: {each.failed}" for engine, each in judged.items())
        raise CompileError(f"no engine can run the model: {reasons}")
    return min(able, key=lambda engine: able[engine])


def describe(judged: Judged) -> str:
    """Describe an artifact's performance, and its device unless it is this CPU; or why it can't run."""
    if judged.failed:
        return f"can't: {judged.failed}"
    per_row_ms = per_row_ns(judged.infer_ns) / _NS_PER_MS
    shown = f"{per_row_ms:.0f}" if per_row_ms >= 100 else f"{per_row_ms:#.3g}"
    where = "" if judged.device_kind == CPU else f" on {judged.device_kind}"
    return f"{shown} ms for each row{where}, over all batch sizes"
