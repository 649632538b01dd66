"""The engines by name: the one list of them. It imports an engine when it makes one."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from mainspring.messages.choices import one_of
from mainspring.worker.config import WorkerConfig

if TYPE_CHECKING:
    from mainspring.worker.engine import Engine


def make_engine(config: WorkerConfig) -> Engine:
    """Return the configured engine; raise `ValueError`, which names the known engines, if it is unknown.

    Raises `EngineError` for a GPU that can't be used.
    """
    from mainspring.compiler.artifact.op_libraries import allow

    allow(config.op_libraries)
    if config.cuda_device is not None:
        return _cuda(config, config.cuda_device)
    if config.engine not in ENGINES:
        raise ValueError(f"engine {config.engine!r} is none of: {one_of(config.engine, ENGINES)}")
    if not config.pages:
        raise ValueError("pages must be at least 1 on the CPU, not 0")
    return ENGINES[config.engine](config)


def _cuda(config: WorkerConfig, device: int) -> Engine:
    if config.engine not in CUDA_ENGINES:
        raise ValueError(
            f"engine {config.engine!r} is none of a GPU's: {one_of(config.engine, CUDA_ENGINES)}"
        )
    from mainspring.worker.engines.cuda.driver import open_driver
    from mainspring.worker.engines.cuda.engine import CudaEngine
    from mainspring.worker.engines.cuda.nvml import notes_about, try_reader, try_states

    if config.engine == "tvm":
        # A module's kernels are loaded with it, not each at its first launch, which may hold up all else that
        # CUDA does. Not for ONNX Runtime: all of cuBLAS would be loaded.
        os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    # Before this process uses the GPU: in a container it could not find itself in the list of processes.
    states = try_states()
    driver = open_driver(device)
    reader = try_reader(driver.bus_id())
    notes = notes_about(driver.bus_id(), states, watched=reader is not None)
    return CudaEngine(config, driver, notes=notes, reader=reader)


def _onnxruntime(config: WorkerConfig) -> Engine:
    from mainspring.worker.engines.cpu import OnnxRuntimeEngine

    return OnnxRuntimeEngine(config.store, config.pages, config.io_bytes, config.threads)


def _tvm(config: WorkerConfig) -> Engine:
    from mainspring.worker.engines.tvm import TvmCpuEngine

    return TvmCpuEngine(config.store, config.pages, config.io_bytes, config.threads, config.workspace_bytes)


def _auto(config: WorkerConfig) -> Engine:
    from mainspring.worker.engines.tvm import AnyCpuEngine

    return AnyCpuEngine(config.store, config.pages, config.io_bytes, config.threads, config.workspace_bytes)


def _python(config: WorkerConfig) -> Engine:
    from mainspring.worker.engines.cpu import CpuEngine

    return CpuEngine(config.store, config.pages, config.io_bytes, {}, threads=config.threads)


def _emulated(config: WorkerConfig) -> Engine:
    from mainspring.worker.engines.emulated import EmulatedEngine

    return EmulatedEngine(
        config.device_kind,
        config.io_bytes,
        seed=config.emulated_seed,
        jitter=config.emulated_jitter,
        spin_ns=config.spin_us * 1000,
        open_ns=round(config.emulated_open_ms * 1e6),
    )


ENGINES: dict[str, Callable[[WorkerConfig], Engine]] = {
    "onnxruntime": _onnxruntime,
    "tvm": _tvm,
    "auto": _auto,
    "python": _python,
    "emulated": _emulated,
}
"""The CPU's engines by name; whoever lists engines reads it here."""

CUDA_ENGINES = ("auto", "onnxruntime", "tvm")
"""The engines of a worker on a GPU: ``auto`` is each model's own engine, as on the CPU."""
