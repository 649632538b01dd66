"""The recipe by which a version is compiled, the name of its artifact, and what clients see of it.

The name of an artifact holds a digest of the model's files and of all that the compiler is told, so a name
stands for one content for ever: what was compiled once is found again, and a new content is a new model to
the controller and the workers, beside the old one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mainspring.messages.model import TEXT_BYTES, ModelSpec, TensorSpec
from mainspring.messages.sequencing import Sequencing
from mainspring.repository.config_groups import WarmupInput
from mainspring.repository.model_config import ModelConfig, TensorConfig
from mainspring.repository.reading import DATA_TYPES, ConfigFault

DEFAULT_SIZES = (1, 2, 4, 8, 16)
"""Batch sizes of a model that asks for none (Clockwork, section 5.1)."""
DIGEST_DIGITS = 12
SEPARATOR = "@"
"""Separator between a model's name and its version; names that people choose don't have it."""


class Recipe(msgspec.Struct, frozen=True):
    """The instructions that the compiler gets beside the file."""

    batch_sizes: tuple[int, ...] | None
    """Batch sizes to compile; None for the compiler's default ones, of which it may leave some out."""
    shapes: dict[str, tuple[int, ...]] = {}
    """Dimensions of inputs, the batch first if there is one; -1 for one that stays as the file has it."""
    whole: bool | None = False
    """True if shapes have no axis for rows; None: where no such axis can be found, because the configuration
    asks for neither."""
    most: dict[str, int] = {}
    """Limits of open dimensions, by name."""
    pad: dict[str, float] = {}
    """Values with which inputs with open dimensions may be padded, by their names."""
    text_bytes: int = TEXT_BYTES
    """Longest text of inputs and outputs, in bytes."""
    sequencing: Sequencing | None = None
    """Same as `ModelSpec.sequencing`."""
    warmup: tuple[WarmupInput, ...] = ()
    """Rows that the model takes, of which samples are made."""
    optional: tuple[str, ...] = ()
    """Inputs that requests may leave out."""
    libraries: tuple[str, ...] = ()
    """Libraries of operators that it names, which run only where the cluster's operator allows them."""
    unverified: bool = False
    """True if it is served even where it runs on no sample."""


def recipe_of(config: ModelConfig) -> Recipe:
    """Return how a version of the model is compiled."""
    shapes = {}
    whole = is_whole(config)
    silent = whole is None and all(tensor.dims is None for tensor in config.inputs)
    for tensor in config.inputs if silent else (*config.inputs, *config.kept_inputs):
        dims = tensor.dims if tensor.reshape is None else tensor.reshape
        if dims is None:
            continue
        given = (1, *dims) if whole is False else dims
        if not given or max(given if whole else given[1:], default=1) > 0:
            # What is -1 beside a number stays open.
            shapes[tensor.name] = given
    return Recipe(
        _batch_sizes(config, whole=bool(whole)),
        shapes,
        whole,
        config.limits,
        config.pads,
        config.text_bytes,
        _sequencing(config),
        config.warmup,
        tuple([tensor.name for tensor in config.inputs if tensor.optional]),
        config.libraries,
        config.unverified,
    )


def _sequencing(config: ModelConfig) -> Sequencing | None:
    """Return what sequences are, with the initial states' dimensions without rows."""
    sequencing = config.sequencing
    if sequencing is None or is_whole(config) is not None:
        return sequencing
    states = [
        state if state.dims is None else msgspec.structs.replace(state, dims=state.dims[1:])
        for state in sequencing.states
    ]
    return msgspec.structs.replace(sequencing, states=tuple(states))


