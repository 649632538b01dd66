"""A model whose weights are one tensor of 411 MB, which needs 25 adjacent pages: loaded, run, compared."""

from __future__ import annotations

from mainspring.cli.profiling.lone_device import device_for
from mainspring.compiler.artifact.store import Store
from mainspring.experiments.gpu_check.outputs import compare_batch
from mainspring.experiments.gpu_check.references import reference_of
from mainspring.experiments.gpu_check.settings import LARGE, LARGE_SIZES, Settings
from mainspring.experiments.gpu_check.verdicts import Verdict, at_most, told


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
