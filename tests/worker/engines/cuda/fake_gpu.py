"""Mainspring's command line with a fake GPU: ``python -m tests.worker.engines.cuda.fake_gpu VERB...``.

The variable FAKE_GPU says as JSON how it does (`FakeGpu`). Everything but the driver and ONNX Runtime's
session is real: kernels and graphs take the device's virtual time and compute nothing.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import msgspec
import onnxruntime

from mainspring.cli.main import main as command_line
from mainspring.cli.profiling import profiling
from mainspring.experiments.gpu_check.rehearsal.bindings import AnyKernel
from mainspring.experiments.gpu_check.rehearsal.driver import FakeDriver
from mainspring.worker.engines.cuda import driver as drivers
from mainspring.worker.engines.cuda import nvml
from mainspring.worker.engines.cuda.driver import DeviceLost
from mainspring.worker.engines.cuda.onnxruntime_program import PROVIDER

KIND = "nvidia-fake-1"
VARIABLE = "FAKE_GPU"
ILLEGAL = "GPU 0: an illegal memory access was encountered"


class FakeGpu(msgspec.Struct):
    """What the GPU does with each engine's models."""

    kernel_ns: int = 10_000
    """Of each kernel of a launch plan."""
    breaks: bool = False
    """Kernels of a launch plan take the device down instead."""
    graph_ns: int | None = 10_000
    """Of a whole graph of ONNX Runtime; None where that has no CUDA provider."""


def put_in(gpu: FakeGpu) -> None:
    """Make this process one of a machine with that GPU."""
    driver = FakeDriver(8 << 30)
    driver.kernels = AnyKernel(gpu.kernel_ns)
    if gpu.breaks:
        driver.fails["launch_graph"] = DeviceLost(ILLEGAL)
    replaced: dict[str, tuple[object, Any]] = {
        "open_driver": (drivers, lambda _: driver),
        "try_states": (nvml, list),
        "monotonic_ns": (profiling, lambda: driver.now_ns),
        "notes_about": (nvml, lambda *_, **_more: ()),
        "try_reader": (nvml, lambda _: None),
        "get_available_providers": (
            onnxruntime,
            lambda: ["CPUExecutionProvider"] if gpu.graph_ns is None else [PROVIDER],
        ),
        "create_and_register_allocator_v2": (onnxruntime, lambda *_: None),
        "InferenceSession": (onnxruntime, lambda *args, **more: Session(driver, gpu, *args, **more)),
    }
    for name, (module, value) in replaced.items():
        setattr(module, name, value)


class Session:
    """A session whose runs keep the device busy."""

    def __init__(
        self, driver: FakeDriver, gpu: FakeGpu, graph: str, options: object, providers: list[Any]
    ) -> None:
        self._driver, self._duration_ns = driver, gpu.graph_ns or 0
        assert os.path.isfile(graph)
        (_, chosen), _ = providers
        self._stream = int(chosen["user_compute_stream"])

    def get_providers(self) -> list[str]:
        return [PROVIDER]

    def io_binding(self) -> Session:
        return self

    def bind_input(self, *_: object) -> None:
        pass

    bind_output = bind_input

    def run_with_iobinding(self, *_: object) -> None:
        self._driver.busy(self._stream, self._duration_ns)


def main() -> None:
    put_in(msgspec.json.decode(os.environ.get(VARIABLE, "{}"), type=FakeGpu))
    # What is measured is virtual time: it takes nothing from tests that keep real time.
    sys.argv.append("--no-realtime")
    command_line()


if __name__ == "__main__":
    main()
