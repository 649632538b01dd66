"""What a server says of itself and of its models, with the field names of the protocol's JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from mainspring.gateway.oip.datatypes import BYTES, datatype_of
from mainspring.messages.model import ModelSpec, TensorSpec

PLATFORM = "mainspring"
EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "parameters",
    "schedule_policy",
    "statistics",
)


class ServerMetadata(msgspec.Struct, frozen=True):
    """Who serves."""

    name: str
    version: str
    extensions: tuple[str, ...] = EXTENSIONS


class TensorMetadata(msgspec.Struct, frozen=True):
    """A tensor of a model; the first axis is the request's rows, and any number: -1."""

    name: str
    datatype: str
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
        tuple(map(_tensor, spec.inputs)),
        tuple(map(_tensor, spec.outputs)),
    )


def _tensor(tensor: TensorSpec) -> TensorMetadata:
    return TensorMetadata(tensor.name, datatype_of(tensor.dtype), (-1, *tensor.shape))


def model_config(name: str, spec: ModelSpec, config: str = "") -> dict[str, Any]:
    """Return a model's configuration in the words of Triton's ``ModelConfig``.

    ``config`` is what its repository says, as JSON; what it leaves open is filled in from the model itself.
    """
    found = {
        "name": name,
        "platform": PLATFORM,
        "backend": PLATFORM,
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": spec.max_rows,
        "input": [_tensor_config(tensor) for tensor in spec.inputs],
        "output": [_tensor_config(tensor) for tensor in spec.outputs],
        "dynamic_batching": {"preferred_batch_size": list(spec.batch_sizes)},
    }
    return {**found, **(msgspec.json.decode(config, type=dict[str, Any]) if config else {})}


def _tensor_config(tensor: TensorSpec) -> dict[str, Any]:
    datatype = datatype_of(tensor.dtype)
    kind = "TYPE_STRING" if datatype == BYTES else f"TYPE_{datatype}"
    if tensor.shape:
        return {"name": tensor.name, "data_type": kind, "dims": list(tensor.shape)}
    # Triton has no tensors without axes here: one value for each row is an axis of one, taken away again.
    return {"name": tensor.name, "data_type": kind, "dims": [1], "reshape": {"shape": []}}
