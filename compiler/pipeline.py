"""From an ONNX model to an artifact in a store: where to start reading the compiler.

``reading`` gets the file; ``shapes``, ``versions``, ``normalise`` and ``batch`` give it one form; ``stock``
has ONNX Runtime optimise it; ``split`` takes the weights out; ``layout`` finds places for them; ``verify``
compares; ``profiler`` measures; ``store`` keeps. A model that can't be served, or whose outputs differ, is a
`CompileError` and is not stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import onnx

from mainspring.compiler.arena import Arena, place_tensors, weights_image
from mainspring.compiler.errors import CompileError, ExecutableError
from mainspring.compiler.executable import BoundModel, Executable
from mainspring.compiler.layout import lay_out
from mainspring.compiler.manifest import CPU, Manifest, Measured, Source, Verification
from mainspring.compiler.profiler import measure_infer, measure_load, measure_workspace
from mainspring.compiler.reading import read_model
from mainspring.compiler.reference import Prepared
from mainspring.compiler.shapes import Shapes, fix_shapes
from mainspring.compiler.split import Split, split
from mainspring.compiler.stock import optimise
from mainspring.compiler.store import Store, check_name
from mainspring.compiler.verify import verify
from mainspring.messages.model import Profile, TensorSpec

BATCH_SIZES = (1, 2, 4, 8, 16)
"""What models are compiled for unless someone says otherwise (Clockwork, section 5.1)."""

MOST_ROWS = 1024
"""Largest batch size that may be asked for."""


class Compiled(msgspec.Struct, frozen=True):
    """What a compilation did."""

    manifest: Manifest
    shared: bool
    """The executable was in the store already, from another model."""
    kept: bool = False
    """The model was in the store already, and nothing was done."""
    repaired: tuple[str, ...] = ()
    """Nodes whose baked batch was replaced."""


def parse_batch_sizes(text: str) -> tuple[int, ...]:
    """Return the batch sizes in ``1,2,4``; raise `CompileError` if they can't be."""
    try:
        return check_batch_sizes([int(part) for part in text.split(",")])
    except ValueError:
        raise CompileError(
            f"batch sizes {text!r} aren't numbers separated by commas, such as 1,2,4"
        ) from None


def check_batch_sizes(batch_sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the batch sizes, ascending; raise `CompileError` if they can't be."""
    if not batch_sizes or min(batch_sizes) < 1 or max(batch_sizes) > MOST_ROWS:
        raise CompileError(
            f"batch sizes {list(batch_sizes)} can't be: give one or more numbers from 1 to {MOST_ROWS}"
        )
    return tuple(sorted({*batch_sizes}))


def compile_file(
    path: Path,
    name: str,
    store: Store,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    shapes: Shapes | None = None,
) -> Compiled:
    """Compile an ONNX file into ``store`` as ``name``; raise `CompileError` or `StoreError`.

    ``shapes`` fixes dynamic dimensions of inputs.
    """
    check_name(name)
    sizes = check_batch_sizes(batch_sizes)
    model, digest = read_model(path)
    fix_shapes(model, shapes or {})
    store.check_writable()
    source = Source("onnx", str(path.resolve()), digest, shapes=dict(shapes or {}))
    return compile_model(model, name, store, sizes, source)


def compile_model(
    model: onnx.ModelProto,
    name: str,
    store: Store,
    batch_sizes: tuple[int, ...],
    source: Source,
    quick: bool = False,
) -> Compiled:
    """Compile a model into ``store``.

    It is compared with stock ONNX Runtime at every batch size. If ``quick`` and another model was, with the
    same executable, only the smallest two are compared: enough to see that the weights are where they belong.
    Raises `CompileError` for a model that can't be served, `StoreError` if it can't be stored.
    """
    prepared = Prepared(model, batch_sizes[-1])
    artifact = _Artifact(split(optimise(prepared.model), prepared.inputs, prepared.outputs))
    known = store.known_executable(artifact.parts.info.executable)
    before = known.measured if known else Measured()
    checked = batch_sizes
    if quick:
        checked = tuple(
            size for size in batch_sizes if size in batch_sizes[:2] or size not in before.infer_ns
        )
    try:
        bound = artifact.bind()
        verification = verify(bound, prepared, checked)
        measured = _measure(artifact, bound, batch_sizes, before)
    except ExecutableError as error:
        raise prepared.refusal(str(error)) from error
    facts = _Facts(name, prepared.inputs, prepared.outputs, batch_sizes, source, verification)
    manifest = _keep(artifact, measured, store, facts)
    return Compiled(manifest, shared=known is not None, repaired=tuple(prepared.repaired))


class _Facts(NamedTuple):
    """What the manifest says that is not in the artifact's files."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batch_sizes: tuple[int, ...]
    source: Source
    verification: Verification


class _Artifact:
    """A model taken apart, its weights in the pages of an arena."""

    def __init__(self, parts: Split) -> None:
        self.parts = parts
        self.layout = lay_out([array.nbytes for array in parts.weights])
        self.tensors = place_tensors(parts.info, self.layout)
        self.image = weights_image(self.tensors, parts.weights, self.layout.total_bytes)
        self.arena = Arena(self.image, self.layout.extents)
        self.arena.load()

    def bind(self, own_workspace: bool = False) -> BoundModel:
        """Open the executable as a worker does, with the weights in the arena."""
        executable = Executable(self.parts.graph, self.parts.info, own_workspace=own_workspace)
        return executable.bind(self.tensors, self.arena.address_of)


def _measure(
    artifact: _Artifact, bound: BoundModel, batch_sizes: tuple[int, ...], known: Measured
) -> Measured:
    """Return what was known of the executable, and by measurement what was not."""
    missing = [size for size in batch_sizes if size not in known.infer_ns]
    largest = batch_sizes[-1]
    workspace = dict(known.workspace_bytes)
    if largest not in workspace:
        workspace[largest] = measure_workspace(artifact.bind(own_workspace=True), largest)
    return Measured(
        infer_ns=known.infer_ns | measure_infer(bound, artifact.parts.info, missing),
        load_ns=known.load_ns or measure_load(artifact.arena),
        workspace_bytes=workspace,
    )


def _keep(artifact: _Artifact, measured: Measured, store: Store, facts: _Facts) -> Manifest:
    """Store all files of the artifact, the manifest last; return it."""
    info = msgspec.structs.replace(artifact.parts.info, measured=measured)
    store.put_executable(artifact.parts.graph, info)
    weights_hash, weights_bytes = store.put_weights([artifact.image.data])
    manifest = Manifest(
        name=facts.name,
        executable=info.executable,
        weights_hash=weights_hash,
        weights_bytes=weights_bytes,
        extents=artifact.layout.extents,
        tensors=artifact.tensors,
        inputs=facts.inputs,
        outputs=facts.outputs,
        batch_sizes=facts.batch_sizes,
        profiles={
            CPU: Profile({size: measured.infer_ns[size] for size in facts.batch_sizes}, measured.load_ns)
        },
        source=facts.source,
        verification=facts.verification,
        workspace_bytes=measured.workspace_bytes[facts.batch_sizes[-1]],
    )
    store.put_manifest(manifest)
    return manifest
