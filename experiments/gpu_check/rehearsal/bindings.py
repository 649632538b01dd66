"""CUDA as a rehearsal finds it: one GPU, which takes any kernel and computes nothing.

See `mainspring.worker.engines.cuda.driver.Bindings`.
"""

from __future__ import annotations

import functools
from typing import Any

from mainspring.compiler.artifact.target import Attributes
from mainspring.experiments.gpu_check.rehearsal.driver import FakeDriver
from mainspring.experiments.gpu_check.rehearsal.rules import Kernel

MEMORY_BYTES = 16 << 30
KERNEL_NS = 5_000
PROCESSORS = 132


class AnyKernel(dict[str, Kernel]):
    """A kernel for every name."""

    def __init__(self, duration_ns: int) -> None:
        super().__init__()
        self.kernel = Kernel(lambda: None, duration_ns, 0)

    def __contains__(self, _: object) -> bool:
        return True

    def __missing__(self, _: str) -> Kernel:
        return self.kernel


class Forgetful(list[Any]):
    """A record that keeps nothing: a rehearsal makes more calls than anybody reads."""

    def append(self, _: object) -> None:
        """Keep nothing."""


def missing() -> str:
    """See `Bindings`: nothing is missing."""
    return ""


def count_devices() -> int:
    """See `Bindings`."""
    return 1


def describe_device(device: int) -> tuple[str, str, str, Attributes]:
    """See `Bindings`."""
    driver = open_device(device)
    return driver.name(), driver.bus_id(), driver.arch(), Attributes(processors=PROCESSORS)


@functools.cache
def open_device(device: int) -> FakeDriver:
    """See `Bindings`; all who open a device in a process share its memory, as with CUDA."""
    driver = FakeDriver(MEMORY_BYTES, AnyKernel(KERNEL_NS))
    driver.device = device
    driver.done, driver.calls, driver.allocations = Forgetful(), Forgetful(), Forgetful()
    return driver
