"""Metadata of the server and of its models, with the field names of the protocol's JSON."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mainspring.gateway.config import TRITON, GatewayConfig, installed_version
from mainspring.gateway.oip.datatypes import Datatype, datatype_of
from mainspring.messages.model import ModelSpec, TensorSpec

PLATFORM = "mainspring"
EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "generate",
    "logging",
    "model_configuration",
    "model_repository",
    "parameters",
    "schedule_policy",
    "sequence",
    "statistics",
    "trace",
)
SHARED_MEMORY = "system_shared_memory"
"""The extension that only clients over the loopback have."""


class Live(msgspec.Struct, frozen=True):
    """The answer to the question whether the gateway runs."""

    live: bool


class Ready(msgspec.Struct, frozen=True):
    """The answer to the question whether requests can be served."""

    ready: bool


class ModelReady(msgspec.Struct, frozen=True):
    """The answer to the question whether requests for a model are accepted."""

    name: str
    version: str
    ready: bool


class ServerMetadata(msgspec.Struct, frozen=True):
    """The server's name, version and extensions."""

    name: str
    version: str
    extensions: tuple[str, ...]


def server_metadata(config: GatewayConfig, *, shared: bool) -> ServerMetadata:
    """Return who serves, under the configured name.

    ``shared``: whether system shared memory is served to who asks.
    """
    extensions = (*EXTENSIONS, SHARED_MEMORY) if shared else EXTENSIONS
    name = config.server_name or (TRITON if config.compatibility == TRITON else PLATFORM)
    return ServerMetadata(name, installed_version(), extensions)


class TensorMetadata(msgspec.Struct, frozen=True):
    """A tensor of a model; the axis for rows, if the model has one, is -1: any number of them."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]


class ModelMetadata(msgspec.Struct, frozen=True):
    """A model's tensors and the versions that are served."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]


def model_metadata(name: str, spec: ModelSpec, versions: Sequence[int]) -> ModelMetadata:
    """Return what clients need to know to ask for the model, which they call ``name``."""
    return ModelMetadata(
        name,
        tuple(map(str, versions)),
        PLATFORM,
        tuple(_tensor(tensor, spec) for tensor in spec.inputs),
        tuple(_tensor(tensor, spec) for tensor in spec.outputs),
    )


def _tensor(tensor: TensorSpec, spec: ModelSpec) -> TensorMetadata:
    return TensorMetadata(tensor.name, datatype_of(tensor.dtype), spec.client_shape(shown(tensor), -1))


def shown(tensor: TensorSpec) -> TensorSpec:
    """Return a tensor whose open dimensions, and those that vary, are -1, as clients see them."""
    shape = list(tensor.shape)
    for axis in (*(dim.axis for dim in tensor.open), *tensor.varies):
        shape[axis] = -1
    return TensorSpec(tensor.name, tensor.dtype, tuple(shape), rows_axis=tensor.rows_axis)
