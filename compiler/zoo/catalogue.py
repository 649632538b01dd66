"""The zoo's architectures by name, usable versions of the onnx package's, and copies of them in a store.

The onnx package's "light" models are the real networks of the ONNX model zoo with their weights replaced by
constants: IR 3, opset 9, a batch of 1 baked in. The compiler's own normalisation opens the batch; here the
constants become plans for random weights, by the use of each.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test import data

from mainspring.compiler.artifact.errors import CompileError, StoreError
from mainspring.compiler.artifact.manifest import TVM, Manifest, Source
from mainspring.compiler.artifact.plan import read_plans
from mainspring.compiler.artifact.python_folder import DESCRIPTION
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.artifact.target import check_target
from mainspring.compiler.choosing.durations import Judge
from mainspring.compiler.pipeline import (
    BATCH_SIZES,
    DEFAULT_TARGET,
    Compiled,
    check_batch_sizes,
    check_target_names,
    compile_model,
)
from mainspring.compiler.program.compiled import Target
from mainspring.compiler.python_models.compiling import compile_folder
from mainspring.compiler.reading.model_file import read_model
from mainspring.compiler.reading.normalise import normalise
from mainspring.compiler.rows.open_batch import open_batch, repair_reshapes
from mainspring.compiler.rows.proving import settled
from mainspring.compiler.zoo.networks import (
    Architecture,
    Plan,
    Role,
    bert,
    digits,
    instantiate,
    mobilenet,
    resnet,
    resnet_small_images,
)
from mainspring.messages.choices import one_of

_STATISTICS = {1: Role.SCALE, 2: Role.BIAS, 3: Role.BIAS, 4: Role.VARIANCE}
"""Roles of the inputs of BatchNormalization."""

_THROUGH = {"Unsqueeze", "Reshape"}
"""Operators that a weight may pass before it is used."""


def light(name: str) -> Architecture:
    """Return the architecture of ``light_NAME.onnx``, its input called ``data`` and its output ``output``.

    Raises `CompileError` if the onnx package does not hold it.
    """
    path = Path(data.__path__[0]) / "light" / f"light_{name}.onnx"
    if not path.exists():
        raise CompileError(f"the onnx package here has no {path}; install onnx 1.17 or newer from PyPI")
    shipped = read_model(path)[0]
    _empty_constants(shipped.graph)
    model = normalise(shipped)
    open_batch(model)
    repair_reshapes(model, 1)
    _rename(model.graph)
    plans = _plan(model.graph)
    planned = {plan.name for plan in plans}
    used = {name for node in model.graph.node for name in node.input}
    kept = [t for t in model.graph.initializer if t.name not in planned and t.name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    return Architecture(model, tuple(plans))


def _empty_constants(graph: onnx.GraphProto) -> None:
    """Replace the nodes that fill a weight with one number by an initializer of its shape without data.

    The numbers are useless, and VGG-19's would take half a gigabyte.
    """
    shapes = {tensor.name: tensor for tensor in graph.initializer}
    kept = []
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            dims = numpy_helper.to_array(shapes[node.input[0]]).tolist()
            float_type = onnx.TensorProto.FLOAT
            graph.initializer.append(onnx.TensorProto(name=node.output[0], dims=dims, data_type=float_type))
        else:
            kept.append(node)
    del graph.node[:]
    graph.node.extend(kept)


def _rename(graph: onnx.GraphProto) -> None:
    """Call the input ``data`` and the output ``output``."""
    names = {graph.input[0].name: "data", graph.output[0].name: "output"}
    graph.input[0].name, graph.output[0].name = names.values()
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]


def _plan(graph: onnx.GraphProto) -> list[Plan]:
    """Plan every float initializer that is used, in the order of use."""
    shapes = {t.name: tuple(t.dims) for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT}
    users: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
    for node in graph.node:
        for index, name in enumerate(node.input):
            users.setdefault(name, []).append((node, index))
    return [_plan_one(name, shapes[name], users) for name in users if name in shapes]


def _plan_one(name: str, shape: tuple[int, ...], users: dict[str, list[tuple[onnx.NodeProto, int]]]) -> Plan:
    node, index = users[name][0]
    while node.op_type in _THROUGH:
        node, index = users[node.output[0]][0]
    if node.op_type == "BatchNormalization":
        role = _STATISTICS[index]
        if role is Role.SCALE and any(user.op_type == "Sum" for user, _ in users.get(node.output[0], [])):
            role = Role.BRANCH_SCALE
        return Plan(name, shape, role)
    if node.op_type in ("Conv", "Gemm") and index == 1:
        return Plan(name, shape, Role.KERNEL, math.prod(shape[1:]))
    return Plan(name, shape, Role.SCALE if node.op_type == "Mul" else Role.BIAS)


_CATALOGUE: dict[str, Callable[[], Architecture]] = {
    "alexnet": partial(light, "bvlc_alexnet"),
    "bert-base": partial(bert, "bert-base", 12, 768),
    "bert-mini": partial(bert, "bert-mini", 4, 256),
    "bert-small": partial(bert, "bert-small", 4, 512),
    "bert-tiny": partial(bert, "bert-tiny", 2, 128),
    "densenet121": partial(light, "densenet121"),
    "digits": partial(digits, "digits"),
    "inception-v1": partial(light, "inception_v1"),
    "inception-v2": partial(light, "inception_v2"),
    "mobilenet": partial(mobilenet, "mobilenet"),
    "resnet18": partial(resnet, "resnet18", (2, 2, 2, 2)),
    "resnet20": partial(resnet_small_images, "resnet20", 3),
    "resnet34": partial(resnet, "resnet34", (3, 4, 6, 3)),
    "resnet50": partial(light, "resnet50"),
    "resnet56": partial(resnet_small_images, "resnet56", 9),
    "shufflenet": partial(light, "shufflenet"),
    "squeezenet": partial(light, "squeezenet"),
    "vgg19": partial(light, "vgg19"),
    "zfnet512": partial(light, "zfnet512"),
}


def names() -> list[str]:
    """Return the names of all architectures, sorted."""
    return sorted(_CATALOGUE)


def python_models() -> dict[str, Path]:
    """Return the folders of the zoo's Python models by name: what graphs need before and behind a network."""
    return {path.parent.name: path.parent for path in sorted(_PYTHON.glob(f"*/{DESCRIPTION}"))}


