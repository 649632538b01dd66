"""Device memory that a session of ONNX Runtime takes. A worker leaves room for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from mainspring.cli.profiling.lone_device import LoneDevice
from mainspring.compiler.artifact.manifest import Manifest
from mainspring.compiler.artifact.store import Store
from mainspring.experiments.gpu_check.settings import ONNXRUNTIME, Settings, unavailable
from mainspring.experiments.gpu_check.verdicts import Verdict, at_most, not_run, told
from mainspring.messages.model import PAGE_BYTES
from mainspring.worker.config import MIB
from mainspring.worker.engines.cuda.driver import Driver, open_driver
from mainspring.worker.engines.cuda.engine import CudaEngine
from mainspring.worker.engines.cuda.memory import SESSION_BYTES

WHAT = "memory of a session of ONNX Runtime"
MODELS = 5
"""The smallest, whose kernels take little; the first also takes the arena and the libraries."""


def check_sessions(settings: Settings) -> Iterator[Verdict]:
    """Prepare a few models one after the other and compare the device's free memory."""
    number = settings.config(ONNXRUNTIME).cuda_device
    reason = "only a GPU has memory of its own" if number is None else unavailable(settings, ONNXRUNTIME)
    stored = [] if reason else Store(settings.store(ONNXRUNTIME)).manifests()
    chosen = smallest([each for each in stored if each.engine == ONNXRUNTIME])
    if number is None or len(chosen) < 2:
        yield not_run(WHAT, reason or f"two models compiled for {ONNXRUNTIME} are needed")
        return
    found = []
    for manifest, bytes_ in zip(chosen, taken(settings, open_driver(number), chosen), strict=True):
        found.append(bytes_)
        sessions = len(manifest.batch_sizes)
        yield told(f"  {manifest.name}", f"{bytes_ / MIB:.0f} MiB", f"of device memory, {sessions} sessions")
    yield judged(chosen, found)


def smallest(manifests: Sequence[Manifest]) -> list[Manifest]:
    """Return a few models with executables of their own, those with the fewest weights."""
    by_executable: dict[str, Manifest] = {}
    for manifest in sorted(manifests, key=lambda each: each.weights_bytes):
        by_executable.setdefault(manifest.executable, manifest)
    return [*by_executable.values()][:MODELS]


def taken(settings: Settings, driver: Driver, manifests: Sequence[Manifest]) -> Iterator[int]:
    """Yield by how many bytes the device's free memory falls as each of the models is prepared."""
    config = msgspec.structs.replace(
        settings.config(manifests[0].engine),
        store=str(settings.store(manifests[0].engine)),
        pages=max(manifest.pages for manifest in manifests),
        io_bytes=64 * MIB,
        host_weights_bytes=sum(manifest.pages for manifest in manifests) * PAGE_BYTES,
    )
    with LoneDevice(CudaEngine(config, driver), config.pages) as device:
        free = driver.memory().free_bytes
        for manifest in manifests:
            device.prepare(manifest.spec())
            before, free = free, driver.memory().free_bytes
            yield before - free


def judged(manifests: Sequence[Manifest], taken_bytes: Sequence[int]) -> Verdict:
    """Judge the most that a session takes, without what the first model takes for all."""
    each = {
        manifest.name: bytes_ / len(manifest.batch_sizes) / MIB
        for manifest, bytes_ in zip(manifests[1:], taken_bytes[1:], strict=True)
    }
    worst = max(each, key=lambda name: each[name])
    note = f"{worst}, the most of {len(each)}; {manifests[0].name} took the arena and the libraries too"
    return at_most(WHAT, each[worst], SESSION_BYTES / MIB, "MiB", note)
