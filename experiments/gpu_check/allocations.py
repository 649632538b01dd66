"""Does serving allocate? Calls of the driver that give something to keep are counted, memory is compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from mainspring.cli.profiling.lone_device import LoneDevice, random_rows
from mainspring.compiler.artifact.store import Store
from mainspring.experiments.gpu_check.settings import LARGE, Settings
from mainspring.experiments.gpu_check.verdicts import Verdict, at_most, told
from mainspring.messages.model import PAGE_BYTES, ModelSpec
from mainspring.worker.config import MIB
from mainspring.worker.engines.cuda.driver import open_driver
from mainspring.worker.engines.cuda.engine import CudaEngine

KEEPS = (
    *("allocate", "allocate_host", "register_host", "stream", "event"),
    *("compile", "load_module", "instantiate"),
)
"""Calls of `mainspring.worker.engines.cuda.driver.Driver` that give the caller something new."""


class CountingDriver:
    """A driver that counts calls; all of them it passes on."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self.calls: Counter[str] = Counter()

    @property
    def kept(self) -> int:
        """Calls of `KEEPS` until now."""
        return sum(self.calls[name] for name in KEEPS)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._driver, name)
        if not callable(found):
            return found

        def counted(*arguments: Any, **named: Any) -> Any:
            self.calls[name] += 1
            return found(*arguments, **named)

        return counted


class Grown(msgspec.Struct, frozen=True):
    """Memory that was taken while something was done."""

    calls: int
    bytes_: int


def check_allocations(settings: Settings) -> list[Verdict]:
    """Count over LOADs, UNLOADs and INFERs of two models and one of another executable, after their first."""
    store = Store(settings.store(settings.engine))
    specs = [store.manifest(name).spec() for name in (settings.main, settings.second)]
    others = [store.manifest(LARGE).spec()] if LARGE in store.names() else []
    config = settings.config()
    number = config.cuda_device
    assert number is not None, "only a GPU's driver can be counted"
    driver: Any = CountingDriver(open_driver(number))
    host_bytes = sum(spec.pages * PAGE_BYTES for spec in [*specs, *others])
    pages = 3 * specs[0].pages + sum(spec.pages + 1 for spec in others)
    fitting = msgspec.structs.replace(config, pages=pages, io_bytes=64 * MIB, host_weights_bytes=host_bytes)
    with LoneDevice(CudaEngine(fitting, driver), fitting.pages) as device:
        for spec in [*specs, *others]:
            device.prepare(spec)
        first = grown(driver, lambda: come_and_go(device, specs, others, 1))
        later = grown(driver, lambda: come_and_go(device, specs, others, settings.loads))
    return verdicts(first, later, (2 + len(others)) * settings.loads)


def come_and_go(
    device: LoneDevice, specs: Sequence[ModelSpec], others: Sequence[ModelSpec], rounds: int
) -> None:
    """Load two prepared models into each other's pages in turn, and run each batch size of both.

    From one round to the next the places move by half a model, so that none comes to pages that a model of
    its kind has just left. The others move by a page, behind all of these.
    """
    for number in range(rounds):
        for position, spec in enumerate(specs):
            place = (position + number) % 2
            if number:
                device.unload(specs[1 - position])
            device.load(spec, place * spec.pages + number * max(1, spec.pages // 2) % (spec.pages + 1))
            run_sizes(device, spec)
        for spec in others:
            device.load(spec, 3 * specs[0].pages + number % 2)
            run_sizes(device, spec)


def run_sizes(device: LoneDevice, spec: ModelSpec) -> None:
    """Run each batch size of a resident model once."""
    for size in spec.batch_sizes:
        device.fill(spec, size, random_rows(spec, size))
        device.infer(spec, size)()


def grown(driver: CountingDriver, work: Callable[[], None]) -> Grown:
    """Return what was taken while ``work`` ran."""
    calls, free = driver.kept, driver.memory().free_bytes
    work()
    return Grown(driver.kept - calls, free - driver.memory().free_bytes)


def verdicts(first: Grown, later: Grown, loads: int) -> list[Verdict]:
    """Judge what was taken after the first round."""
    return [
        at_most(
            "LOAD and INFER: allocations", later.calls, 0, note=f"{loads} LOADs, each with all batch sizes"
        ),
        at_most("  device memory taken meanwhile", later.bytes_ / MIB, 0, "MiB"),
        told(
            "  in the first round",
            f"{first.calls} calls, {first.bytes_ / MIB:.1f} MiB",
            "graphs are made at PREPARE",
        ),
    ]
