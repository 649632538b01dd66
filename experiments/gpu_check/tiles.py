"""Are tiles that were chosen by timing faster than those of the compiler's model? The main model with both.

``--tune-seconds`` bounds the search; its winners are kept in the store, where later compilations find them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from mainspring.cli.profiling.lone_device import device_for
from mainspring.compiler.artifact.manifest import CUDA, TVM
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.choosing.tuning import Tuner
from mainspring.experiments.gpu_check.beside_torch import DEVICE_PART, in_turns, run_of, sizes_of
from mainspring.experiments.gpu_check.settings import Settings
from mainspring.experiments.gpu_check.verdicts import Verdict, at_most, not_run, told
from mainspring.worker.engines.cuda.devices import find_devices
from mainspring.worker.engines.cuda.timing import DEVICE, GpuTimer

WHAT = "tiles chosen by timing"
SLOWER = 1.02


def check_tiles(settings: Settings) -> Iterator[Verdict]:
    """Compile the main model with a search, and run both in turns."""
    reason = missing(settings)
    if reason:
        yield not_run(WHAT, reason)
        return
    store = Store(settings.store(TVM))
    name = f"{settings.main}-tuned"
    searched = compile_tuned(settings, store, name)
    by_model, tuned = store.manifest(settings.main), store.manifest(name)
    same = "the same kernels" if by_model.executable == tuned.executable else "other kernels"
    yield told(WHAT, f"{searched} functions timed", f"{same} than by the compiler's model")
    specs = [by_model.spec(), tuned.spec()]
    with device_for(specs, settings.config(), copies=2) as device:
        page = 0
        for spec in specs:
            device.prepare(spec)
            device.load(spec, page)
            page += spec.pages
        for size in sizes_of(settings):
            runs = {each.name: run_of(device, each, size) for each in (by_model, tuned)}
            medians = in_turns(runs, settings)
            note = f"{medians[tuned.name] / 1e6:.4f} of {medians[by_model.name] / 1e6:.4f} ms, {DEVICE_PART}"
            ratio = medians[tuned.name] / medians[by_model.name]
            yield at_most(f"  EXEC {settings.main}, batch {size}: times the model's", ratio, SLOWER, "", note)


def missing(settings: Settings) -> str:
    """Return why nothing can be timed here; nothing if it can."""
    if settings.config().cuda_device != DEVICE or settings.engine != TVM:
        return f"the engine {TVM} has its kernels timed on the first GPU"
    if not settings.tune_seconds:
        return "it takes minutes: --tune-seconds 60 has kernels timed for as long"
    if settings.bundle or importlib.util.find_spec("tvm") is None:
        return "it takes TVM, which is not in a bundle" if settings.bundle else "TVM is not installed here"
    return ""


def compile_tuned(settings: Settings, store: Store, name: str) -> int:
    """Compile the main model with a search; return how many more kernels the store knows winners of then."""
    # Imported here, since a machine that checks a bundle has no compiler.
    from mainspring.compiler.pipeline import compile_model
    from mainspring.compiler.program.compiled import Target
    from mainspring.experiments.gpu_check.models import Job, model_of, source_of

    job = Job(TVM, name, settings.main, sizes_of(settings))
    gpu = find_devices()[DEVICE].gpu
    tuner = Tuner(store, GpuTimer, settings.tune_seconds)
    target = Target(TVM, CUDA, gpu.arch, gpu=gpu, tuner=tuner)
    before = store.winners()
    model, source = model_of(settings, job), source_of(settings, job)
    compile_model(model, name, store, job.batch_sizes, source, target=target)
    return store.winners() - before
