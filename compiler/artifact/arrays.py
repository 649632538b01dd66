"""Arrays for a run without IO memory, and values that can't be computed in place: texts, varying outputs.

A text is UTF-8 in IO memory, in a slot of a fixed size that zero bytes fill, and an object of Python's for
ONNX Runtime. An output that varies lies behind the sizes that the run found (`TensorSpec.varies`).
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mainspring.compiler.artifact.errors import ExecutableError
from mainspring.compiler.artifact.manifest import ALIGNMENT_BYTES, ExecutableInfo, IoTensor
from mainspring.messages.model import FOUND_BYTES, TensorSpec, array_dtype, slot_bytes, too_long

_BFLOAT16 = 16
"""`onnx.TensorProto.BFLOAT16`."""
Sizes = tuple[int, ...]


class Runs(Protocol):
    """A model that runs on the CPU, whatever its engine."""

    def run(self, batch_size: int, inputs: Sequence[int], outputs: Sequence[int], sizes: Sizes = ()) -> None:
        """Run one batch from and to these addresses; raise `ExecutableError` if the engine fails.

        ``sizes`` has one size of each symbol.
        """


class Runnable(Runs, Protocol):
    """A model with its weights bound, ready to run on the CPU."""

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

    def run(self, model: Runs) -> None:
        """Have a model run the batch; raise `ExecutableError` if its engine fails."""
        model.run(self._batch_size, *self._addresses, self._sizes)

    def begin(self, model: Runs) -> None:
        """Have a model run the zeros; where it can't, its executable's choices, or the sample that it has.

        Later runs have the same inputs. Raises the `ExecutableError` of the zeros if it can run none. Zeros
        are not tried with operators of libraries, some of which end the process on what they don't take, nor
        of a Python model that says what it takes.
        """
        if self._info.sample and (self._info.libraries or self._info.python is not None):
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

    def _run_sample(self, model: Runs) -> None:
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


Array = npt.NDArray[Any]

Shape = tuple[int, ...]


def bound_as(dtype: str) -> np.dtype[Any] | int:
    """Return what ONNX Runtime's bindings take for a dtype of numbers."""
    return _BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype)


def is_text(dtype: str) -> bool:
    """Return whether elements are texts, in slots of bytes."""
    return slot_bytes(dtype) is not None


def memory_at(address: int, shape: Shape, dtype: np.dtype[Any]) -> Array:
    """Return an array over this memory, which its owner keeps."""
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype)
    memory = memoryview((ctypes.c_char * size).from_address(address)).cast("B")
    return np.frombuffer(memory, dtype).reshape(shape)


def value_at(address: int, shape: Shape, dtype: str) -> Any:
    """Return numbers in memory as ONNX Runtime's ``run`` takes them, uncopied."""
    if dtype == "bfloat16":
        halves = memory_at(address, shape, np.dtype(np.uint16))
        # The check of a GPU reads artifacts in a Python without packages.
        import onnxruntime

        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(halves, _BFLOAT16)
    return memory_at(address, shape, np.dtype(dtype))


def texts_at(address: int, shape: Shape, dtype: str) -> Array:
    """Return texts in memory as Python's; raise `ValueError` for one that is not UTF-8."""
    return as_texts(memory_at(address, shape, np.dtype(dtype)))


def as_texts(slots: Array) -> Array:
    """Return slots of bytes as texts of Python's; raise `ValueError` for one that is not UTF-8."""
    found = np.empty(slots.shape, object)
    flat = found.reshape(-1)
    for index, content in enumerate(slots.reshape(-1).tolist()):
        try:
            flat[index] = content.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"element {index} is not text in UTF-8: {error}") from error
    return found


def as_slots(texts: Array) -> Array:
    """Return texts of Python's as slots of bytes, as large as the longest."""
    contents = [text.encode() for text in texts.reshape(-1).tolist()]
    size = max(map(len, contents), default=0)
    return np.array(contents, f"S{max(size, 1)}").reshape(texts.shape)


def put(tensor: IoTensor, batch_size: int, sizes: Shape, value: Any, address: int) -> None:
    """Copy an output, an array or a value of ONNX Runtime's, to its memory.

    Raises `ValueError` if it does not fit.
    """
    shape = tuple(value.shape) if isinstance(value, np.ndarray) else tuple(value.shape())
    most = (batch_size, *tensor.at(sizes))
    _check(tensor, shape, most)
    if tensor.varies:
        found = [shape[axis + 1] for axis in tensor.varies]
        memory = (ctypes.c_char * FOUND_BYTES).from_address(address)
        struct.pack_into(f"<{len(found)}q", memory, 0, *found)
        address += FOUND_BYTES
    slot = slot_bytes(tensor.dtype)
    if slot is not None:
        _put_texts(tensor, value if isinstance(value, np.ndarray) else value.numpy(), slot, address)
    elif size := math.prod(shape) * array_dtype(tensor.dtype).itemsize:
        pointer = np.ascontiguousarray(value) if isinstance(value, np.ndarray) else value
        source = pointer.ctypes.data if isinstance(pointer, np.ndarray) else pointer.data_ptr()
        ctypes.memmove(address, source, size)


def _check(tensor: IoTensor, shape: Shape, most: Shape) -> None:
    name = f"output {tensor.name[1:]}"
    varies = {axis + 1 for axis in tensor.varies}
    fixed = [axis for axis in range(len(most)) if axis not in varies]
    if len(shape) != len(most) or any(shape[axis] != most[axis] for axis in fixed):
        raise ValueError(f"{name} is of shape {list(shape)} for these inputs; planned was {list(most)}")
    if math.prod(shape) > math.prod(most):
        raise ValueError(
            f"{name} has {math.prod(shape):,} elements for these inputs ({list(shape)}); "
            f"there is memory for {math.prod(most):,} ({list(most)})"
        )


def _put_texts(tensor: IoTensor, texts: Array, slot: int, address: int) -> None:
    contents = [text.encode() for text in texts.reshape(-1).tolist()]
    for index, content in enumerate(contents):
        element = f"element {index} of output {tensor.name[1:]}"
        if len(content) > slot:
            raise ValueError(f"{element} {too_long(len(content), slot)}")
        if content.endswith(b"\0"):
            raise ValueError(f"{element} ends with a zero byte, which shorter ones are filled with")
    memory_at(address, (len(contents),), np.dtype(tensor.dtype))[:] = contents
