"""What the controller alone can count, as it tells a gateway that is scraped (Prometheus).

Everything here only ever grows while the controller lives, but for what its docstring calls a state.
"""

from __future__ import annotations

import msgspec


class HistogramCounts(msgspec.Struct, frozen=True, array_like=True):
    """Observations by bucket: up to and including each bound, and one more for those beyond the last."""

    counts: tuple[int, ...]
    sum: int
    """Of all observations, in the unit of the bounds."""


class ModelActions(msgspec.Struct, frozen=True):
    """How one model's actions went, or those of all models that have no label of their own."""

    model: str
    """What clients call it; ``other`` for the models without a label of their own."""
    version: str
    """Empty for those."""
    load: HistogramCounts
    """Durations of LOADs that ended well, by `ClusterMetrics.duration_bounds_ns`."""
    infer_error: HistogramCounts
    """Predicted less actual durations of INFERs that ended well, by `ClusterMetrics.error_bounds_ns`."""
    load_error: HistogramCounts
    """The same of LOADs."""
    batch: HistogramCounts
    """Batch sizes that INFERs ran as, by `ClusterMetrics.batch_bounds`."""
    rows: int
    """Requests' rows in these INFERs."""


class WorkerActions(msgspec.Struct, frozen=True):
    """One worker that is connected."""

    worker: str
    device_kind: str
    pages: int
    """Of its page cache. A state."""
    pages_used: int
    """Of these, pages that hold weights. A state."""
    busy_ns: dict[str, int]
    """Time in which each executor (exec, load, prepare) ran an action."""
    ended: dict[str, int]
    """Actions by how they ended, as ``KIND status``."""
    device: dict[str, HistogramCounts] = {}
    """By executor (exec, load): the device's part of actions that ended well, by its own clock."""
    host: dict[str, HistogramCounts] = {}
    """By executor: the rest, from begin to end, in which the host began them and noticed their ends."""


class ClusterMetrics(msgspec.Struct, frozen=True):
    """All that the controller counts for Prometheus."""

    duration_bounds_ns: tuple[int, ...]
    error_bounds_ns: tuple[int, ...]
    batch_bounds: tuple[int, ...]
    models: tuple[ModelActions, ...]
    workers: tuple[WorkerActions, ...]
    models_served: int
    """A state."""
    requests_queued: int
    """Requests that wait in the scheduler. A state."""
    host_bounds_ns: tuple[int, ...]
    """Of `WorkerActions.host`; those of `WorkerActions.device` are ``duration_bounds_ns``."""
