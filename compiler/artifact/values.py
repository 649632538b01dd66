"""Values of ONNX Runtime's that don't lie in IO memory as it computes with them: texts, outputs that vary.

A text is UTF-8 in IO memory, in a slot of a fixed size that zero bytes fill, and an object of Python's for
ONNX Runtime. An output that varies lies behind the sizes that the run found (`TensorSpec.varies`).
"""

from __future__ import annotations

import ctypes
import math
import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnx import TensorProto

from mainspring.compiler.artifact.manifest import IoTensor
from mainspring.messages.model import FOUND_BYTES, array_dtype, slot_bytes, too_long

Array = npt.NDArray[Any]
Shape = tuple[int, ...]


def bound_as(dtype: str) -> np.dtype[Any] | int:
    """Return what ONNX Runtime's bindings take for a dtype of numbers."""
    return int(TensorProto.BFLOAT16) if dtype == "bfloat16" else np.dtype(dtype)


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
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(halves, TensorProto.BFLOAT16)
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
