"""EXEC is one launch of a graph: does it take longer on the device than its kernels do?

A kernel's own time is what one more of it adds to a graph that launches it again and again: with neither the
launch of the graph in it nor the clock's own resolution. No kernel writes what it reads: it may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mainspring.compiler.artifact.plan import read_plans
from mainspring.compiler.artifact.store import Store
from mainspring.experiments.gpu_check.settings import Settings
from mainspring.experiments.gpu_check.verdicts import Verdict, at_most, told
from mainspring.worker.core.io_memory import slot_layout
from mainspring.worker.engines.cuda.compiling import image_for
from mainspring.worker.engines.cuda.driver import Driver, Extent, open_driver
from mainspring.worker.engines.cuda.launch_plans import LaunchPlanProgram
from mainspring.worker.engines.cuda.memory import DeviceMemory, Wanted

ABOVE = 0.02
"""What a graph may take above the sum of its kernels, as a share of it."""
ROUNDS = 30
SPAN_NS = 500_000
"""Of a kernel launched again and again: a thousand times what the clock can tell. More would be lost time."""
WORKSPACE_MIB = 512


class Noted(NamedTuple):
    """A launch of a kernel."""

    function: int
    grid: Extent
    block: Extent
    shared_bytes: int
    parameters: int


class NotingDriver:
    """A driver that can be told to note launches instead of doing them; all else it passes on."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.noted: list[Noted] | None = None
        """Launches since this was set to a list; None while they are done."""

    def launch(
        self, function: int, grid: Extent, block: Extent, shared_bytes: int, parameters: int, stream: int
    ) -> None:
        """See `Driver`."""
        if self.noted is None:
            self._driver.launch(function, grid, block, shared_bytes, parameters, stream)
        else:
            self.noted.append(Noted(function, grid, block, shared_bytes, parameters))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)


class Spans(NamedTuple):
    """Times on the device in ns."""

    graph: float
    """One launch of the graph."""
    kernels: tuple[float, ...]
    """Each kernel's own."""


def check_graphs(settings: Settings) -> list[Verdict]:
    """Measure the main model's graph and its kernels at the smallest and the largest batch size."""
    store = Store(settings.store(settings.engine))
    manifest = store.manifest(settings.main)
    plans, spec = read_plans(store, manifest), manifest.spec()
    number = settings.config().cuda_device
    assert number is not None, "graphs are for GPUs"
    driver = open_driver(number)
    driver.attach()
    noting: Any = NotingDriver(driver)
    image = image_for(driver, store, manifest, plans)
    sizes = (settings.batch_sizes[0], settings.batch_sizes[-1])
    layouts = {size: slot_layout(spec, size) for size in sizes}
    memory = DeviceMemory(driver, Wanted(WORKSPACE_MIB << 20, 1 << 20, 0, pages=spec.pages))
    try:
        program = LaunchPlanProgram(noting, memory, plans, image, manifest.tensors, layouts)
        program.warm((), driver.stream())
        found = []
        for size in sizes:
            spans = measure(noting, program, memory, size, settings.repeats)
            found += verdicts(f"{spec.name}, batch {size}", spans)
        return found
    finally:
        memory.close()
        driver.close()


def measure(
    driver: Any, program: LaunchPlanProgram, memory: DeviceMemory, batch_size: int, repeats: int
) -> Spans:
    """Return what a graph and its kernels take; weights are whatever is in the pages, which costs the same.

    ``driver`` is the `NotingDriver` that the program was made with.
    """
    stream = driver.stream()
    clock = Clock(driver, stream)
    program.bind([memory.page(page) for page in range(memory.pages)]).set_addresses(memory.io, stream)
    driver.noted = []
    program.compute_one_by_one(batch_size, stream)
    launches, driver.noted = driver.noted, None
    graph_ns = clock.median_ns(lambda: program.compute(batch_size, stream))
    kernels = tuple(own_ns(driver, clock, launch, stream, repeats) for launch in launches)
    return Spans(graph_ns, kernels)


class Clock:
    """The device's own clock, around what a stream is given."""

    def __init__(self, driver: Driver, stream: int) -> None:
        self._driver = driver
        self._stream = stream
        self._begin, self._end = driver.event(timed=True), driver.event(timed=True)

    def median_ns(self, give: Callable[[], None]) -> float:
        """Return the median time of what ``give`` gives to the stream, after a first time."""
        spans = []
        for _ in range(ROUNDS + 1):
            self._driver.record(self._begin, self._stream)
            give()
            self._driver.record(self._end, self._stream)
            self._driver.synchronize(self._end)
            spans.append(self._driver.elapsed_ns(self._begin, self._end))
        return float(np.median(spans[1:]))


def own_ns(driver: Driver, clock: Clock, launch: Noted, stream: int, repeats: int) -> float:
    """Return what one more launch adds to a graph of ``repeats``, or of fewer if those take long enough."""
    count = max(2, min(repeats, round(SPAN_NS / _graph_ns(driver, clock, [launch], stream))))
    once, twice = (_graph_ns(driver, clock, [launch] * times, stream) for times in (count, 2 * count))
    return (twice - once) / count


def _graph_ns(driver: Driver, clock: Clock, launches: Sequence[Noted], stream: int) -> float:
    driver.begin_capture(stream)
    for launch in launches:
        driver.launch(*launch, stream)
    graph = driver.end_capture(stream)
    executable = driver.instantiate(graph)
    try:
        driver.upload(executable, stream)
        return clock.median_ns(lambda: driver.launch_graph(executable, stream))
    finally:
        driver.destroy_executable(executable)
        driver.destroy_graph(graph)


def verdicts(name: str, spans: Spans) -> list[Verdict]:
    """Judge a graph against its kernels."""
    kernels_ns = sum(spans.kernels)
    return [
        at_most(
            f"EXEC by graph launch above its kernels, {name}",
            100 * (spans.graph / kernels_ns - 1),
            100 * ABOVE,
            "%",
            f"{len(spans.kernels)} kernels",
        ),
        told("  graph, sum of kernels", f"{spans.graph / 1e6:.4f}, {kernels_ns / 1e6:.4f}", "ms"),
    ]
