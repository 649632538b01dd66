"""Statistics of a model, with the fields of Triton's JSON and protobuf."""

from __future__ import annotations

import msgspec


class Count(msgspec.Struct, frozen=True):
    """The number of times that something happened, and how long it took in all."""

    count: int
    ns: int


class InferenceStatistics(msgspec.Struct, frozen=True):
    """The outcomes of requests, and the parts of the time of those that got outputs."""

    success: Count
    fail: Count
    queue: Count
    """Waiting: for the controller's dispatch, and on the worker for EXEC."""
    compute_input: Count
    compute_infer: Count
    compute_output: Count
    cache_hit: Count
    cache_miss: Count


class BatchStatistics(msgspec.Struct, frozen=True):
    """The executions at one batch size; durations are those of whole executions."""

    batch_size: int
    """The size that ran: requests' rows, padded up to a size that the model was compiled for."""
    compute_input: Count
    compute_infer: Count
    compute_output: Count


class ModelStatistics(msgspec.Struct, frozen=True):
    """One version of a model since it was added to this gateway: fields as in Triton's JSON and protobuf."""

    name: str
    """The name that clients call it by."""
    version: str
    last_inference: int
    """Unix time of the last answer in milliseconds; 0 if there was none."""
    inference_count: int
    """Rows that were run, padding apart."""
    execution_count: int
    inference_stats: InferenceStatistics
    batch_stats: tuple[BatchStatistics, ...]


class StatisticsReport(msgspec.Struct, frozen=True):
    """The statistics of several versions, as the protocol's JSON has them."""

    model_stats: list[ModelStatistics]
