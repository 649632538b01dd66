"""The JSON of inference requests and responses: the Open Inference Protocol's names and types.

`request` reads the former, `response` makes the latter. The structs have a module of their own because what
uses them is compiled.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from mainspring.gateway.oip.datatypes import Datatype

_DATA = msgspec.Meta(extra_json_schema={"type": "array"})
_MICROSECONDS = msgspec.Meta(
    description="Microseconds until the answer is wanted; 0: none",
    extra_json_schema={"type": ["integer", "null"], "minimum": 0},
)
_MILLISECONDS = msgspec.Meta(extra_json_schema={"type": ["number", "null"], "exclusiveMinimum": 0})
_SEQUENCE_ID = msgspec.Meta(
    description="Which sequence it belongs to, of a model whose requests come in sequences; 0 or empty: none",
    extra_json_schema={"type": ["integer", "string", "null"]},
)
_FLAG = msgspec.Meta(extra_json_schema={"type": ["boolean", "null"]})
_PRIORITY = msgspec.Meta(extra_json_schema={"type": ["integer", "null"], "minimum": 0})


class RequestInputParameters(msgspec.Struct):
    """Size or place of an input's bytes, unless it came as JSON."""

    binary_data_size: int | None = None
    shared_memory_region: str | None = None
    shared_memory_byte_size: int | None = None
    shared_memory_offset: int | None = None


class RequestInput(msgspec.Struct):
    """An input: with data, or with the size of its part behind the JSON."""

    name: str
    shape: tuple[int, ...]
    datatype: Datatype
    data: Annotated[msgspec.Raw, _DATA] | msgspec.UnsetType = msgspec.UNSET
    parameters: RequestInputParameters | None = None


class LooseInput(msgspec.Struct):
    """An input whose values are made before they are checked: JSON with NaN or Infinity in it."""

    name: str
    shape: tuple[int, ...]
    datatype: str
    data: list[Any] | None = None
    parameters: RequestInputParameters | None = None


class RequestOutputParameters(msgspec.Struct):
    """The form in which an output is to be sent."""

    binary_data: bool | None = None
    classification: int = 0
    shared_memory_region: str | None = None
    shared_memory_byte_size: int | None = None
    shared_memory_offset: int | None = None


class RequestOutput(msgspec.Struct):
    """An output that is wanted; without any, all are."""

    name: str
    parameters: RequestOutputParameters | None = None


class RequestParameters(msgspec.Struct):
    """A request's parameters, as far as they are read; others are let pass."""

    timeout: Annotated[Any, _MICROSECONDS] = None
    slo_ms: Annotated[Any, _MILLISECONDS] = None
    priority: Annotated[Any, _PRIORITY] = None
    sequence_id: Annotated[Any, _SEQUENCE_ID] = None
    sequence_start: Annotated[Any, _FLAG] = None
    sequence_end: Annotated[Any, _FLAG] = None
    binary_data_output: bool = False


class InferRequest(msgspec.Struct):
    """A request to run a model."""

    inputs: tuple[RequestInput, ...]
    id: str = ""
    parameters: RequestParameters | None = None
    outputs: tuple[RequestOutput, ...] = ()


class LooseRequest(msgspec.Struct):
    """A request of such inputs."""

    inputs: tuple[LooseInput, ...]
    id: str = ""
    parameters: RequestParameters | None = None
    outputs: tuple[RequestOutput, ...] = ()


class ResponseOutputParameters(msgspec.Struct):
    """Parameters of an output whose bytes follow the JSON."""

    binary_data_size: int


class ResponseOutput(msgspec.Struct, omit_defaults=True):
    """An output: with data, or with the size of its part behind the JSON, or neither if it is elsewhere."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    data: Annotated[msgspec.Raw, _DATA] | msgspec.UnsetType = msgspec.UNSET
    parameters: ResponseOutputParameters | msgspec.UnsetType = msgspec.UNSET


class ResponseParameters(msgspec.Struct, omit_defaults=True):
    """Facts about an answered request: its parts of time add up to ``total_ns``."""

    total_ns: int
    """Time from its first bytes at the gateway to its outputs there."""
    receive_ns: int
    """Time until it was there whole and had been read."""
    queue_ns: int
    """Time from there to its dispatch, without LOAD."""
    input_ns: int
    """Time from there until its inputs were in the worker's memory."""
    load_ns: int
    """LOAD of the model, if it was resident nowhere."""
    wait_ns: int
    """Time on the worker until EXEC began, without LOAD."""
    execute_ns: int
    """EXEC of the batch that it was in."""
    output_ns: int
    """Time from EXEC's end to its outputs at the gateway."""
    batch_size: int
    cold_start: bool
    """True if the model's weights were not on the device when the request came."""
    worker: str
    deadline_ns_left: int | None = None
    """Time left when the outputs came; not there for best effort."""
    cached: bool = False
    """True if the outputs are those of an earlier request of equal inputs."""


class InferResponse(msgspec.Struct, omit_defaults=True):
    """A model's answer to a request."""

    model_name: str
    model_version: str
    outputs: list[ResponseOutput]
    parameters: ResponseParameters
    id: str = ""
