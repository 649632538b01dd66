"""What a model's outputs have to be: those of stock ONNX Runtime here, or those that a bundle brought."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from mainspring.cli.profiling.lone_device import random_rows
from mainspring.experiments.gpu_check.settings import LARGE, LENGTHS, Settings
from mainspring.messages.model import ModelSpec

if TYPE_CHECKING:
    import onnx

Array = npt.NDArray[np.generic]


class Batch(NamedTuple):
    """A batch as it goes in, and as it has to come out; batch axis first."""

    inputs: list[Array]
    outputs: list[Array]


Reference = Callable[[int], Batch]
"""Returns a batch of a size."""


def reference_of(settings: Settings, spec: ModelSpec) -> Reference:
    """Return a model's reference.

    Raises `BundleError` for outputs that a bundle has not, and `CompileError` for a model that the zoo has
    not.
    """
    if settings.bundle:
        # Imported here, since a bundle's files take the arrays of this module.
        from mainspring.experiments.gpu_check.bundle.contents import read_batch

        return lambda size: read_batch(Path(settings.bundle), spec, size)
    # Imported here, since a machine that checks a bundle need not have ONNX.
    from mainspring.compiler.zoo import build
    from mainspring.experiments.gpu_check.models import large_model, lengths_model

    if spec.name.partition("@")[0] == LENGTHS:
        # One of its buckets.
        return stock(lengths_model(), spec)
    return stock(large_model(settings.large_shape) if spec.name == LARGE else build(spec.name), spec)


def stock(model: onnx.ModelProto, spec: ModelSpec) -> Reference:
    """Return ONNX Runtime as it comes, on the CPU, for the original model and random inputs."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [tensor.name for tensor in spec.outputs]

    def batch(size: int) -> Batch:
        rows = random_rows(spec, size, seed=size)
        given = {tensor.name: row for tensor, row in zip(spec.inputs, rows, strict=True)}
        return Batch(rows, session.run(names, given))

    return batch
