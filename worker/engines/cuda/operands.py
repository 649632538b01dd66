"""From a launch plan and the pages of a LOAD to the arguments of its kernels: arithmetic, done in numpy.

A model has some hundred arguments at each batch size. Arguments of weights are a page's address plus a known
offset; all others are the same at every LOAD.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mainspring.compiler.artifact.manifest import WeightTensor
from mainspring.compiler.artifact.plan import WORKSPACE_ALIGNMENT_BYTES, LaunchPlan, Operand
from mainspring.messages.model import PAGE_BYTES
from mainspring.worker.core.jobs import SlotLayout
from mainspring.worker.engine import EngineError
from mainspring.worker.engines.cuda.memory import DeviceMemory

Words = npt.NDArray[np.uint64]
WORD_BYTES = 8
"""Bytes of an argument: a pointer fills them, a number of 4 bytes the first half."""


class Desk(NamedTuple):
    """Where a batch is computed: its inputs and outputs as in a slot, then workspace, in one piece.

    Kernels find their inputs and outputs only here, so that their arguments are final at LOAD: EXEC begins
    with a copy from the batch's slot and ends with a copy back, on the device.
    """

    layout: SlotLayout
    slot: int
    workspace: int

    @classmethod
    def of(cls, layout: SlotLayout, plan: LaunchPlan, memory: DeviceMemory) -> Desk:
        """Lay a desk out at the beginning of the workspace; raise `EngineError` if it is too small."""
        head = -(-layout.size // WORKSPACE_ALIGNMENT_BYTES) * WORKSPACE_ALIGNMENT_BYTES
        needed = head + plan.workspace_bytes
        if needed > memory.workspace_bytes:
            raise EngineError(
                f"a batch of {plan.batch_size} needs {needed} bytes of workspace and the worker has "
                f"{memory.workspace_bytes}; give it more with [worker] workspace_bytes, or compile the model "
                "for smaller batches"
            )
        return cls(layout, memory.workspace, memory.workspace + head)


class Operands:
    """The arguments of all of a plan's launches, in order, for weights at any pages."""

    def __init__(self, plan: LaunchPlan, tensors: Sequence[WeightTensor], desk: Desk) -> None:
        arguments = [argument for launch in plan.launches for argument in launch.arguments]
        self._known = np.zeros(len(arguments), np.uint64)
        weights: list[int] = []
        pages: list[int] = []
        for position, argument in enumerate(arguments):
            if isinstance(argument, Operand) and argument.region == "weights":
                offset = tensors[argument.index].offset
                weights.append(position)
                pages.append(offset // PAGE_BYTES)
                self._known[position] = offset % PAGE_BYTES + argument.offset
            else:
                self._known[position] = _word(argument, desk)
        self._weights = np.array(weights, np.intp)
        self._pages = np.array(pages, np.intp)

    def values(self, pages: Sequence[int]) -> Words:
        """Return the arguments for weights whose file's pages are at these addresses."""
        found = self._known.copy()
        found[self._weights] += np.array(pages, np.uint64)[self._pages]
        return found


class Arguments:
    """Arguments in the form that a launch takes: values, and their addresses.

    The object has to live for as long as launches may read the arguments.
    """

    def __init__(self, values: Words) -> None:
        self._values = values
        first = np.uint64(values.ctypes.data)
        self._pointers = first + np.arange(len(values), dtype=np.uint64) * np.uint64(WORD_BYTES)
        self._address = int(self._pointers.ctypes.data)

    def address(self, first: int) -> int:
        """Return the parameters of a launch whose first argument is this one."""
        return self._address + first * WORD_BYTES


def _word(argument: Operand | int | float, desk: Desk) -> np.uint64:
    """Return 8 bytes that hold the argument; a shorter argument is in the first of them."""
    if isinstance(argument, Operand):
        match argument.region:
            case "input":
                return np.uint64(desk.slot + desk.layout.inputs[argument.index] + argument.offset)
            case "output":
                return np.uint64(desk.slot + desk.layout.outputs[argument.index] + argument.offset)
            case _:
                return np.uint64(desk.workspace + argument.offset)
    if isinstance(argument, float):
        return np.uint64(np.float32(argument).view(np.uint32))
    return np.int64(argument).view(np.uint64)
