"""A model as ONNX Runtime reads it: one message, or a file with its large tensors beside it.

One protobuf message can have 2 GiB, and every copy of a message copies its tensors. So the large tensors of a
large model are in one file from the moment it is read (`beside`), and the messages name their places there:
all forms of the model have the same file beside them, and its bytes are in memory where they are used.
"""

from __future__ import annotations

import itertools
import math
import mmap
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from google.protobuf.message import EncodeError, Message
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import ExternalDataInfo, load_external_data_for_tensor

from mainspring.compiler.artifact.errors import CompileError

LARGE_BYTES = 4 << 20
"""A model with more bytes than this is a large one: others are copied about ten times while they compile."""
TIMES_THE_FILE = 3
"""Most memory that compiling a large model may take, as a multiple of its files' size (``make
bench-compile``)."""
BESIDE_BYTES = 64 << 10
"""Tensors of a large model from this size on are beside it. Shapes, which the graph needs, are smaller."""
_ALIGNMENT_BYTES = mmap.ALLOCATIONGRANULARITY
"""Each begins at a multiple of this, so that it can be mapped."""
WEIGHTS = "weights.bin"

Array = npt.NDArray[np.generic]
Folder = Callable[[], AbstractContextManager[str]]
"""Makes a folder that is there for a block."""


class Scratch:
    """Files of large models, in a folder that is made for the first of them and removed with this object."""

    def __init__(self, folder: Folder) -> None:
        self._make = folder
        self._entered: AbstractContextManager[str] | None = None
        self._path = Path()
        self._number = itertools.count()
        self.read: dict[Path, tuple[bytes, str]] = {}
        """Content of each file that was read: the model without its large tensors, and the file's hash."""

    @property
    def used(self) -> bool:
        """Return whether there is a large model in it."""
        return self._entered is not None

    @property
    def path(self) -> Path:
        """The folder."""
        if self._entered is None:
            self._entered = self._make()
            self._path = Path(self._entered.__enter__())
        return self._path

    def close(self) -> None:
        """Remove the folder."""
        if self._entered is not None:
            self._entered.__exit__(None, None, None)
            self._entered = None

    def new(self, suffix: str) -> Path:
        """Return the path of a file that is not there yet."""
        return self.path / f"{next(self._number)}{suffix}"

    def put(self, tensor: TensorProto, chunks: Iterable[bytes | memoryview]) -> TensorProto:
        """Write a tensor's bytes; return the tensor with its place in their stead."""
        with (self.path / WEIGHTS).open("ab") as file:
            offset = file.seek(0, 2) + -file.tell() % _ALIGNMENT_BYTES
            file.write(bytes(offset - file.tell()))
            length = sum(map(file.write, chunks))
        found = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        found.data_location = TensorProto.EXTERNAL
        for key, value in (("location", WEIGHTS), ("offset", str(offset)), ("length", str(length))):
            found.external_data.add(key=key, value=value)
        return found


_scratch: ContextVar[Scratch | None] = ContextVar("scratch", default=None)


@contextmanager
def beside(folder: Folder) -> Iterator[None]:
    """Have large models, for the block, beside their tensors, in a folder that is removed then.

    In a block within another one the outer one's folder is used.
    """
    if _scratch.get() is not None:
        yield
        return
    scratch = Scratch(folder)
    token = _scratch.set(scratch)
    try:
        yield
    finally:
        _scratch.reset(token)
        scratch.close()


def scratch_in_use() -> Scratch | None:
    """Return the innermost block's files; None outside of any."""
    return _scratch.get()


class Stored:
    """A large model as a file, its large tensors beside it."""

    def __init__(self, model: onnx.ModelProto) -> None:
        """Write the model; its own message stays as it is."""
        self.scratch = _scratch.get() or Scratch(lambda: tempfile.TemporaryDirectory(prefix="mainspring-"))
        self.path = self.scratch.new(".onnx")
        self.path.write_bytes(moved(model, self.scratch).SerializeToString())

    @property
    def lasts(self) -> bool:
        """Return whether its folder is that of the block, so that other models may have tensors there."""
        return self.scratch is _scratch.get()


Content = bytes | Stored


def serialise(model: onnx.ModelProto) -> Content:
    """Return what ONNX Runtime reads of a model; raise `CompileError` if it is too large without weights."""
    try:
        tensors = model.graph.initializer
        if any(map(_is_beside, tensors)) or sum(tensor.ByteSize() for tensor in tensors) > LARGE_BYTES:
            return Stored(model)
        return bytes(model.SerializeToString())
    except (EncodeError, ValueError) as error:
        raise CompileError(
            f"the model's graph is larger than the 2 GiB of one ONNX message ({error}); the model's "
            "author can export its weights as initializers"
        ) from error


