"""The cluster at one moment, for a person: what `mainspring status` and the model repository are told."""

from __future__ import annotations

import msgspec

from mainspring.messages.metrics import Outlier, TenantStatus
from mainspring.messages.scaling import KindStatus
from mainspring.messages.sharding import ShardStatus


class WorkerStatus(msgspec.Struct, frozen=True):
    """One worker, for a person."""

    worker: str
    device_kind: str
    pages: int
    pages_free: int
    prepared: int
    resident: int
    outstanding: int
    clock_offset_ns: int
    """The worker's clock less the controller's."""
    notes: tuple[str, ...]
    clock_error_ns: int = 0
    """Bound on the error of ``clock_offset_ns``; the windows of its actions end earlier by as much."""
    clock_rate_ppm: float = 0.0
    """Rate at which the worker's clock gains, in microseconds for a second."""
    targets: tuple[str, ...] = ()
    """Same as `WorkerHello.targets`."""


class ModelStatus(msgspec.Struct, frozen=True):
    """One model, for a person."""

    name: str
    pages: int
    prepared_on: tuple[str, ...]
    resident_on: tuple[str, ...]
    queued: int
    failed_on: tuple[str, ...] = ()
    """Workers that could not prepare it, each followed by why."""
    arrived: int = 0
    """Requests that reached the scheduler since the model was added, or the controller started."""
    finished: int = 0
    """Number of these that were executed by their deadline; best-effort ones count too."""
    late: int = 0
    rejected: int = 0
    """Number of these that the scheduler gave up, on arrival or later; ``late`` has those that were executed
    after their deadline."""
    slo_ns: int | None = None
    """The time to its deadline that its newest request had when it came; None without one."""
    erratic: bool = False
    """True if its INFERs take so differently long on some kind of device that no estimate holds."""
    verified: bool = True
    """False if it is served on the operator's word, compared with nothing."""
    outlier: Outlier | None = None
    """Its last INFER or LOAD that took far longer than expected."""
    max_queue_size: int | None = None
    """Most requests that may wait for it, as operators, its repository or the configuration say of it;
    None if none of them does."""


class ClusterStatus(msgspec.Struct, frozen=True):
    """The cluster at one moment, for a person."""

    policy: str
    workers: tuple[WorkerStatus, ...]
    models: tuple[ModelStatus, ...]
    requests_queued: int
    dropped_messages: dict[str, int]
    """Messages that could not be used, by why."""
    left_out: dict[str, str] = {}
    """Models of the store that are not served because their manifest can't be read, each with why."""
    shards: tuple[ShardStatus, ...] = ()
    """The controllers, if there are several; ``workers`` and ``models`` are theirs, in this order."""
    map_version: int = 0
    """Version of the map that says which of them has which model; 0 until the first controller has told
    one."""
    kinds: tuple[KindStatus, ...] = ()
    """Kinds of workers that can be had in other numbers (`scaling`)."""
    not_ready: str = ""
    """Reason why the gateway that was asked is not ready (`readiness`); empty: it is."""
    unready: dict[str, str] = {}
    """Models that are not, by what clients call them, each with why."""
    tenants: tuple[TenantStatus, ...] = ()
    """Tenants of whom any request has come, if tokens name tenants."""
