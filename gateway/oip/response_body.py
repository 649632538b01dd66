"""What the JSON of a response says, in the Open Inference Protocol's names and types.

`response` makes it. The structs have a module of their own because what uses them is compiled.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from mainspring.gateway.oip.datatypes import Datatype

_DATA = msgspec.Meta(extra_json_schema={"type": "array"})


class ResponseOutputParameters(msgspec.Struct):
    """Of an output whose bytes follow the JSON."""

    binary_data_size: int


class ResponseOutput(msgspec.Struct, omit_defaults=True):
    """An output: with data, or with the size of its part behind the JSON, or neither if it is elsewhere."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    data: Annotated[msgspec.Raw, _DATA] | msgspec.UnsetType = msgspec.UNSET
    parameters: ResponseOutputParameters | msgspec.UnsetType = msgspec.UNSET


class ResponseParameters(msgspec.Struct, omit_defaults=True):
    """What became of a request: its parts of time add up to ``total_ns``."""

    total_ns: int
    """From its first bytes at the gateway to its outputs there."""
    receive_ns: int
    """Until it was there whole and had been read."""
    queue_ns: int
    """From there to its dispatch, LOAD apart."""
    input_ns: int
    """From there until its inputs were in the worker's memory."""
    load_ns: int
    """LOAD of the model, if it was resident nowhere."""
    wait_ns: int
    """On the worker until EXEC began, LOAD apart."""
    execute_ns: int
    """EXEC of the batch that it was in."""
    output_ns: int
    """From EXEC's end to its outputs at the gateway."""
    batch_size: int
    cold_start: bool
    """Whether the model's weights were not on the device when the request came."""
    worker: str
    deadline_ns_left: int | None = None
    """Time left when the outputs came; not there for best effort."""
    cached: bool = False
    """Whether the outputs are those of an earlier request of equal inputs."""


class InferResponse(msgspec.Struct, omit_defaults=True):
    """What a model made of a request."""

    model_name: str
    model_version: str
    outputs: list[ResponseOutput]
    parameters: ResponseParameters
    id: str = ""
