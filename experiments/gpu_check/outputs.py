"""Are the outputs those of the reference? Every model of the zoo, at a small and a larger batch size."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from mainspring.cli.profiling.lone_device import LoneDevice, device_for, random_rows
from mainspring.compiler.artifact.manifest import PRECISIONS, Manifest
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.choosing.tolerances import in_tolerances, tolerance_of
from mainspring.experiments.gpu_check.settings import (
    LARGE,
    LARGE_SIZES,
    LENGTHS,
    LENGTHS_SIZES,
    TVM,
    Settings,
)
from mainspring.experiments.gpu_check.verdicts import State, Verdict, at_most, failed, not_run, told
from mainspring.messages.model import ModelSpec, bucket_name

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


RUNS = 20


def check_buckets(settings: Settings) -> Iterator[Verdict]:
    """Compare every bucket at each batch size with its reference; tell how long its INFERs take."""
    what = "a model with lengths: outputs off, at each bucket"
    if settings.on_gpu and settings.engine != TVM:
        yield not_run(what, "only the engine tvm has kernels for buckets on a GPU")
        return
    store = Store(settings.store(settings.engine))
    if LENGTHS not in store.names():
        yield not_run(what, f"{LENGTHS} is not compiled")
        return
    manifest = store.manifest(LENGTHS)
    spec = manifest.spec()
    off: dict[str, float] = {}
    with device_for([spec], settings.config(), copies=1) as device:
        device.prepare(spec)
        device.load(spec)
        for bucket in spec.buckets:
            off[bucket_name(bucket)] = _compare(device, manifest, settings, bucket)
            yield told(f"  INFER at {bucket_name(bucket)}", _durations(device, manifest, bucket))
    worst = max(off, key=off.__getitem__)
    note = f"{len(off)} buckets, {worst} the farthest"
    yield at_most(what, off[worst], 1, "tolerances", note)


def _compare(device: LoneDevice, manifest: Manifest, settings: Settings, bucket: tuple[int, ...]) -> float:
    spec = manifest.spec()
    reference = reference_of(settings, spec.at(bucket))
    return max(
        farthest(device.run(spec, size, batch.inputs, bucket), batch.outputs, manifest.precision)
        for size in LENGTHS_SIZES
        for batch in [reference(size)]
    )


def _durations(device: LoneDevice, manifest: Manifest, bucket: tuple[int, ...]) -> str:
    found = []
    for size in LENGTHS_SIZES:
        run = device.infer(manifest.spec(), size, bucket)
        found.append(f"{size}: {min(run() for _ in range(RUNS)) / 1e6:.3f}")
    return f"{', '.join(found)} ms"


def check_large_tensor(settings: Settings) -> list[Verdict]:
    """Load the model behind other pages, so that its extent does not begin with the memory, and compare."""
    manifest = Store(settings.store(settings.engine)).manifest(LARGE)
    spec = manifest.spec()
    reference = reference_of(settings, spec)
    with device_for([spec], settings.config(), copies=2) as device:
        device.prepare(spec)
        load_ns = device.load(spec, first_page=spec.pages // 2)
        off = max(compare_batch(device, manifest, reference, size) for size in LARGE_SIZES)
    size = f"{spec.weights_bytes / 1e6:.0f} MB"
    return [
        at_most(
            f"a tensor of {size}: outputs off", off, 1, "tolerances", f"extents of {list(spec.extents)} pages"
        ),
        told("  its LOAD", f"{load_ns / 1e6:.2f} ms", f"{spec.weights_bytes / load_ns:.2f} GB/s"),
    ]


class Compared(NamedTuple):
    """A model of a store, and what its outputs are compared with."""

    manifest: Manifest
    original: ModelSpec
    """The model whose reference it has: its own, or in another precision the one that it was made of."""
    sizes: Sequence[int]


def check_outputs(settings: Settings, engine: str) -> Iterator[Verdict]:
    """Compare every model that the engine's store holds with its reference.

    Yields a line for each, and at last what is judged.
    """
    models = compared(settings, engine)
    wanted = [*settings.architectures, *(settings.rounded if engine == TVM else ())]
    worst: dict[str, float] = {}
    broken: dict[str, str] = {}
    if not models:
        yield from verdicts(engine, wanted, worst, broken)
        return
    specs = [each.manifest.spec() for each in models.values()]
    with device_for(specs, settings.config(engine), copies=1) as device:
        for name, each in models.items():
            try:
                reference = reference_of(settings, each.original)
                worst[name] = compare(device, each.manifest, reference, each.sizes)
                yield told(f"  {name}, engine {engine}", f"off by {worst[name]:.3g} tolerances")
            except Exception as error:
                traceback.print_exc()
                broken[name] = str(error) or repr(error)
                yield failed(f"  {name}, engine {engine}", broken[name])
    yield from verdicts(engine, wanted, worst, broken)


def compared(settings: Settings, engine: str) -> dict[str, Compared]:
    """Return the models of an engine's store that have a reference, by their names."""
    store = Store(settings.store(engine))
    there = {manifest.name: manifest for manifest in store.manifests()}
    found = {
        name: Compared(there[name], there[name].spec(), settings.few_sizes)
        for name in settings.architectures
        if name in there
    }
    if engine == TVM and settings.main in there:
        main = there[settings.main].spec()
        found |= {
            name: Compared(there[name], main, there[name].batch_sizes)
            for name in settings.rounded
            if name in there
        }
    return found


