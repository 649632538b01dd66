"""What a server says of itself and of its models, with the field names of the protocol's JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from mainspring.gateway.config import TRITON
from mainspring.gateway.oip.datatypes import BYTES, Datatype, datatype_of
from mainspring.gateway.release import installed_version
from mainspring.messages.model import ModelSpec, TensorSpec

PLATFORM = "mainspring"
UNSHARED = "mainspring_unshared"
"""Parameter of a model's configuration: why each row of it runs alone."""
EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "parameters",
    "schedule_policy",
    "statistics",
)


class Live(msgspec.Struct, frozen=True):
    """Whether the gateway runs."""

    live: bool


class Ready(msgspec.Struct, frozen=True):
    """Whether requests can be served."""

    ready: bool


class ModelReady(msgspec.Struct, frozen=True):
    """Whether requests for a model are taken."""

    name: str
    version: str
    ready: bool


class ServerMetadata(msgspec.Struct, frozen=True):
    """Who serves."""

    name: str
    version: str
    extensions: tuple[str, ...]


def server_metadata(*, triton: bool) -> ServerMetadata:
    """Return who serves, under the name of a Triton server if so configured."""
    return ServerMetadata(TRITON if triton else PLATFORM, installed_version(), EXTENSIONS)


class TensorMetadata(msgspec.Struct, frozen=True):
    """A tensor of a model; the first axis, if the model has one for rows, is -1: any number of them."""

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
    return TensorMetadata(tensor.name, datatype_of(tensor.dtype), spec.client_shape(tensor, -1))


def model_config(name: str, spec: ModelSpec, config: str = "") -> dict[str, Any]:
    """Return a model's configuration in the words of Triton's ``ModelConfig``.

    ``config`` is what its repository says, as JSON; what it leaves open is filled in from the model itself.
    If requests may not share executions of it, the parameter `UNSHARED` says which node is the reason.
    """
    said = msgspec.json.decode(config, type=dict[str, Any]) if config else {}
    inputs, outputs = said.pop("input", []), said.pop("output", [])
    # Where a configuration says 0, rows are one of the dimensions.
    rows = [-1] if said.get("max_batch_size") == 0 and not spec.whole else []
    found: dict[str, Any] = {
        "name": name,
        "platform": PLATFORM,
        "backend": PLATFORM,
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": 0 if spec.whole else spec.max_rows,
        "input": [_tensor_config(tensor, rows, inputs) for tensor in spec.inputs],
        "output": [_tensor_config(tensor, rows, outputs) for tensor in spec.outputs],
    }
    if not spec.whole:
        found["dynamic_batching"] = {"preferred_batch_size": list(spec.batch_sizes)}
    if spec.unshared:
        said["max_batch_size"] = spec.max_rows
        said.get("dynamic_batching", {}).pop("preferred_batch_size", None)
        said["parameters"] = {**said.get("parameters", {}), UNSHARED: {"string_value": spec.unshared}}
    return {**found, **said}


def _tensor_config(tensor: TensorSpec, rows: list[int], said: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a tensor's configuration, with what its repository ``said`` and ``rows`` before its shape."""
    datatype = datatype_of(tensor.dtype)
    kind = "TYPE_STRING" if datatype == BYTES else f"TYPE_{datatype}"
    beside = next((each for each in said if each.get("name") == tensor.name), {})
    dims = [*rows, *tensor.shape]
    if dims:
        return {**beside, "name": tensor.name, "data_type": kind, "dims": dims}
    # Triton has no tensors without axes here: one value for each row is an axis of one, taken away again.
    return {**beside, "name": tensor.name, "data_type": kind, "dims": [1], "reshape": {"shape": []}}
