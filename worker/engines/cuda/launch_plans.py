"""The ``tvm`` engine's executables on a GPU: a launch plan is a CUDA graph, made at PREPARE (Clockwork, 5.1).

Kernels find weights, inputs and outputs through a table of addresses in the device's constant memory, so the
graph of a shape (a batch size, and a bucket of a model with symbols) serves every model of the executable,
wherever its pages are: LOAD is a copy and nothing else. EXEC is two launches: a kernel of one block writes
the table, then the graph runs, and nothing stands between its kernels. One EXEC runs at a time, on one
stream, so no kernel reads the table while it is written.

The addresses travel as that kernel's arguments, by value: the driver copies them when it is launched, so the
host waits for nothing and keeps nothing. A copy from the host would wait behind a LOAD's chunks for the bus.
Where a graph can't be made, the kernels are launched one after the other.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mainspring.compiler.artifact.manifest import WeightTensor
from mainspring.compiler.artifact.plan import (
    ADDRESSES,
    ADDRESSES_AT_ONCE,
    ADDRESSES_COUNT,
    SET_ADDRESSES,
    LaunchPlan,
    Plans,
    Shape,
)
from mainspring.worker.core.jobs import SlotLayout
from mainspring.worker.engine import DeviceLost, EngineError
from mainspring.worker.engines.cuda.driver import Driver, Extent
from mainspring.worker.engines.cuda.memory import DeviceMemory
from mainspring.worker.engines.cuda.operands import AddressTable, Arguments, entries
from mainspring.worker.engines.cuda.programs import Times

LOG = logging.getLogger(__name__)


class _Step(NamedTuple):
    """One launch."""

    function: int
    grid: Extent
    block: Extent
    shared_bytes: int
    parameters: int


class _Batch(NamedTuple):
    """A plan on the device."""

    steps: tuple[_Step, ...]
    arguments: Arguments
    """Arguments that the steps' parameters point to."""


