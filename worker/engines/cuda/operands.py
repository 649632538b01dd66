"""The arguments of a launch plan's launches: places, numbers, and the table that places count from.

Both are arithmetic, done in numpy. Arguments are the same for all models of an executable, so there is one
set of them; a model's own is the table alone: some words (`mainspring.compiler.artifact.plan`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mainspring.compiler.artifact.manifest import WeightTensor
from mainspring.compiler.artifact.plan import (
    ADDRESSES_AT_ONCE,
    FIRST_PAGE_ENTRY,
    SLOT_ENTRY,
    WORKSPACE_ENTRY,
    LaunchPlan,
    Operand,
    place,
)
from mainspring.messages.model import PAGE_BYTES
from mainspring.worker.core.jobs import SlotLayout

Words = npt.NDArray[np.uint64]
WORD_BYTES = 8
"""Bytes of an argument: a place fills them, a number of 4 bytes the first half."""


class Arguments:
    """The arguments of all of a plan's launches, in order, in the form that a launch takes.

    The object has to live for as long as launches may read the arguments.
    """

    def __init__(self, plan: LaunchPlan, tensors: Sequence[WeightTensor], layout: SlotLayout) -> None:
        arguments = [argument for launch in plan.launches for argument in launch.arguments]
        self._values = np.array([_word(argument, tensors, layout) for argument in arguments], np.uint64)
        self._pointers = _addresses(self._values)

    def address(self, first: int) -> int:
        """Return the parameters of a launch whose first argument is this one."""
        return int(self._pointers.ctypes.data) + first * WORD_BYTES


class AddressTable:
    """A model's table of addresses, and the launches that write it."""

    def __init__(self, symbol: int, workspace: int, pages: Sequence[int]) -> None:
        """``symbol`` is the address of the device's table; ``pages`` are those of the weights file."""
        words = np.array([workspace, 0, *pages], np.uint64)
        self._words = np.pad(words, (0, -len(words) % ADDRESSES_AT_ONCE))
        firsts = np.arange(0, len(self._words), ADDRESSES_AT_ONCE, dtype=np.uint64) * np.uint64(WORD_BYTES)
        self._targets = np.uint64(symbol) + firsts
        sources = np.uint64(self._words.ctypes.data) + firsts
        self._pointers = np.stack([_addresses(self._targets), sources], axis=1)
        first = int(self._pointers.ctypes.data)
        self._parameters = [first + 2 * WORD_BYTES * number for number in range(len(self._targets))]

    def parameters(self, slot: int) -> Sequence[int]:
        """Return the parameters of the launches that write the table for a slot at this address."""
        self._words[SLOT_ENTRY] = slot
        return self._parameters


def entries(tensors: Sequence[WeightTensor]) -> int:
    """Return how many entries of the table a model with these weights needs."""
    return FIRST_PAGE_ENTRY + max((tensor.offset // PAGE_BYTES + 1 for tensor in tensors), default=0)


def _addresses(words: Words) -> Words:
    """Return the address of each word."""
    first = np.uint64(words.ctypes.data)
    return first + np.arange(len(words), dtype=np.uint64) * np.uint64(WORD_BYTES)


def _word(argument: Operand | int | float, tensors: Sequence[WeightTensor], layout: SlotLayout) -> np.uint64:
    """Return 8 bytes that hold the argument; a shorter argument is in the first of them."""
    if isinstance(argument, Operand):
        match argument.region:
            case "weights":
                page, offset = divmod(tensors[argument.index].offset, PAGE_BYTES)
                return np.uint64(place(FIRST_PAGE_ENTRY + page, offset + argument.offset))
            case "input":
                return np.uint64(place(SLOT_ENTRY, layout.inputs[argument.index] + argument.offset))
            case "output":
                return np.uint64(place(SLOT_ENTRY, layout.outputs[argument.index] + argument.offset))
            case _:
                return np.uint64(place(WORKSPACE_ENTRY, argument.offset))
    if isinstance(argument, float):
        return np.uint64(np.float32(argument).view(np.uint32))
    return np.int64(argument).view(np.uint64)
