"""Timing of engines on this machine's GPU, each in a process of its own.

An engine's artifact goes into a scratch store and is measured there by ``mainspring profile``: kernels that a
GPU can't run may take CUDA down with them, in that process alone, and the compiler goes on without memory
that is locked or a GPU that is in use (`mainspring.compiler.choosing.durations` asks, this measures).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import msgspec

from mainspring.cli.profiling.profiling import Measured
from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.manifest import CUDA, FP32, TVM
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.choosing.durations import AUTO, Contender, Judged
from mainspring.compiler.choosing.tuning import SECONDS as SECONDS_TO_TUNE
from mainspring.compiler.choosing.tuning import Tuner
from mainspring.compiler.pipeline import check_precision
from mainspring.compiler.program.compiled import DEFAULT_ARCH, Target
from mainspring.worker.engines.cuda.devices import find_devices
from mainspring.worker.engines.cuda.driver import DriverMissing
from mainspring.worker.engines.cuda.timing import GpuTimer

PROGRAM = (sys.executable, "-m", "mainspring")
DEVICE = "cuda:0"
"""The first GPU as CUDA counts them; CUDA_VISIBLE_DEVICES makes another the first."""
SECONDS = 0.5
"""Time for each number: hundreds of runs of a model that takes 1 ms."""
TIMEOUT_S = 900.0
"""Longest time of one measurement. To compile kernels for a GPU that they weren't made for takes minutes."""
_PREFIX = "mainspring: "


class _Profiled(msgspec.Struct):
    """The fields of ``mainspring profile --json`` that matter here."""

    device_kind: str
    models: list[Measured]


class GpuJudge:
    """A `choice.Judge` of the first GPU. What shares an executable is measured once."""

    def __init__(self, store: Store) -> None:
        """``store`` has room for what is measured."""
        self._store = store
        self._known: dict[tuple[str, int], Judged] = {}

    def __call__(self, contenders: Sequence[Contender]) -> list[Judged]:
        """Return how each did; raise `StoreError` if there is no room for them."""
        new = [each for each in contenders if _key(each) not in self._known]
        if new:
            with self._store.scratch() as scratch:
                for each in new:
                    self._known[_key(each)] = _measure(each, scratch)
        return [self._known[_key(each)] for each in contenders]


def judge_for(
    engine: str,
    device: str,
    arch: str | None,
    store: Store,
    instead: str,
    precision: str = FP32,
    tune_seconds: float | None = None,
) -> tuple[Target, GpuJudge | None]:
    """Return what is to be compiled for, and who chooses if that takes a GPU.

    An ``arch`` of None is that of the GPU that chooses, or the usual one. ``tune_seconds`` bounds how long
    kernels are timed on the GPU; None is 0, and the usual bound with the engine ``auto``. Raises
    `CompileError`, which says what is missing and what to do ``instead``, if it takes a GPU and none can be
    used here; also for a ``precision`` that is not for this engine and device.
    """
    check_precision(Target(engine, device, arch or DEFAULT_ARCH, precision))
    if (engine, device) != (AUTO, CUDA):
        target = Target(engine, device, arch or DEFAULT_ARCH, precision)
        return _tuned(target, arch, store, tune_seconds or 0), None
    try:
        gpu = find_devices()[0]
    except DriverMissing as error:
        raise CompileError(
            f"to keep the faster engine, both are measured on a GPU, and here none can be used: {error}. "
            f"Without one, {instead}"
        ) from None
    target = Target(engine, device, arch or gpu.arch or DEFAULT_ARCH, precision)
    if target.arch == gpu.arch:
        tuner = _tuner(store, SECONDS_TO_TUNE if tune_seconds is None else tune_seconds)
        target = msgspec.structs.replace(target, gpu=gpu.gpu, tuner=tuner)
    return target, GpuJudge(store)


def _tuned(target: Target, arch: str | None, store: Store, seconds: float) -> Target:
    """Return the target with a search of its kernels' variants if it may take time; raise `CompileError`."""
    if not seconds:
        return target
    if (target.engine, target.device) != (TVM, CUDA):
        raise CompileError(
            "--tune-seconds times the kernels of a GPU: give it with --device cuda, and --engine tvm or auto"
        )
    if target.precision != FP32:
        raise CompileError(
            f"--tune-seconds times kernels of fp32; those of {target.precision} are chosen by calculation: "
            "leave it out"
        )
    try:
        gpu = find_devices()[0]
    except DriverMissing as error:
        raise CompileError(
            f"kernels are timed on a GPU, and here none can be used: {error}. Without --tune-seconds they "
            "are chosen by calculation"
        ) from None
    if arch not in (None, gpu.arch):
        raise CompileError(f"kernels for {arch} can't be timed on this GPU, an {gpu.arch}: leave --arch out")
    tuner = _tuner(store, seconds)
    return msgspec.structs.replace(target, arch=gpu.arch, gpu=gpu.gpu, tuner=tuner)


def _tuner(store: Store, seconds: float) -> Tuner:
    return Tuner(store, GpuTimer, seconds)


def _key(contender: Contender) -> tuple[str, int]:
    return contender.executable, contender.weights_bytes


def _measure(contender: Contender, scratch: Store) -> Judged:
    """Have an artifact measured; what goes wrong is its own failure."""
    manifest = contender.put(scratch, contender.engine)
    options = {"--store": scratch.root.resolve(), "--device": DEVICE, "--seconds": SECONDS}
    words = [str(word) for option in options.items() for word in option]
    command = [*PROGRAM, "profile", manifest.name, *words, "--json"]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return Judged(failed=f"the GPU was not done with it after {TIMEOUT_S:.0f} s")
    if done.returncode:
        return Judged(failed=_reason(done))
    profiled = msgspec.json.decode(done.stdout, type=_Profiled)
    (measured,) = profiled.models
    medians = {size: timing.p50_ns for size, timing in measured.infer.items()}
    return Judged(medians, profiled.device_kind, measured.profile())


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    """Return why a process failed, in its own last words if it had any."""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    spoken = [line.removeprefix(_PREFIX) for line in lines if line.startswith(_PREFIX)]
    last = (spoken or lines or ["it said nothing"])[-1]
    return last if spoken else f"measuring it ended with exit code {done.returncode}: {last}"
