"""A model as ONNX Runtime reads it: one message, or a file with its weights beside it.

One protobuf message can have 2 GiB. A larger model is kept in a folder of its own, which is removed with the
last reference to it.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import EncodeError, Message
from onnx import TensorProto, numpy_helper

from mainspring.compiler.artifact.errors import CompileError

LARGE_BYTES = 1 << 30
"""Weights of a model that is kept as files."""
_BESIDE_BYTES = 4096
"""Weights from this size on are beside the model. Shapes, which the graph has to have, are smaller."""
_ALIGNMENT_BYTES = 4096
"""Each begins at a multiple of this, so that it can be mapped."""
MODEL, WEIGHTS = "model.onnx", "weights.bin"


class Stored:
    """A model in a folder of its own."""

    def __init__(self, model: onnx.ModelProto) -> None:
        """Write the model; its own message stays as it is."""
        self._folder = tempfile.TemporaryDirectory(prefix="mainspring-")
        folder = Path(self._folder.name)
        self.path = folder / MODEL
        shell = _shell_of(model)
        with (folder / WEIGHTS).open("wb") as file:
            for tensor in model.graph.initializer:
                content = _content_of(tensor)
                if content is None:
                    shell.graph.initializer.append(tensor)
                    continue
                file.write(bytes(-file.tell() % _ALIGNMENT_BYTES))
                shell.graph.initializer.append(_beside(tensor, file.tell(), len(content)))
                file.write(content)
        self.path.write_bytes(shell.SerializeToString())


Content = bytes | Stored


def serialise(model: onnx.ModelProto) -> Content:
    """Return what ONNX Runtime reads of a model; raise `CompileError` if it is too large without weights."""
    try:
        if sum(len(tensor.raw_data) for tensor in model.graph.initializer) > LARGE_BYTES:
            return Stored(model)
        return bytes(model.SerializeToString())
    except (EncodeError, ValueError) as error:
        raise CompileError(
            f"the model's graph is larger than the 2 GiB of one ONNX message ({error}); the model's "
            "author can export its weights as initializers"
        ) from error


def read_back(content: Content) -> onnx.ModelProto:
    """Return the model again, with its weights."""
    return onnx.load(content.path) if isinstance(content, Stored) else onnx.load_from_string(content)


def source_of(content: Content) -> bytes | str:
    """Return what a session is opened with."""
    return str(content.path) if isinstance(content, Stored) else content


def without_weights(model: onnx.ModelProto, most: int) -> onnx.ModelProto:
    """Return a copy without the values of initializers of more than ``most`` elements; a list is kept."""
    shell = _shell_of(model)
    for tensor in model.graph.initializer:
        kept = len(tensor.dims) < 2 and tensor.data_type == TensorProto.INT64  # It may be a shape.
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


def _content_of(tensor: onnx.TensorProto) -> bytes | None:
    """Return the bytes of a tensor that is to be beside the model."""
    if tensor.data_type == TensorProto.STRING:
        return None
    if not tensor.raw_data:
        return None if tensor.ByteSize() < _BESIDE_BYTES else bytes(numpy_helper.to_array(tensor).tobytes())
    return tensor.raw_data if len(tensor.raw_data) >= _BESIDE_BYTES else None


def _beside(tensor: onnx.TensorProto, offset: int, size: int) -> onnx.TensorProto:
    found = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    found.data_location = TensorProto.EXTERNAL
    for key, value in (("location", WEIGHTS), ("offset", str(offset)), ("length", str(size))):
        found.external_data.add(key=key, value=value)
    return found
