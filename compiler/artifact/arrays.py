"""Arrays that a model may run on without IO memory: each begins at a multiple of `ALIGNMENT_BYTES`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mainspring.compiler.artifact.errors import ExecutableError
from mainspring.compiler.artifact.manifest import ALIGNMENT_BYTES, ExecutableInfo, IoTensor
from mainspring.messages.model import FOUND_BYTES, TensorSpec, array_dtype

Sizes = tuple[int, ...]


class Runnable(Protocol):
    """A model with its weights bound, ready to run on the CPU, whatever its engine."""

    def run(self, batch_size: int, inputs: Sequence[int], outputs: Sequence[int], sizes: Sizes = ()) -> None:
        """Run one batch from and to these addresses; raise `ExecutableError` if the engine fails.

        ``sizes`` has one size of each symbol.
        """

    def run_arrays(
        self, batch_size: int, arrays: Sequence[npt.NDArray[np.generic]], sizes: Sizes = ()
    ) -> list[npt.NDArray[np.generic]]:
        """Run one batch on arrays; return the outputs."""


Arrays = list[npt.NDArray[np.generic]]


class BatchArrays:
    """All inputs and outputs of one batch, zeros at first, for callers without IO memory of their own."""

    def __init__(self, info: ExecutableInfo, batch_size: int, sizes: Sizes = ()) -> None:
        """``sizes`` has one size of each symbol."""
        self.inputs: Arrays = [_zeros(batch_size, tensor, sizes) for tensor in info.inputs]
        self.outputs: Arrays = [_zeros(batch_size, tensor, sizes) for tensor in info.outputs]
        self._info = info
        self._batch_size = batch_size
        self._sizes = sizes
        self._addresses = _addresses(self.inputs), _addresses(self.outputs)

    def fill(self, arrays: Sequence[npt.NDArray[np.generic]]) -> None:
        """Copy the inputs; raise `ValueError` if there are too many or too few, or one does not fit."""
        for into, array in zip(self.inputs, arrays, strict=True):
            into[...] = array

    def run(self, model: Runnable) -> None:
        """Have a model run the batch; raise `ExecutableError` if its engine fails."""
        model.run(self._batch_size, *self._addresses, self._sizes)

    def begin(self, model: Runnable) -> None:
        """Have a model run the zeros; where it can't, its executable's choices, or the sample that it has.

        Later runs have the same inputs. Raises the `ExecutableError` of the zeros if it can run none. Zeros
        are not tried with operators of libraries: some end the process on what they don't take.
        """
        if self._info.libraries and self._info.sample:
            return self._run_sample(model)
        try:
            return self.run(model)
        except ExecutableError:
            for choice in self._info.choices:
                for index, array in enumerate(self.inputs):
                    array[...] = np.zeros((), array.dtype) if index not in choice else choice[index]
                try:
                    return self.run(model)
                except ExecutableError:
                    continue
            if not self._info.sample:
                raise
            return self._run_sample(model)

    def _run_sample(self, model: Runnable) -> None:
        for array, row in zip(self.inputs, self._info.sample, strict=True):
            array[...] = tiled(np.frombuffer(row.data, array.dtype).reshape(row.shape), array.shape)
        self.run(model)

    @property
    def found(self) -> Arrays:
        """The outputs, those that vary in the shapes that the last run found."""
        pairs = zip(self._info.outputs, self.outputs, strict=True)
        return [_found(tensor, self._sizes, array) if tensor.varies else array for tensor, array in pairs]


def _found(tensor: IoTensor, sizes: Sizes, array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    spec = TensorSpec(tensor.name, tensor.dtype, tensor.at(sizes), varies=tensor.varies)
    shape, size = spec.found(array.data)
    return array[FOUND_BYTES:size].view(array_dtype(tensor.dtype)).reshape(1, *shape)


def tiled(array: npt.NDArray[np.generic], shape: tuple[int, ...]) -> npt.NDArray[np.generic]:
    """Return an array of as many axes, none of them empty, repeated and cut along each to ``shape``."""
    places = [np.arange(size) % length for size, length in zip(shape, array.shape, strict=True)]
    return array[np.ix_(*places)] if places else array


def aligned_array(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> npt.NDArray[np.generic]:
    """Return zeros at a multiple of `ALIGNMENT_BYTES`; even an empty array has an address of its own."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.zeros(size + ALIGNMENT_BYTES, np.uint8)
    begin = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[begin : begin + size].view(dtype).reshape(shape)


def _zeros(batch_size: int, tensor: IoTensor, sizes: Sizes) -> npt.NDArray[np.generic]:
    shape = (batch_size, *tensor.at(sizes))
    if tensor.varies:
        # Bytes, since what they hold begins with its sizes.
        size = math.prod(shape) * array_dtype(tensor.dtype).itemsize
        return aligned_array((FOUND_BYTES + size,), np.dtype(np.uint8))
    return aligned_array(shape, array_dtype(tensor.dtype))


def _addresses(arrays: Arrays) -> list[int]:
    return [int(array.ctypes.data) for array in arrays]
