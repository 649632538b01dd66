"""The ``tvm`` engine's executables on a GPU: a launch plan becomes one CUDA graph at LOAD (Clockwork, 5.1).

At LOAD the arguments of every kernel are known, so for each batch size the launches are captured as a graph
once; EXEC is one launch of the graph, and nothing stands between its kernels. A graph that an UNLOAD leaves
gets the next model's arguments instead of being made again: while models come and go, nothing is allocated,
and a model that takes the pages of another needs no change at all. Where a graph can't be made, the kernels
are launched one after the other.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from mainspring.compiler.artifact.manifest import WeightTensor
from mainspring.compiler.artifact.plan import LaunchPlan, Plans
from mainspring.worker.core.jobs import SlotLayout
from mainspring.worker.engine import DeviceLost, EngineError
from mainspring.worker.engines.cuda.copies import inputs_bytes
from mainspring.worker.engines.cuda.driver import Copy, Driver, Extent
from mainspring.worker.engines.cuda.memory import DeviceMemory
from mainspring.worker.engines.cuda.operands import Arguments, Desk, Operands
from mainspring.worker.engines.cuda.programs import Bound, Times

LOG = logging.getLogger(__name__)


class _Step(NamedTuple):
    """One launch, without its arguments."""

    function: int
    grid: Extent
    block: Extent
    shared_bytes: int
    first_argument: int


class _Batch(NamedTuple):
    """A plan on the device."""

    steps: tuple[_Step, ...]
    operands: Operands
    desk: Desk


class _Ready(NamedTuple):
    """A batch with a model's weights."""

    arguments: Arguments
    """Kept for launches one by one; a graph has copies."""
    executable: int | None


Ready = dict[int, _Ready]
"""By batch size."""
Pages = tuple[int, ...]
"""Addresses of a weights file's pages."""


class LaunchPlanProgram:
    """One executable of the ``tvm`` engine."""

    def __init__(
        self,
        driver: Driver,
        memory: DeviceMemory,
        plans: Plans,
        image: bytes,
        tensors: Sequence[WeightTensor],
        layouts: dict[int, SlotLayout],
        times: Times | None = None,
    ) -> None:
        """Load the machine code ``image``; ``layouts`` are of the batch sizes that will be served.

        Without ``times`` nothing but kernels is launched. Raises `EngineError` for a plan that this device
        can't run.
        """
        self._driver = driver
        self._memory = memory
        self._uploaded = driver.event(sleeps=True)
        self._times = times
        self._spare: OrderedDict[Pages, list[Ready]] = OrderedDict()
        """Batches of unloaded models, by the pages that the models were in; the oldest first."""
        self._lock = threading.Lock()
        self._complained = False
        self._module = driver.load_module(image)
        try:
            functions = self._functions(plans)
            self._batches = {
                size: self._batch(plans.plan(size), functions, tensors, layout)
                for size, layout in layouts.items()
            }
        except BaseException:
            driver.unload_module(self._module)
            raise

    def bind(self, pages: Sequence[int], stream: int) -> LaunchPlanBound:
        """See `Program`; nothing has to be done if a model was in the same pages before."""
        key = tuple(pages)
        with self._lock:
            ready = self._take(key)
            old = self._take(next(iter(self._spare))) if ready is None and self._spare else None
        if ready is None:
            ready = self._make(key, old or {}, stream)
        return LaunchPlanBound(self._driver, self._batches, key, ready, self._times)

    def retire(self, bound: Bound) -> None:
        """See `Program`."""
        assert isinstance(bound, LaunchPlanBound)
        with self._lock:
            self._spare.setdefault(bound.pages, []).append(bound.ready)

    def warm(self, pages: Sequence[int], stream: int) -> None:
        """See `Program`: make the first graphs, which allocates all that the kernels need on the device.

        Nothing is launched: the kernels were loaded with their module, and the device may be serving.
        """
        self.retire(self.bind(pages, stream))

    def close(self) -> None:
        """See `Program`."""
        while self._spare:
            _, left = self._spare.popitem()
            for each in (batch for ready in left for batch in ready.values()):
                if each.executable is not None:
                    self._driver.destroy_executable(each.executable)
        self._driver.unload_module(self._module)

    def _functions(self, plans: Plans) -> dict[str, int]:
        """Return every kernel, with the most dynamic shared memory that one of its launches needs."""
        shared: dict[str, int] = {}
        for launch in (launch for plan in plans.plans for launch in plan.launches):
            shared[launch.kernel] = max(launch.shared_bytes, shared.get(launch.kernel, 0))
        return {name: self._driver.function(self._module, name, size) for name, size in shared.items()}

    def _batch(
        self,
        plan: LaunchPlan,
        functions: dict[str, int],
        tensors: Sequence[WeightTensor],
        layout: SlotLayout,
    ) -> _Batch:
        desk = Desk.of(layout, plan, self._memory)
        steps, first = [], 0
        for launch in plan.launches:
            function = functions[launch.kernel]
            steps.append(_Step(function, launch.grid, launch.block, launch.shared_bytes, first))
            first += len(launch.arguments)
        return _Batch(tuple(steps), Operands(plan, tensors, desk), desk)

    def _take(self, pages: Pages) -> Ready | None:
        """Take the batches of an unloaded model that was in these pages; None if there are none."""
        left = self._spare.get(pages)
        if left is None:
            return None
        ready = left.pop()
        if not left:
            del self._spare[pages]
        return ready

    def _make(self, pages: Pages, old: Ready, stream: int) -> Ready:
        """Return every batch ready for these pages, made from ``old`` batches where there are any."""
        ready: Ready = {}
        try:
            for size, batch in self._batches.items():
                before = old.pop(size).executable if size in old else None
                arguments = Arguments(batch.operands.values(pages))
                ready[size] = _Ready(arguments, self._graph(batch, arguments, before, stream))
            self._driver.record(self._uploaded, stream)
            self._driver.synchronize(self._uploaded)
        except BaseException:
            for each in (*ready.values(), *old.values()):
                if each.executable is not None:
                    self._driver.destroy_executable(each.executable)
            raise
        return ready

    def _graph(self, batch: _Batch, arguments: Arguments, before: int | None, stream: int) -> int | None:
        """Return a graph of the launches, ready to launch; None where a graph can't be made.

        The graph ``before`` gets the new arguments, if that is possible.
        """
        try:
            return self._make_graph(batch, arguments, before, stream)
        except Exception as error:
            reason = self._driver.explain(error)
            if isinstance(reason, DeviceLost):
                raise reason from error
            if not self._complained:
                self._complained = True
                LOG.warning("kernels are launched one by one, because no graph can be made: %s", reason)
            return None

    def _make_graph(self, batch: _Batch, arguments: Arguments, before: int | None, stream: int) -> int:
        driver = self._driver
        executable = before
        try:
            graph = self._capture(batch, arguments, stream)
            try:
                if executable is not None and not driver.update(executable, graph):
                    driver.destroy_executable(executable)
                    executable = None
                if executable is None:
                    executable = driver.instantiate(graph)
            finally:
                driver.destroy_graph(graph)
            driver.upload(executable, stream)
        except BaseException:
            if executable is not None:
                driver.destroy_executable(executable)
            raise
        return executable

    def _capture(self, batch: _Batch, arguments: Arguments, stream: int) -> int:
        driver = self._driver
        driver.begin_capture(stream)
        try:
            # The times are in the graph, so that nothing that the host does falls between them and the
            # kernels.
            if self._times is not None:
                driver.record_at_launch(self._times.begin, stream)
            launch_steps(driver, batch.steps, arguments, stream)
            if self._times is not None:
                driver.record_at_launch(self._times.end, stream)
        except BaseException:
            # A capture has to end, or the stream can't be used again.
            with contextlib.suppress(Exception):
                driver.destroy_graph(driver.end_capture(stream))
            raise
        return driver.end_capture(stream)


