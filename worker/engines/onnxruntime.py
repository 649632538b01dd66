"""ONNX Runtime on the CPU: graphs whose weights are inputs (design.md, section 4)."""

from __future__ import annotations

from pathlib import Path

from mainspring.compiler.artifact.executable import Executable, open_executable
from mainspring.compiler.artifact.manifest import ONNXRUNTIME, Manifest
from mainspring.compiler.artifact.store import Store
from mainspring.worker.engines.cpu import CpuEngine


class OnnxRuntimePrograms:
    """Opens executables of the ``onnxruntime`` engine, each batch of which ``threads`` threads compute."""

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads

    def __call__(self, store: Store, manifest: Manifest) -> Executable:
        """Open a model's graph; raise `StoreError` or `ExecutableError`."""
        return open_executable(store, manifest, self._threads)


class OnnxRuntimeEngine(CpuEngine):
    """The CPU as a device for models that were compiled for the engine ``onnxruntime``."""

    def __init__(self, store: Path | str, pages: int, io_bytes: int, threads: int = 1) -> None:
        super().__init__(store, pages, io_bytes, {ONNXRUNTIME: OnnxRuntimePrograms(threads)})
