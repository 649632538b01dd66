"""What both servers serve: a model, copies of it in a store, and the requests that are sent to them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime

from mainspring.cli.profiling.lone_device import as_exec_thread
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.zoo.catalogue import build, compile_zoo
from mainspring.experiments.bench.foreign import CACHE
from mainspring.messages.model import ModelSpec
from mainspring.worker.realtime import Rights

Floats = npt.NDArray[np.float64]
Inputs = Mapping[str, npt.NDArray[Any]]
"""The tensors of a request, by name."""

REST_S = 0.004


def runner(model: onnx.ModelProto, requests: Sequence[Inputs]) -> Callable[[float], Floats]:
    """Return what runs the requests in turn for so many seconds, one by one, and returns durations in ms."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    turns = itertools.cycle(requests)
    rights = Rights(realtime=True)

    def run(seconds: float) -> Floats:
        return as_exec_thread(rights, lambda: _durations_ms(lambda: session.run(None, next(turns)), seconds))

    run(0.0)
    return run


def _durations_ms(function: Callable[[], object], seconds: float) -> Floats:
    found: list[float] = []
    end = time.perf_counter() + seconds
    while not found or time.perf_counter() < end:
        time.sleep(REST_S)
        begin = time.perf_counter()
        function()
        found.append((time.perf_counter() - begin) * 1e3)
    return np.array(found)


def in_time_percent(
    instants_s: Floats, durations_ms: Floats, deadline_ms: float, beside_ms: float, seed: int = 0
) -> float:
    """Return the percentage of arrivals that one core answers in time, one by one and in their order.

    Each takes one of ``durations_ms``, drawn with ``seed`` and known before; what would be late is not begun.
    ``beside_ms`` of a request's time pass around its execution, half of them before it.
    """
    drawn = np.random.default_rng(seed).choice(durations_ms, len(instants_s))
    free_ms = 0.0
    answered = 0
    for due_ms, duration_ms in zip(instants_s * 1e3, drawn, strict=True):
        end_ms = max(due_ms + beside_ms / 2, free_ms) + duration_ms
        if end_ms + beside_ms / 2 <= due_ms + deadline_ms:
            free_ms = end_ms
            answered += 1
    return 100 * answered / len(instants_s)


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