class LaunchPlanBound:
    """One model's kernels, ready to launch at every batch size."""

    def __init__(
        self, driver: Driver, batches: dict[int, _Batch], pages: Pages, ready: Ready, times: Times | None
    ) -> None:
        self._driver = driver
        self._batches = batches
        self._times = times
        self.pages = pages
        self.ready = ready

    def launch(self, batch_size: int, slot: int, layout: SlotLayout, stream: int) -> None:
        """See `Bound`."""
        driver, desk = self._driver, self._batches[batch_size].desk
        head = inputs_bytes(layout)
        if head:
            driver.copy(desk.slot, slot, head, Copy.ON_DEVICE, stream)
        self.compute(batch_size, stream)
        if layout.size > head:
            driver.copy(slot + head, desk.slot + head, layout.size - head, Copy.ON_DEVICE, stream)

    def compute(self, batch_size: int, stream: int) -> None:
        """Give only the kernels to the stream: from the desk, to the desk."""
        executable = self.ready[batch_size].executable
        if executable is not None:
            self._driver.launch_graph(executable, stream)
            return
        if self._times is not None:
            self._driver.record(self._times.begin, stream)
        self.compute_one_by_one(batch_size, stream)
        if self._times is not None:
            self._driver.record(self._times.end, stream)

    def compute_one_by_one(self, batch_size: int, stream: int) -> None:
        """Launch the same kernels without their graph."""
        batch = self._batches[batch_size]
        launch_steps(self._driver, batch.steps, self.ready[batch_size].arguments, stream)


def launch_steps(driver: Driver, steps: Sequence[_Step], arguments: Arguments, stream: int) -> None:
    """Launch kernels one after the other."""
    for step in steps:
        parameters = arguments.address(step.first_argument)
        driver.launch(step.function, step.grid, step.block, step.shared_bytes, parameters, stream)


def choose_image(driver: Driver, plans: Plans, cubin: bytes | None, source: str) -> bytes:
    """Return machine code for this device: the stored code, or the source compiled here.

    Machine code runs on devices of its architecture's major number with the same or a higher minor number.
    Raises `EngineError`.
    """
    arch = driver.arch()
    if cubin is not None and _runs(plans.arch, arch):
        return cubin
    if plans.target != "cuda":
        raise EngineError(f"the executable is for {plans.target}; compile the model for a GPU: --target cuda")
    return driver.compile(source, arch)


def _runs(code: str, device: str) -> bool:
    made, there = (int(name.removeprefix("sm_").rstrip("af") or 0) for name in (code, device))
    if code.endswith("a"):
        return made == there
    return made // 10 == there // 10 and made <= there
