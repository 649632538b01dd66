"""The answers of the console's queries about one model and about one worker.

Instants and ids are as in `console.payloads`.
"""

from __future__ import annotations

import msgspec

from mainspring.console.payloads import HappeningLine, ModelLine, RequestLine, WorkerPicture


class Spread(msgspec.Struct, frozen=True):
    """The distribution of the durations of a model's INFERs, for the batch size that ran most."""

    batch_size: int
    sizes: str
    """The bucket, such as ``128``; empty for a model of fixed shapes."""
    durations: int
    """Number of durations that are known; from 1,000 on older ones count less."""
    median_ms: float
    mean_ms: float
    p99_ms: float
    estimate_ms: float
    """Expected duration of the next one, by which requests of other models are planned behind it."""


class OutlierShown(msgspec.Struct, frozen=True):
    """The last of a model's INFERs and LOADs that took far longer than expected."""

    count: int
    """Number of such outliers."""
    at_ns: int
    worker: str
    action_id: int
    took_ms: float
    expected_ms: float


class ModelSeries(msgspec.Struct, frozen=True):
    """Outcomes of one model's requests in each whole second, oldest first."""

    first_ns: int
    offered: list[int]
    in_time: list[int]
    late: list[int]
    rejected: list[int]
    mean_ms: list[float | None]
    """Mean of the latencies; None where nothing was executed."""
    longest_ms: list[float | None]


class ModelPage(msgspec.Struct, frozen=True):
    """Query ``model``: one model in full."""

    line: ModelLine
    versions_of: str
    """Name by which clients call it."""
    weights_bytes: int
    extents: list[int]
    inputs: list[str]
    outputs: list[str]
    profiles: dict[str, dict[int, float]]
    """Seed durations in ms by device kind and batch size."""
    load_ms: dict[str, float]
    """Seed durations of LOAD by device kind."""
    placements: dict[str, str]
    """State on each worker, by the worker's name: ``resident``, ``loading``, ``prepared``, ``preparing``,
    ``closed``, ``opening``, ``failed: why``."""
    recent: list[RequestLine]
    """Its newest requests of any outcome."""
    series: ModelSeries
    not_ready: str = ""
    """Reason why requests for it could not be answered, in the words of `messages.readiness`; empty: they
    could."""
    evicted_for: dict[str, int] = {}
    """Number of times that it was evicted for another model, by that model, most often first; of evictions
    that are remembered."""
    evicted: dict[str, int] = {}
    """Number of times that another model was evicted for it, by that model."""
    load_now_ms: float | None = None
    """The present estimate of LOAD, of the device kind that most workers have."""
    buckets: dict[str, dict[int, float]] = {}
    """Present estimates in ms of a model with open dimensions, for that device kind: by bucket, such as
    ``128``, the smallest first, and by batch size."""
    spread: Spread | None = None
    """None before enough durations are known."""
    outlier: OutlierShown | None = None
    """None if nothing stood out."""
    verified: bool = True
    """False if it is served on the operator's word, compared with nothing."""
    states: list[str] | None = None
    """State that a sequence carries from each of its requests to the next, as ``output to input``; None of a
    model whose requests don't come in sequences."""


class Norm(msgspec.Struct, frozen=True):
    """Prediction errors of the workers of one kind: p99 of each, of which this is the median."""

    workers: int
    infer_error_us: float | None
    load_error_us: float | None


class Gpu(msgspec.Struct, frozen=True):
    """The state that a worker's GPU reports; None where its driver reports nothing."""

    notes: list[str]
    """Notes for a person on what makes its timing unpredictable now."""
    throttled: list[str]
    """Reasons why its clocks are throttled."""
    clock_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    memory_used_bytes: float | None = None
    uncorrected_errors: float | None = None
    remapped_rows: float | None = None
    xid_errors: float | None = None
    without_graph: float | None = None
    """Executables whose kernels are launched one by one."""


class WorkerSeries(msgspec.Struct, frozen=True):
    """Activity of one worker in each whole second, oldest first."""

    first_ns: int
    exec_busy: list[float]
    """Share of the second in which an INFER or OPEN ran that has ended."""
    load_busy: list[float]
    """The same of LOADs."""
    batches: list[int]
    """INFERs that ended well."""
    rows: list[int]
    """Rows of these."""


class WorkerPage(msgspec.Struct, frozen=True):
    """Query ``worker``: one worker in full."""

    picture: WorkerPicture
    norm: Norm
    """Prediction errors of the other workers of its kind."""
    first_ns: int
    """Instant at which the series begin; one number for each second."""
    infer_worst_ms: list[float | None]
    load_worst_ms: list[float | None]
    """The longest that an INFER or LOAD took beyond its prediction; None where none ended."""
    series: WorkerSeries
    resident: list[str]
    happenings: list[HappeningLine]
    gpu: Gpu | None = None
    """None where the worker has none, or where a recorded run is shown."""
