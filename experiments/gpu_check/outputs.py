"""Are the outputs those of the reference? Every model of the zoo, at a small and a larger batch size."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence

import numpy as np

from mainspring.cli.profiling.lone_device import LoneDevice, device_for
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.verify import RELATIVE_TOLERANCE, SCALE_TOLERANCE
from mainspring.experiments.gpu_check.references import Array, Reference, reference_of
from mainspring.experiments.gpu_check.settings import Settings
from mainspring.experiments.gpu_check.verdicts import State, Verdict, failed, told
from mainspring.messages.model import ModelSpec


def check_outputs(settings: Settings, engine: str) -> Iterator[Verdict]:
    """Compare every model that the engine's store holds with its reference.

    Yields a line for each, and at last what is judged.
    """
    store = Store(settings.store(engine))
    specs = {name: store.manifest(name).spec() for name in settings.architectures if name in store.names()}
    worst: dict[str, float] = {}
    broken: dict[str, str] = {}
    if not specs:
        yield from verdicts(engine, settings.architectures, worst, broken)
        return
    with device_for(list(specs.values()), settings.config(engine), copies=1) as device:
        for name, spec in specs.items():
            try:
                worst[name] = compare(device, spec, reference_of(settings, spec), settings.few_sizes)
                yield told(f"  {name}, engine {engine}", f"off by {worst[name]:.3g} tolerances")
            except Exception as error:
                traceback.print_exc()
                broken[name] = str(error) or repr(error)
                yield failed(f"  {name}, engine {engine}", broken[name])
    yield from verdicts(engine, settings.architectures, worst, broken)


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
        told("  largest difference", f"{largest:.3g} of the tolerance", _tolerance()),
    ]


def compare(device: LoneDevice, spec: ModelSpec, reference: Reference, sizes: Sequence[int]) -> float:
    """Return how far the outputs are off at worst, in tolerances; infinite for those that are no numbers."""
    device.prepare(spec)
    try:
        device.load(spec)
        return max(compare_batch(device, spec, reference, size) for size in sizes)
    finally:
        device.release(spec)


def compare_batch(device: LoneDevice, spec: ModelSpec, reference: Reference, size: int) -> float:
    """Return how far the outputs of one batch of a resident model are off, in tolerances."""
    inputs, expected = reference(size)
    found = device.run(spec, size, inputs)
    return max(in_tolerances(ours, theirs) for ours, theirs in zip(found, expected, strict=True))


def in_tolerances(found: Array, expected: Array) -> float:
    """Return the largest difference of an element, as a multiple of what is tolerated there."""
    ours = found.astype(np.float64).reshape(-1)
    theirs = expected.astype(np.float64).reshape(-1)
    tolerated = RELATIVE_TOLERANCE * np.abs(theirs) + SCALE_TOLERANCE * np.abs(theirs).max(initial=0.0)
    off = np.abs(ours - theirs) / np.maximum(tolerated, np.finfo(np.float64).tiny)
    largest = float(off.max(initial=0.0))
    return largest if np.isfinite(largest) else np.inf


def _tolerance() -> str:
    return f"which is {RELATIVE_TOLERANCE:g} of the element plus {SCALE_TOLERANCE:g} of the largest one"