def verdicts(
    engine: str, wanted: Sequence[str], worst: dict[str, float], broken: dict[str, str]
) -> list[Verdict]:
    """Judge how far each model's outputs are off, in tolerances; ``broken`` says why a model has none."""
    wrong = [name for name, off in worst.items() if not off <= 1]
    absent = [name for name in wanted if name not in worst and name not in broken]
    complaints = [f"{name} is off by {worst[name]:.3g} tolerances" for name in wrong]
    complaints += [f"{name}: {reason}" for name, reason in broken.items()]
    complaints += [f"not compiled: {', '.join(absent)}"] if absent else []
    right = len(worst) - len(wrong)
    met = right == len(wanted)
    largest = max(worst.values(), default=0.0)
    return [
        Verdict(
            what=f"models with the expected outputs, engine {engine}",
            state=State.MET if met else State.MISSED,
            wanted=f"all {len(wanted)}",
            found=str(right),
            note="; ".join(complaints)[:400],
        ),
        told("  largest difference", f"{largest:.3g} of the tolerance", _tolerances()),
    ]


def compare(device: LoneDevice, manifest: Manifest, reference: Reference, sizes: Sequence[int]) -> float:
    """Return how far the outputs are off at worst, in tolerances; infinite for those that are not numbers."""
    spec = manifest.spec()
    device.prepare(spec)
    try:
        device.load(spec)
        return max(compare_batch(device, manifest, reference, size) for size in sizes)
    finally:
        device.release(spec)


def compare_batch(device: LoneDevice, manifest: Manifest, reference: Reference, size: int) -> float:
    """Return how far the outputs of one batch of a resident model are off, in tolerances."""
    inputs, expected = reference(size)
    return farthest(device.run(manifest.spec(), size, inputs), expected, manifest.precision)


def farthest(found: Sequence[Array], expected: Sequence[Array], precision: str) -> float:
    """Return how far outputs are off at worst, in what a precision allows."""
    allowed = tolerance_of(precision)
    return max(in_tolerances(ours, theirs, allowed) for ours, theirs in zip(found, expected, strict=True))


def _tolerances() -> str:
    limits = [(name, tolerance_of(name)) for name in PRECISIONS]
    each = ", ".join(f"{allowed.relative:g} and {allowed.scale:g} at {name}" for name, allowed in limits)
    return f"which is a share of the element plus one of the largest: {each}"
