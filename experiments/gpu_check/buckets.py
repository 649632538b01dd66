"""A model with lengths, which has kernels for each bucket: its outputs at the ceilings of every one.

The worker pads what is shorter before a GPU sees it, so the ceilings' shapes are all that one computes.
"""

from __future__ import annotations

from collections.abc import Iterator

from mainspring.cli.profiling.lone_device import LoneDevice, device_for
from mainspring.compiler.artifact.manifest import Manifest
from mainspring.compiler.artifact.store import Store
from mainspring.experiments.gpu_check.outputs import farthest
from mainspring.experiments.gpu_check.references import reference_of
from mainspring.experiments.gpu_check.settings import LENGTHS, LENGTHS_SIZES, TVM, Settings
from mainspring.experiments.gpu_check.verdicts import Verdict, at_most, not_run, told
from mainspring.messages.model import bucket_name

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
    """Return how far the outputs of a bucket are off at worst, in tolerances."""
    spec = manifest.spec()
    reference = reference_of(settings, spec.at(bucket))
    return max(
        farthest(device.run(spec, size, batch.inputs, bucket), batch.outputs, manifest.precision)
        for size in LENGTHS_SIZES
        for batch in [reference(size)]
    )


def _durations(device: LoneDevice, manifest: Manifest, bucket: tuple[int, ...]) -> str:
    """Return the shortest of some runs at each batch size."""
    found = []
    for size in LENGTHS_SIZES:
        run = device.infer(manifest.spec(), size, bucket)
        found.append(f"{size}: {min(run() for _ in range(RUNS)) / 1e6:.3f}")
    return f"{', '.join(found)} ms"
