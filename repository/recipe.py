"""How a version is compiled, what its artifact is called, and what clients see of it. Pure.

The name of an artifact holds a digest of the model's files and of all that the compiler is told, so a name
stands for one content for ever: what was compiled once is found again, and a new content is a new model to
the controller and the workers, beside the old one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence

import msgspec

from mainspring.messages.model import ModelSpec, TensorSpec
from mainspring.repository.fields import DATA_TYPES
from mainspring.repository.model_config import ModelConfig, TensorConfig
from mainspring.repository.reading import ConfigFault

DEFAULT_SIZES = (1, 2, 4, 8, 16)
"""Batch sizes of a model that asks for none (Clockwork, section 5.1)."""
DIGEST_DIGITS = 12
SEPARATOR = "@"
"""Between a model's name and its version; names that people choose don't have it."""


class Recipe(msgspec.Struct, frozen=True):
    """What the compiler is told beside the file."""

    batch_sizes: tuple[int, ...]
    shapes: dict[str, tuple[int, ...]] = {}
    """Dimensions of inputs, the batch first."""


def recipe_of(config: ModelConfig) -> Recipe:
    """Return how a version of the model is compiled."""
    shapes = {}
    for tensor in config.inputs:
        dims = tensor.dims if tensor.reshape is None else tensor.reshape
        if dims is None:
            continue
        whole = (
            (1 if dims and dims[0] == -1 else dims[0], *dims[1:])
            if _unbatched(config) and dims
            else (1, *dims)
        )
        if min(whole) > 0:
            shapes[tensor.name] = whole
    return Recipe(_batch_sizes(config), shapes)


def artifact_name(model: str, version: int, files_digest: str, recipe: Recipe) -> str:
    """Return what the artifact of these files is called, such as ``net@3-0123456789ab``."""
    told = msgspec.json.encode(recipe, order="deterministic")
    digest = hashlib.sha256(files_digest.encode() + told).hexdigest()
    return f"{model}{SEPARATOR}{version}-{digest[:DIGEST_DIGITS]}"


def is_artifact_name(name: str) -> bool:
    """Say whether a stored model is a repository's, not one that somebody compiled by hand."""
    return SEPARATOR in name


def model_and_version(name: str) -> tuple[str, int]:
    """Return which model and version an artifact is of, by its name."""
    model, _, rest = name.partition(SEPARATOR)
    return model, int(rest.partition("-")[0])


def served_spec(spec: ModelSpec, model: str, version: int, config: ModelConfig) -> ModelSpec:
    """Return an artifact's specification as clients see the model.

    Raises `ConfigFault` if the file says of a tensor what is not so.
    """
    return msgspec.structs.replace(
        spec,
        served_as=model,
        version=version,
        inputs=_as_configured(config, "input", config.inputs, spec.inputs),
        outputs=_as_configured(config, "output", config.outputs, spec.outputs),
    )


def _unbatched(config: ModelConfig) -> bool:
    """Say whether the file's dimensions begin with the batch."""
    return config.max_batch_size == 0


def _batch_sizes(config: ModelConfig) -> tuple[int, ...]:
    most = config.max_batch_size
    if most == 0:
        fixed = [tensor.dims[0] for tensor in config.inputs if tensor.dims]
        return (1,) if fixed and min(fixed) > 0 else DEFAULT_SIZES
    if most is None:
        return tuple(sorted({*DEFAULT_SIZES, *config.preferred_batch_sizes}))
    powers = [1 << exponent for exponent in range(most.bit_length())]
    return tuple(sorted({1, most, *(config.preferred_batch_sizes or powers)}))


def _as_configured(
    config: ModelConfig, kind: str, given: Sequence[TensorConfig], tensors: Sequence[TensorSpec]
) -> tuple[TensorSpec, ...]:
    by_name: Mapping[str, TensorConfig] = {tensor.name: tensor for tensor in given}
    unknown = [name for name in by_name if name not in {tensor.name for tensor in tensors}]
    if unknown:
        known = ", ".join(tensor.name for tensor in tensors)
        raise ConfigFault(f"the model has no {kind} {unknown[0]!r}; it has {known or 'none'}")
    return tuple(
        _one_as_configured(config, by_name[tensor.name], tensor) if tensor.name in by_name else tensor
        for tensor in tensors
    )


def _one_as_configured(config: ModelConfig, given: TensorConfig, tensor: TensorSpec) -> TensorSpec:
    wanted = DATA_TYPES.get(given.data_type)
    kind = "string" if tensor.dtype.startswith("S") else tensor.dtype
    if wanted is not None and wanted != kind:
        right = next((name for name, each in DATA_TYPES.items() if each == kind), kind)
        raise ConfigFault(
            f"tensor {tensor.name!r} is {given.data_type} in config.pbtxt and {right} in the model"
        )
    if given.dims is None:
        return tensor
    dims = given.dims[1:] if _unbatched(config) and given.reshape is None else given.dims
    inner = dims if given.reshape is None else given.reshape
    if _unbatched(config) and given.reshape is not None:
        dims, inner = dims[1:], inner[1:]
    if not _fits(inner, tensor.shape):
        raise ConfigFault(
            f"tensor {tensor.name!r} has dims {list(inner)} in config.pbtxt and {list(tensor.shape)} in the "
            "model, the rows apart"
        )
    if given.reshape is None:
        return tensor
    if -1 in dims or math.prod(dims) != math.prod(tensor.shape):
        raise ConfigFault(
            f"tensor {tensor.name!r} can't be reshaped from {list(dims)} to {list(tensor.shape)}: both must "
            "have the same number of elements"
        )
    return TensorSpec(tensor.name, tensor.dtype, dims)


def _fits(dims: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return len(dims) == len(shape) and all(dim in (-1, size) for dim, size in zip(dims, shape, strict=True))