class LaunchPlanProgram:
    """One executable of the ``tvm`` engine."""

    def __init__(
        self,
        driver: Driver,
        memory: DeviceMemory,
        plans: Plans,
        image: bytes,
        tensors: Sequence[WeightTensor],
        layouts: dict[Shape, SlotLayout],
        times: Times | None = None,
    ) -> None:
        """Load the machine code ``image``; ``layouts`` are of the shapes that will be served.

        Without ``times`` nothing but kernels is launched. Raises `EngineError` for a plan that this device
        can't run.
        """
        self.refused = ""
        self._driver = driver
        self._memory = memory
        self._times = times
        self._graphs: dict[Shape, int] = {}
        """Ready to launch, by shape; without those that can't be made."""
        needed = entries(tensors)
        if needed > ADDRESSES_COUNT:
            raise EngineError(
                f"the weights take {needed} entries of the kernels' table of addresses, which has "
                f"{ADDRESSES_COUNT}; `--engine onnxruntime` compiles the model"
            )
        self._module = driver.load_module(image)
        try:
            self._table = driver.symbol(self._module, ADDRESSES)
            self._set_addresses = driver.function(self._module, SET_ADDRESSES, 0)
            functions = self._functions(plans)
            self._batches = {
                shape: self._batch(plans.plan(*shape), functions, tensors, layout)
                for shape, layout in layouts.items()
            }
        except BaseException:
            driver.unload_module(self._module)
            raise

    def bind(self, pages: Sequence[int]) -> LaunchPlanBound:
        """See `Program`; nothing is asked of the device."""
        return LaunchPlanBound(self, AddressTable(self._table, self._memory.workspace, pages))

    def warm(self, pages: Sequence[int], stream: int) -> None:  # noqa: ARG002  (no weights are read)
        """See `Program`: make the graphs, which allocates all that the kernels need on the device.

        Nothing is launched: the kernels were loaded with their module, and the device may be serving.
        """
        for shape, batch in self._batches.items():
            try:
                self._graphs[shape] = self._make_graph(batch, stream)
            except Exception as error:
                reason = self._driver.explain(error)
                if isinstance(reason, DeviceLost):
                    raise reason from error
                LOG.warning("kernels are launched one by one, because no graph can be made: %s", reason)
                self.refused = str(reason)
                break
        uploaded = self._driver.event(sleeps=True)
        self._driver.record(uploaded, stream)
        self._driver.synchronize(uploaded)

    def close(self) -> None:
        """See `Program`."""
        while self._graphs:
            self._driver.destroy_executable(self._graphs.popitem()[1])
        self._driver.unload_module(self._module)

    def set_addresses(self, table: AddressTable, slot: int, stream: int) -> None:
        """Have the stream's later kernels find a model's weights, and the batch's slot at this address."""
        block = (ADDRESSES_AT_ONCE, 1, 1)
        for parameters in table.parameters(slot):
            self._driver.launch(self._set_addresses, (1, 1, 1), block, 0, parameters, stream)

    def compute(self, shape: Shape, stream: int) -> None:
        """Give the kernels to the stream, for the addresses that were set last."""
        graph = self._graphs.get(shape)
        if graph is not None:
            self._driver.launch_graph(graph, stream)
            return
        if self._times is not None:
            self._driver.record(self._times.begin, stream)
        self.compute_one_by_one(shape, stream)
        if self._times is not None:
            self._driver.record(self._times.end, stream)

    def compute_one_by_one(self, shape: Shape, stream: int) -> None:
        """Launch the same kernels without their graph."""
        for step in self._batches[shape].steps:
            self._driver.launch(*step, stream)

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
        if plan.workspace_bytes > self._memory.workspace_bytes:
            raise EngineError(
                f"a run at {plan.shape} needs {plan.workspace_bytes} bytes of workspace and the "
                f"worker has {self._memory.workspace_bytes}; give it more with [worker] workspace_bytes, or "
                "compile the model for smaller batches"
            )
        arguments = Arguments(plan, tensors, layout)
        steps, first = [], 0
        for launch in plan.launches:
            function, parameters = functions[launch.kernel], arguments.address(first)
            steps.append(_Step(function, launch.grid, launch.block, launch.shared_bytes, parameters))
            first += len(launch.arguments)
        return _Batch(tuple(steps), arguments)

    def _make_graph(self, batch: _Batch, stream: int) -> int:
        driver = self._driver
        graph = self._capture(batch, stream)
        try:
            executable = driver.instantiate(graph)
        finally:
            driver.destroy_graph(graph)
        try:
            driver.upload(executable, stream)
        except BaseException:
            driver.destroy_executable(executable)
            raise
        return executable

    def _capture(self, batch: _Batch, stream: int) -> int:
        driver = self._driver
        driver.begin_capture(stream)
        try:
            # The times are in the graph, so that nothing that the host does falls between them and the
            # kernels.
            if self._times is not None:
                driver.record_at_launch(self._times.begin, stream)
            for step in batch.steps:
                driver.launch(*step, stream)
            if self._times is not None:
                driver.record_at_launch(self._times.end, stream)
        except BaseException:
            # A capture has to end, or the stream can't be used again.
            with contextlib.suppress(Exception):
                driver.destroy_graph(driver.end_capture(stream))
            raise
        return driver.end_capture(stream)


class LaunchPlanBound:
    """A program with one model's weights."""

    def __init__(self, program: LaunchPlanProgram, table: AddressTable) -> None:
        self.at_once = not program.refused
        self.program = program
        self._table = table

    def steps(self) -> Iterator[None]:
        """See `Bound`: its kernels read a table, so there are none."""
        return iter(())

    def launch(self, shape: Shape, slot: int, layout: SlotLayout, stream: int) -> None:  # noqa: ARG002
        """See `Bound`."""
        self.set_addresses(slot, stream)
        self.program.compute(shape, stream)

    def set_addresses(self, slot: int, stream: int) -> None:
        """Have the stream's later kernels find the model's weights, and a slot at this address."""
        self.program.set_addresses(self._table, slot, stream)
