"""What both servers serve: a model, copies of it in a store, and the requests that are sent to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import onnx

from mainspring.compiler.artifact.store import Store
from mainspring.compiler.zoo.catalogue import build, compile_zoo
from mainspring.experiments.bench.foreign import CACHE
from mainspring.experiments.bench.triton.possible import Inputs
from mainspring.messages.model import ModelSpec

STORE = CACHE / "triton-store"
MOST_COPIES = 8
_SEED = 1


class Subject(msgspec.Struct, frozen=True):
    """A model that is compared."""

    specs: Callable[[Path, int], list[ModelSpec]]
    """Returns so many copies in the store at a path, compiled unless they are there."""
    models: Callable[[Sequence[ModelSpec]], dict[str, onnx.ModelProto]]
    """Returns the ONNX model of each copy, by its name."""
    inputs: Callable[[], list[Inputs]]
    """Returns the tensors of the requests, which come in turn and over again."""
    deadline_ms: float
    wanted: dict[float, float]
    """For each part of Triton's saturation, the percentage that Mainspring is to answer in time."""


def squeezenet() -> Subject:
    """An image classifier of one fixed shape."""

    def specs(store: Path, copies: int) -> list[ModelSpec]:
        compiled = list(compile_zoo(["squeezenet"], Store(store), MOST_COPIES))
        return [each.manifest.spec() for each in compiled][:copies]

    def models(chosen: Sequence[ModelSpec]) -> dict[str, onnx.ModelProto]:
        return {spec.name: build("squeezenet", seed) for seed, spec in enumerate(chosen)}

    def inputs() -> list[Inputs]:
        model = build("squeezenet", 0)
        (taken,) = model.graph.input
        shape = [dim.dim_value for dim in taken.type.tensor_type.shape.dim[1:]]
        image = np.random.default_rng(_SEED).random((1, *shape)).astype(np.float32)
        return [{taken.name: image}]

    return Subject(specs, models, inputs, 25.0, {0.5: 99.5, 0.8: 99.0, 1.0: 97.0, 1.5: 75.0})
