"""The counts that the controller alone has, which it reports to a gateway that is scraped (Prometheus).

Everything here only ever grows while the controller lives, but for what its docstring calls a state.
"""

from __future__ import annotations

import msgspec

from mainspring.messages.scaling import KindStatus


class HistogramCounts(msgspec.Struct, frozen=True, array_like=True):
    """Observations by bucket: up to and including each bound, and one more for those beyond the last."""

    counts: tuple[int, ...]
    sum: int
    """Sum of all observations, in the unit of the bounds."""


class Outlier(msgspec.Struct, frozen=True, array_like=True):
    """An action that took so much longer than expected that no estimate follows it alone
    (`cluster.rolling.is_outlier`)."""

    at_ns: int
    """Instant at which that was known."""
    worker: str
    action_id: int
    duration_ns: int
    """Duration of the action; if no result came, the time for which it was waited for."""
    expected_ns: int
    """The estimate, which stayed."""
    count: int = 1
    """Number of its model's actions that have stood out, this one included."""


class ModelActions(msgspec.Struct, frozen=True):
    """Counts of one model's actions, or of those of all models that have no label of their own."""

    model: str
    """Name by which clients call the model; ``other`` for the models without a label of their own."""
    version: str
    """Empty for those."""
    load: HistogramCounts
    """Durations of LOADs that ended well, by `ClusterMetrics.duration_bounds_ns`."""
    infer_error: HistogramCounts
    """Predicted less actual durations of INFERs that ended well, by `ClusterMetrics.error_bounds_ns`."""
    load_error: HistogramCounts
    """Predicted less actual durations of LOADs that ended well, by the same bounds."""
    batch: HistogramCounts
    """Batch sizes that INFERs ran as, by `ClusterMetrics.batch_bounds`."""
    rows: int
    """Requests' rows in these INFERs."""
    erratic: int = 0
    """Models under these labels whose durations no estimate holds for (`cluster.estimates`). A state."""
    outliers: int = 0
    """INFERs and LOADs that took so much longer than predicted that no estimate follows one alone."""


READINGS = {
    "mainspring_gpu_sm_clock_hertz": "Clock of a GPU's multiprocessors.",
    "mainspring_gpu_temperature_celsius": "Temperature of a GPU.",
    "mainspring_gpu_power_watts": "Power that a GPU takes.",
    "mainspring_gpu_memory_used_bytes": "Memory of a GPU that is taken, by whatever process.",
    "mainspring_gpu_throttled": "1 while this reason holds a GPU's clocks down.",
    "mainspring_gpu_uncorrected_errors": "Uncorrectable memory errors of a GPU since its driver was loaded.",
    "mainspring_gpu_remapped_rows": "Rows of a GPU's memory that were replaced for errors.",
    "mainspring_gpu_xid_errors": "Xid errors that a GPU's driver has reported since the worker started.",
    "mainspring_gpu_executables_without_graph": "Open executables whose kernels are launched one by one.",
}
"""Meaning of each metric that a GPU's monitor reports, by the metric's name."""


class Reading(msgspec.Struct, frozen=True, array_like=True):
    """A number that a GPU's monitor tells."""

    name: str
    """Name of the metric, one of `READINGS`."""
    value: float
    reason: str = ""
    """Reason that clocks are held down for, only with ``mainspring_gpu_throttled``."""


class DeviceHealth(msgspec.Struct, frozen=True):
    """The last report of a GPU's monitor."""

    notes: tuple[str, ...] = ()
    """Conditions that make the device unpredictable now, each a sentence for the operator."""
    readings: tuple[Reading, ...] = ()


class WorkerActions(msgspec.Struct, frozen=True):
    """One worker that is connected."""

    worker: str
    device_kind: str
    pages: int
    """Number of pages in its page cache. A state."""
    pages_used: int
    """Number of these pages that hold weights. A state."""
    busy_ns: dict[str, int]
    """Time in which each executor (exec, load, prepare) ran an action."""
    ended: dict[str, int]
    """Actions by how they ended, as ``KIND status``."""
    device: dict[str, HistogramCounts] = {}
    """The device's part of actions that ended well, by its own clock, for each executor (exec, load)."""
    host: dict[str, HistogramCounts] = {}
    """The rest of these actions' durations, from begin to end, in which the host began them and noticed their
    ends, for each executor."""
    readings: tuple[Reading, ...] = ()
    """Last readings of the worker's GPU. A state."""
    clock_offset_ns: int = 0
    """Same as in `status.WorkerStatus`, and so the next two. States."""
    clock_error_ns: int = 0
    clock_rate_ppm: float = 0.0


class TenantStatus(msgspec.Struct, frozen=True):
    """One tenant since the controller started (`scheduler.tenants`)."""

    tenant: str
    """Its name; empty for requests of none."""
    weight: float
    requests: int = 0
    """Requests and queries of it that reached the scheduler."""
    executed: int = 0
    """Requests, and pieces of queries, that were executed."""
    dropped: int = 0
    """Number of these, and of the refused, that were not served for want of devices' time."""
    over_share: int = 0
    """Requests and queries that were refused because it was ahead of its share."""
    device_ns: int = 0
    """Time of EXEC and LOAD that it was charged."""
    share: float = 0.0
    """Number of devices that it may have now; 0: as many as it likes."""

    def plus(self, other: TenantStatus) -> TenantStatus:
        """Return the sums of both, under this one's name and weight."""
        return TenantStatus(
            *(self.tenant, self.weight, self.requests + other.requests, self.executed + other.executed),
            *(self.dropped + other.dropped, self.over_share + other.over_share),
            *(self.device_ns + other.device_ns, self.share + other.share),
        )


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
    """Bounds of `WorkerActions.host`; those of `WorkerActions.device` are ``duration_bounds_ns``."""
    kinds: tuple[KindStatus, ...] = ()
    """The kinds of workers that a provider starts and stops. A state."""
    tenants: tuple[TenantStatus, ...] = ()
    """Same as `status.ClusterStatus.tenants`."""