def artifact_name(model: str, version: int, files_digest: str, recipe: Recipe) -> str:
    """Return what the artifact of these files is called, such as ``net@3-0123456789ab``."""
    told: dict[str, Any] = {"batch_sizes": recipe.batch_sizes or DEFAULT_SIZES, "shapes": recipe.shapes}
    # What a recipe does not say is left out, so that artifacts of earlier releases are found.
    # Artifacts of releases that took an open first axis for rows all the same were called by `true`.
    told |= {"whole": "every axis"} if recipe.whole else {}
    told |= {"most": recipe.most} if recipe.most else {}
    told |= {"pad": recipe.pad} if recipe.pad else {}
    told |= {"text_bytes": recipe.text_bytes} if recipe.text_bytes != TEXT_BYTES else {}
    told |= {"batch_sizes_asked": True} if recipe.batch_sizes == DEFAULT_SIZES else {}
    told |= {"sequencing": recipe.sequencing} if recipe.sequencing is not None else {}
    told |= {"warmup": recipe.warmup} if recipe.warmup else {}
    told |= {"optional": recipe.optional} if recipe.optional else {}
    told |= {"libraries": recipe.libraries} if recipe.libraries else {}
    told |= {"unverified": True} if recipe.unverified else {}
    content = files_digest.encode() + msgspec.json.encode(told, order="deterministic")
    digest = hashlib.sha256(content).hexdigest()
    return f"{model}{SEPARATOR}{version}-{digest[:DIGEST_DIGITS]}"


def is_artifact_name(name: str) -> bool:
    """Say whether a stored model is a repository's, not one that was compiled by hand."""
    return name.partition(SEPARATOR)[2][:1].isdigit()


def model_and_version(name: str) -> tuple[str, int]:
    """Return which model and version an artifact is of, by its name."""
    model, _, rest = name.partition(SEPARATOR)
    return model, int(rest.partition("-")[0])


def served_spec(spec: ModelSpec, model: str, version: int, config: ModelConfig) -> ModelSpec:
    """Return an artifact's specification as clients see the model.

    Raises `ConfigFault` if the file says of a tensor what is not so.
    """
    if config.max_batch_size and not spec.whole and not spec.rows_in_front:
        axes = [f"{each.rows_axis} of {each.name!r}" for each in (*spec.inputs, *spec.outputs)]
        raise ConfigFault(
            f"max_batch_size is {config.max_batch_size} in config.pbtxt, for rows in front of each tensor; "
            f"the model's rows are axis {', '.join(axes)}: leave it out, or say 0 and whole shapes as dims"
        )
    return msgspec.structs.replace(
        spec,
        served_as=model,
        version=version,
        inputs=_as_configured(
            config, "input", (*config.inputs, *config.kept_inputs), spec.inputs, spec.whole
        ),
        outputs=_as_configured(
            config, "output", (*config.outputs, *config.kept_outputs), spec.outputs, spec.whole
        ),
    )


def is_whole(config: ModelConfig) -> bool | None:
    """Say whether ``dims`` are whole shapes, as far as the configuration tells; None if it does not.

    They are with a ``max_batch_size`` of 0, which is what its absence means beside ``dims``. The rows of a
    model with sequences are those of its states: there -1 in front of each input is the axis of rows.
    """
    tensors = (*config.inputs, *config.kept_inputs)
    shapes = [tensor.dims if tensor.reshape is None else tensor.reshape for tensor in tensors]
    known = [shape for shape in shapes if shape is not None]
    if config.max_batch_size or config.preferred_batch_sizes:
        return False if config.max_batch_size or known else None
    if config.sequencing is not None and all(shape[:1] == (-1,) for shape in known):
        return None
    return True if config.max_batch_size == 0 or any(tensor.dims is not None for tensor in tensors) else None


def _batch_sizes(config: ModelConfig, *, whole: bool) -> tuple[int, ...] | None:
    most = config.max_batch_size
    if whole:
        return (1,)
    if not most:
        preferred = config.preferred_batch_sizes
        return tuple(sorted({*DEFAULT_SIZES, *preferred})) if preferred else None
    powers = [1 << exponent for exponent in range(most.bit_length())]
    return tuple(sorted({1, most, *(config.preferred_batch_sizes or powers)}))