def build(name: str, seed: int = 0) -> onnx.ModelProto:
    """Return a model of the architecture ``name``, its weights drawn with ``seed``, its batch axis open.

    Raises `CompileError` for a name that is not in the zoo.
    """
    return instantiate(architecture_of(name), np.random.default_rng([seed, zlib.crc32(name.encode())]))


@functools.cache
def architecture_of(name: str) -> Architecture:
    """Return the architecture ``name``; raise `CompileError` for a name that is not in the zoo."""
    if name not in _CATALOGUE:
        known = [*names(), *python_models()]
        raise CompileError(f"the zoo has no {name!r}: it has {one_of(name, known)}")
    return _CATALOGUE[name]()


_PYTHON = Path(__file__).with_name("python")
MOST_COPIES = 10_000


def compile_zoo(
    architectures: Sequence[str],
    store: Store,
    copies: int = 1,
    seed: int = 0,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    target: Target = DEFAULT_TARGET,
    judge: Judge | None = None,
) -> Iterator[Compiled]:
    """Compile ``copies`` of each architecture into ``store``, yielding each when it is done.

    A single copy has the architecture's name, several copies are called ``resnet50-1``, ``resnet50-2``...,
    with seeds that count up from ``seed``. A copy that is already in the store is kept. Python models have
    neither seed, nor batch sizes but their own. ``judge`` is
    `compile_model`'s. Raises `CompileError` or `StoreError`; names and numbers are checked before anything is
    compiled.
    """
    sizes = check_batch_sizes(batch_sizes)
    check_target_names(target, judge)
    if not 1 <= copies <= MOST_COPIES:
        raise CompileError(f"{copies} copies can't be: choose from 1 to {MOST_COPIES}")
    if seed < 0:
        raise CompileError(f"seed {seed} can't be: it is 0 or more")
    for architecture in architectures:
        if architecture not in names() and architecture not in python_models():
            build(architecture)
    return _compile(architectures, store, copies, seed, sizes, target, judge)


def _compile(
    architectures: Sequence[str],
    store: Store,
    copies: int,
    seed: int,
    sizes: tuple[int, ...],
    target: Target,
    judge: Judge | None,
) -> Iterator[Compiled]:
    for architecture in architectures:
        for copy in range(copies):
            name = architecture if copies == 1 else f"{architecture}-{copy + 1}"
            if (folder := python_models().get(architecture)) is not None:
                yield compile_folder(folder, name, store, zoo=architecture)
                continue
            source = Source(
                "zoo",
                architecture,
                seed=seed + copy,
                engine=target.engine,
                device=target.device,
                precision=target.precision,
            )
            manifest = _kept(store, name, source, sizes)
            if manifest is not None:
                yield Compiled(manifest, shared=True, kept=True)
            else:
                store.check_writable()
                model = build(architecture, seed + copy)
                yield compile_model(model, name, store, sizes, source, quick=True, target=target, judge=judge)


def _kept(store: Store, name: str, source: Source, sizes: tuple[int, ...]) -> Manifest | None:
    """Return the manifest of exactly this copy if the store holds it whole and it can be run here."""
    try:
        manifest = store.manifest(name)
        check_target(store.executable_info(manifest), "")
        store.verify(name)
        if manifest.engine == TVM:
            read_plans(store, manifest)
    except StoreError:
        return None
    if manifest.source != source or manifest.batch_sizes != sizes:
        return None
    return settled(store, manifest)
