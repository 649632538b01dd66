"""What both servers serve: a model, copies of it in a store, and the requests that are sent to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import onnx

from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.compiler.zoo.catalogue import build
from mainspring.compiler.zoo.copies import compile_zoo
from mainspring.experiments.bench import minilm
from mainspring.experiments.bench.foreign import CACHE, Unavailable
from mainspring.experiments.bench.triton.possible import Inputs
from mainspring.messages.model import ModelSpec

STORE = CACHE / "triton-store"
MOST_COPIES = 8
_SENTENCES = 500
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
    above_triton: bool = False
    """Whether Mainspring is to answer more in time than Triton, instead of a percentage."""


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


def sentences() -> Subject:
    """MiniLM, whose requests are as long as a text's sentences; raises `Unavailable` without its file."""
    file = minilm.model_file()

    def specs(path: Path, copies: int) -> list[ModelSpec]:
        store, found = Store(path), []
        most = {minilm.SYMBOL: minilm.LONGEST}
        manifest = compile_file(file, "minilm-1", store, most=most, pad=minilm.PAD).manifest
        for number in range(1, copies + 1):
            copy = msgspec.structs.replace(manifest, name=f"minilm-{number}")
            store.put_manifest(copy)
            found.append(copy.spec())
        return found

    def models(chosen: Sequence[ModelSpec]) -> dict[str, onnx.ModelProto]:
        return {spec.name: onnx.load(file) for spec in chosen}

    def inputs() -> list[Inputs]:
        return [minilm.tensors(ids) for ids in minilm.drawn(_SENTENCES, _SEED)]

    return Subject(specs, models, inputs, 100.0, {}, above_triton=True)


SUBJECTS: dict[str, Callable[[], Subject]] = {"squeezenet": squeezenet, "minilm": sentences}


def subject_of(name: str) -> Subject:
    """Return a subject by its name; raise `Unavailable` for one that can't be had."""
    if name not in SUBJECTS:
        raise Unavailable(f"there is no model {name!r} to compare; there are {', '.join(SUBJECTS)}")
    return SUBJECTS[name]()