def _as_configured(
    config: ModelConfig,
    kind: str,
    given: Sequence[TensorConfig],
    tensors: Sequence[TensorSpec],
    whole: bool,
) -> tuple[TensorSpec, ...]:
    by_name: Mapping[str, TensorConfig] = {tensor.name: tensor for tensor in given}
    unknown = [name for name in by_name if name not in {tensor.name for tensor in tensors}]
    if unknown:
        known = ", ".join(tensor.name for tensor in tensors)
        raise ConfigFault(f"the model has no {kind} {unknown[0]!r}; it has {known or 'none'}")
    # Without max_batch_size the dimensions of a model that has rows have them among them.
    with_rows = not config.max_batch_size and not whole
    return tuple(
        _one_as_configured(by_name[tensor.name], tensor, with_rows=with_rows)
        if tensor.name in by_name
        else tensor
        for tensor in tensors
    )


def _one_as_configured(given: TensorConfig, tensor: TensorSpec, *, with_rows: bool) -> TensorSpec:
    """Return the tensor as clients see it; one of its configured dimensions is the rows, if it is there."""
    wanted = DATA_TYPES.get(given.data_type)
    kind = "string" if tensor.dtype.startswith("S") else tensor.dtype
    if wanted is not None and wanted != kind:
        right = next((name for name, each in DATA_TYPES.items() if each == kind), kind)
        raise ConfigFault(
            f"tensor {tensor.name!r} is {given.data_type} in config.pbtxt and {right} in the model"
        )
    if given.dims is None:
        return tensor
    at = tensor.rows_axis
    full = given.dims if given.reshape is None else given.reshape
    with_rows = with_rows and len(full) == len(tensor.shape) + 1
    behind = at + 1 if with_rows else at
    dims = given.dims[:at] + given.dims[behind:]
    inner = dims if given.reshape is None else given.reshape[:at] + given.reshape[behind:]
    if not _fits(inner, tensor.shape):
        beside = ", the rows apart" if with_rows or given.reshape is not None else ""
        raise ConfigFault(
            f"tensor {tensor.name!r} has dims {list(inner)} in config.pbtxt and {list(tensor.shape)} in the "
            f"model{beside}"
        )
    if inner == (1,) and not tensor.shape:
        return TensorSpec(tensor.name, tensor.dtype, dims, rows_axis=at, default=tensor.default)
    return tensor if given.reshape is None else _reshaped(tensor, dims, inner)


def _reshaped(tensor: TensorSpec, dims: tuple[int, ...], inner: tuple[int, ...]) -> TensorSpec:
    """Return the tensor with ``dims`` for clients, where the model has ``inner``.

    Each -1 of the one is the same size as that of the other, in their order.
    """
    seen, had = ([axis for axis, dim in enumerate(each) if dim == -1] for each in (dims, inner))
    fixed = [math.prod([dim for dim in each if dim != -1]) for each in (dims, inner)]
    moved = dict(zip(had, seen, strict=False))
    stuck = [axis for axis in (*[dim.axis for dim in tensor.open], *tensor.varies) if axis not in moved]
    others = [size for axis, size in enumerate(tensor.shape) if axis not in moved]
    if len(seen) != len(had) or stuck or fixed[0] != math.prod(others):
        raise ConfigFault(
            f"tensor {tensor.name!r} can't be reshaped from {list(dims)} to {list(tensor.shape)}: both must "
            "have the same number of elements, and as many dimensions of -1"
        )
    shape = list(dims)
    for axis, place in moved.items():
        shape[place] = tensor.shape[axis]
    return TensorSpec(
        tensor.name,
        tensor.dtype,
        tuple(shape),
        tuple([msgspec.structs.replace(dim, axis=moved[dim.axis]) for dim in tensor.open]),
        tuple([moved[axis] for axis in tensor.varies]),
        rows_axis=tensor.rows_axis,
        default=tensor.default,
    )


def _fits(dims: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    if dims == (1,) and not shape:
        # A scalar is written as one dimension of 1.
        return True
    return len(dims) == len(shape) and all(dim in (-1, size) for dim, size in zip(dims, shape, strict=True))
