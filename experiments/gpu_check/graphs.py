"""EXEC is one launch of a graph: does it take longer than its kernels, and what does it cost?

The kernels' time is what one more line of all of them adds to a graph: neither the graph's launch nor the
clock's own resolution is in it, and the weights come from where they come from in serving. The weights of a
kernel that is launched again and again stay in the device's cache, so the sum of such times only explains.
No kernel writes what it reads: it may be repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from mainspring.compiler.artifact.plan import LaunchPlan, Shape, read_plans
from mainspring.compiler.artifact.store import Store
from mainspring.experiments.gpu_check.settings import Settings
from mainspring.experiments.gpu_check.verdicts import Verdict, at_most, told
from mainspring.worker.core.residency import slot_layout
from mainspring.worker.engines.cuda.compiling import image_for
from mainspring.worker.engines.cuda.driver import Driver, Extent, open_driver
from mainspring.worker.engines.cuda.launch_plans import LaunchPlanProgram
from mainspring.worker.engines.cuda.memory import DeviceMemory, Wanted
from mainspring.worker.engines.cuda.programs import Times

ABOVE = 0.02
ROUNDS = 30
SPAN_NS = 500_000
WORKSPACE_MIB = 512
COUNTED = 100
"""Graphs of one line, all there at once, whose memory is counted."""
LONGEST = 3
"""Kernels that are named."""


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
    """One launch of the graph that is served."""
    line: float
    kernels: tuple[float, ...]


class Costs(NamedTuple):
    """Cost of a graph of a line of kernels: medians of the host's calls in ns, and memory."""

    capture: float
    instantiate: float
    upload: float
    launch: float
    bytes_: float


def check_graphs(settings: Settings) -> Iterator[Verdict]:
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
    shapes = (Shape(settings.batch_sizes[0]), Shape(settings.batch_sizes[-1]))
    layouts = {shape: slot_layout(spec, shape.batch_size) for shape in shapes}
    memory = DeviceMemory(driver, Wanted(WORKSPACE_MIB << 20, 1 << 20, 0, pages=spec.pages))
    times = Times(driver.event(timed=True), driver.event(timed=True))
    stream = driver.stream()
    try:
        program = LaunchPlanProgram(noting, memory, plans, image, manifest.tensors, layouts, times)
        program.warm((), stream)
        pages = [memory.page(page) for page in range(memory.pages)]
        # Weights are whatever is in the pages, which costs the same.
        program.bind(pages).set_addresses(memory.io, stream)
        for shape in shapes:
            line, name = line_of(noting, program, shape, stream), f"{spec.name}, batch {shape.batch_size}"
            compute = partial(program.compute, shape, stream)
            spans = measure(driver, compute, line, stream, settings)
            yield from verdicts(name, plans.plan(*shape), spans)
            yield from cost_verdicts(costs(driver, line, stream), len(line))
        program.close()
    finally:
        memory.close()
        driver.close()


def line_of(driver: Any, program: LaunchPlanProgram, shape: Shape, stream: int) -> list[Noted]:
    """Return a batch's launches; ``driver`` is the `NotingDriver` that the program was made with."""
    driver.noted = []
    program.compute_one_by_one(shape, stream)
    launches: list[Noted] = driver.noted
    driver.noted = None
    return launches


def measure(
    driver: Driver, compute: Callable[[], None], line: Sequence[Noted], stream: int, settings: Settings
) -> Spans:
    """Return what a graph takes, which ``compute`` launches, and what its kernels do."""
    clock = Clock(driver, stream)
    once, twice = (_graph_ns(driver, clock, [*line] * times, stream) for times in (1, 2))
    graph_ns = clock.median_ns(compute)
    kernels = tuple(own_ns(driver, clock, launch, stream, settings.repeats) for launch in line)
    return Spans(graph_ns, twice - once, kernels)


def costs(driver: Driver, line: Sequence[Noted], stream: int) -> Costs:
    """Return what graphs of a line of kernels cost, `COUNTED` of them at once."""
    made: list[int] = []
    spans: dict[str, list[int]] = {}

    def timed(name: str, call: Callable[[], int | None]) -> int:
        begin_ns = time.monotonic_ns()
        found = call()
        spans.setdefault(name, []).append(time.monotonic_ns() - begin_ns)
        return found or 0

    free_bytes = driver.memory().free_bytes
    ended = driver.event()
    try:
        for _ in range(COUNTED):
            graph = timed("capture", lambda: _capture(driver, line, stream))
            made.append(timed("instantiate", lambda graph=graph: driver.instantiate(graph)))  # type: ignore[misc]
            driver.destroy_graph(graph)
            timed("upload", lambda: driver.upload(made[-1], stream))
            timed("launch", lambda: driver.launch_graph(made[-1], stream))
            driver.record(ended, stream)
            driver.synchronize(ended)
        taken = free_bytes - driver.memory().free_bytes
    finally:
        for executable in made:
            driver.destroy_executable(executable)
    medians = {name: float(np.median(durations)) for name, durations in spans.items()}
    return Costs(**medians, bytes_=taken / COUNTED)


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
    graph = _capture(driver, launches, stream)
    executable = driver.instantiate(graph)
    try:
        driver.upload(executable, stream)
        return clock.median_ns(lambda: driver.launch_graph(executable, stream))
    finally:
        driver.destroy_executable(executable)
        driver.destroy_graph(graph)


def _capture(driver: Driver, launches: Sequence[Noted], stream: int) -> int:
    driver.begin_capture(stream)
    for launch in launches:
        driver.launch(*launch, stream)
    return driver.end_capture(stream)


def verdicts(name: str, plan: LaunchPlan, spans: Spans) -> list[Verdict]:
    """Judge a graph against its kernels."""
    alone = sorted(zip(spans.kernels, (launch.kernel for launch in plan.launches), strict=True), reverse=True)
    longest = ", ".join(f"{kernel} {ns / 1e3:.1f} us" for ns, kernel in alone[:LONGEST])
    three = spans.graph, spans.line, sum(spans.kernels)
    return [
        at_most(
            f"EXEC by graph launch above its kernels, {name}",
            100 * (spans.graph / spans.line - 1),
            100 * ABOVE,
            "%",
            f"{len(spans.kernels)} kernels; what one more line of them adds to a graph",
        ),
        told(
            "  graph; its kernels; each again and again",
            ", ".join(f"{ns / 1e6:.4f}" for ns in three),
            "ms; again and again a kernel's weights lie in the cache",
        ),
        told("  longest kernels", longest, "again and again"),
    ]


def cost_verdicts(found: Costs, kernels: int) -> list[Verdict]:
    """Tell what a graph costs."""
    host = ", ".join(f"{ns / 1e3:.1f}" for ns in found[:4])
    return [
        told(
            "  memory of a graph",
            f"{found.bytes_ / 1024:.1f} KiB",
            f"{found.bytes_ / kernels:.0f} bytes for each kernel, of {COUNTED} graphs",
        ),
        told("  capture, instantiate, upload, launch", host, "us of the host, medians"),
    ]