def read_back(content: Content) -> onnx.ModelProto:
    """Return the model again; outside of `beside` with all of its tensors."""
    if isinstance(content, Stored):
        return onnx.load(content.path, load_external_data=not content.lasts)
    return onnx.load_from_string(content)


def source_of(content: Content) -> bytes | str:
    """Return what a session is opened with."""
    return str(content.path) if isinstance(content, Stored) else content


def moved(model: onnx.ModelProto, scratch: Scratch) -> onnx.ModelProto:
    """Return a copy with all large tensors beside it."""
    shell = _shell_of(model)
    for tensor in model.graph.initializer:
        large = tensor.data_type != TensorProto.STRING and tensor.ByteSize() >= BESIDE_BYTES
        shell.graph.initializer.append(scratch.put(tensor, [_bytes_of(tensor)]) if large else tensor)
    return shell


def whole(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with all tensors in its message, for what reads no files."""
    if not any(map(_is_beside, model.graph.initializer)):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        take_in(tensor)
    return copy


def take_in(tensor: TensorProto) -> None:
    """Have a tensor that is beside its model in its message again."""
    if _is_beside(tensor):
        load_external_data_for_tensor(tensor, _folder())


def array_of(tensor: TensorProto) -> Array:
    """Return a tensor's values; those of a tensor beside its model are mapped, and take no memory yet."""
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if not _is_beside(tensor) or dtype.isbuiltin != 1:
        return numpy_helper.to_array(tensor, _folder() if _is_beside(tensor) else "")
    info, count = ExternalDataInfo(tensor), math.prod(tensor.dims)
    offset = info.offset or 0
    # ONNX Runtime chooses where the tensors of a model that it writes begin.
    begin = offset - offset % _ALIGNMENT_BYTES
    with (Path(_folder()) / info.location).open("rb") as file:
        length = offset - begin + count * dtype.itemsize
        mapped = mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ, offset=begin)
    return np.frombuffer(mapped, dtype, count, offset - begin).reshape(tuple(tensor.dims))


def tensor_of(array: Array, name: str) -> TensorProto:
    """Return values as a tensor, beside its model if that is a large one."""
    scratch = _scratch.get()
    if scratch is None or not scratch.used or array.nbytes < BESIDE_BYTES:
        return numpy_helper.from_array(array, name)
    element = helper.np_dtype_to_tensor_dtype(array.dtype)
    tensor = TensorProto(name=name, data_type=element, dims=array.shape)
    return scratch.put(tensor, [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data])


def room(size: int) -> npt.NDArray[np.uint8]:
    """Return so many zeros to be written to: in a file, beside a large model."""
    scratch = _scratch.get()
    if scratch is None or not scratch.used or size <= LARGE_BYTES:
        return np.zeros(size, np.uint8)
    with scratch.new(".bin").open("w+b") as file:
        file.truncate(size)
        return np.frombuffer(mmap.mmap(file.fileno(), size), np.uint8)


def forget(array: Array) -> None:
    """Have a file's part that an array maps in no memory of this process, until it is read again."""
    base: Any = array
    while base is not None and not isinstance(base, mmap.mmap):
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
    if base is not None:
        base.madvise(mmap.MADV_DONTNEED)


def _folder() -> str:
    scratch = _scratch.get()
    assert scratch is not None, "only within a block a tensor is beside its model"
    return str(scratch.path)


def _is_beside(tensor: TensorProto) -> bool:
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def _bytes_of(tensor: TensorProto) -> bytes:
    """Return a tensor's bytes as a file has them."""
    if tensor.raw_data:
        return bytes(tensor.raw_data)
    return bytes(numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data)


def without_weights(model: onnx.ModelProto, most: int) -> onnx.ModelProto:
    """Return a copy without the values of initializers of more than ``most`` elements; a list is kept."""
    shell = _shell_of(model)
    for tensor in model.graph.initializer:
        # It may be a shape.
        kept = len(tensor.dims) < 2 and tensor.data_type == TensorProto.INT64 and not _is_beside(tensor)
        if kept or math.prod(tensor.dims) <= most:
            shell.graph.initializer.append(tensor)
        else:
            shell.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    return shell


def _shell_of(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy without initializers."""
    shell = onnx.ModelProto()
    _copy_fields(model, shell, "graph")
    _copy_fields(model.graph, shell.graph, "initializer")
    return shell


def _copy_fields(original: Message, copy: Any, without: str) -> None:
    """Copy all fields but one, which may be too large."""
    for field, value in original.ListFields():
        if field.name == without:
            continue
        if field.is_repeated:
            getattr(copy, field.name).extend(value)
        elif field.message_type is not None:
            getattr(copy, field.name).CopyFrom(value)
        else:
            setattr(copy, field.name, value)
