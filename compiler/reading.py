"""Reading an ONNX file from an untrusted source.

The result is a model or a `CompileError` for every file: also for a truncated one, one that is not ONNX, and
external data that is missing, too short, or outside the model's folder.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx.external_data_helper import ExternalDataInfo, load_external_data_for_tensor

from mainspring.compiler import contents
from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.contents import Scratch, scratch_in_use
from mainspring.compiler.plain import make_plain
from mainspring.compiler.shapes import open_negative

MOST_BYTES = 2**31 - 1
"""Most bytes of one protobuf message."""
_PART_BYTES = 1 << 20


def read_model(path: Path) -> tuple[onnx.ModelProto, str]:
    """Return the model and the SHA-256 of the file.

    The hash covers external data too. All data is in memory, but for the large tensors of a large model in a
    block of `contents.beside`. Raises `CompileError`.
    """
    scratch = scratch_in_use()
    if scratch is not None and path in scratch.read:
        shell, known = scratch.read[path]
        return onnx.ModelProto.FromString(shell), known
    content = _content_of(path)
    model, digest = _parsed(content, path), hashlib.sha256(content)
    size = len(content) + sum(map(_bytes_outside, tensors_of(model)))
    del content
    if scratch is not None and size <= contents.LARGE_BYTES:
        scratch = None
    initializers = len(model.graph.initializer)
    for index, tensor in enumerate(list(tensors_of(model))):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            _load_external(tensor, path.parent, digest.update, scratch if index < initializers else None)
    if scratch is None:
        make_plain(model)
        return model, digest.hexdigest()
    _take_constants_out(model.graph)
    model = contents.moved(model, scratch)
    make_plain(model)
    scratch.read[path] = model.SerializeToString(), digest.hexdigest()
    return model, digest.hexdigest()


def _content_of(path: Path) -> bytes:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise CompileError(
                f"{path} has {path.stat().st_size} bytes, more than the 2 GiB that one ONNX message can "
                "have; the model's author can export its weights as external data"
            )
        return path.read_bytes()
    except OSError as error:
        raise CompileError(f"can't read {path}: {error.strerror}") from error


def _parsed(content: bytes, path: Path) -> onnx.ModelProto:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError as error:
        raise CompileError(
            f"{path} is not an ONNX model, or only a part of one ({error}); fetch it again, "
            "or the model's author can export it again"
        ) from error
    if not (model.graph.node or model.graph.output) or not model.opset_import:
        raise CompileError(
            f"{path} is not an ONNX model: it holds no graph with nodes; the model's author can "
            "export it again"
        )
    open_negative(model)
    return model


def _bytes_outside(tensor: onnx.TensorProto) -> int:
    """Return about how many bytes of a tensor are in another file."""
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return 0
    lengths = [entry.value for entry in tensor.external_data if entry.key == "length"]
    return int(lengths[0]) if lengths and lengths[0].isdecimal() else 4 * math.prod(tensor.dims)


def _take_constants_out(graph: onnx.GraphProto) -> None:
    """Make initializers of the large values of Constant nodes."""
    kept = []
    for node in graph.node:
        value = next((each.t for each in node.attribute if each.name == "value"), None)
        if node.op_type != "Constant" or value is None or value.ByteSize() < contents.BESIDE_BYTES:
            kept.append(node)
            continue
        graph.initializer.append(value)
        graph.initializer[-1].name = node.output[0]
    if len(kept) < len(graph.node):
        del graph.node[:]
        graph.node.extend(kept)


def tensors_of(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor in the model, of subgraphs, functions and training, sparse ones too."""
    yield from _tensors_of_graph(model.graph)
    for training in model.training_info:
        yield from _tensors_of_graph(training.initialization)
        yield from _tensors_of_graph(training.algorithm)
    for function in model.functions:
        yield from _tensors_of_attributes(function.attribute_proto)
        for node in function.node:
            yield from _tensors_of_attributes(node.attribute)


def _tensors_of_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices
    for node in graph.node:
        yield from _tensors_of_attributes(node.attribute)


def _tensors_of_attributes(attributes: Iterable[onnx.AttributeProto]) -> Iterator[onnx.TensorProto]:
    for attribute in attributes:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        one = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
        for sparse in [*one, *attribute.sparse_tensors]:
            yield sparse.values
            yield sparse.indices
        for graph in [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]:
            yield from _tensors_of_graph(graph)


def _load_external(
    tensor: onnx.TensorProto, folder: Path, hashing: Callable[[bytes], object], scratch: Scratch | None
) -> None:
    """Read the tensor's bytes from its file, which has to be inside ``folder`` with links resolved.

    Bytes of a large tensor go to ``scratch`` if there is one, and all of them to ``hashing``.
    """
    what = f"external data of tensor {tensor.name!r}"
    try:
        info = ExternalDataInfo(tensor)
        file = (folder / info.location).resolve()
        inside = file.is_relative_to(folder.resolve())
    except (ValueError, TypeError, OSError) as error:
        raise CompileError(
            f"{what} is described wrongly ({error}); the model's author can export it again"
        ) from error
    if not info.location or not inside:
        raise CompileError(
            f"{what} is at {info.location!r}, outside the model's folder {folder}; put it beside the model"
        )
    if not file.is_file():
        raise CompileError(f"{what} is missing: {file}; put it beside the model")
    begin, size = info.offset or 0, file.stat().st_size
    if begin < 0 or begin + (info.length or 0) > size:
        raise CompileError(f"{what} ends at byte {begin + (info.length or 0)} of {file}, which has {size}")
    length = info.length or size - begin
    try:
        if scratch is not None and length >= contents.BESIDE_BYTES:
            tensor.CopyFrom(scratch.put(tensor, _parts(file, begin, length, hashing)))
            return
        load_external_data_for_tensor(tensor, str(folder))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise CompileError(f"{what} can't be read: {error}") from error
    hashing(tensor.raw_data)


def _parts(path: Path, begin: int, length: int, hashing: Callable[[bytes], object]) -> Iterator[bytes]:
    """Yield so many bytes of a file, some at a time."""
    with path.open("rb") as file:
        file.seek(begin)
        while length:
            part = file.read(min(length, _PART_BYTES))
            if not part:
                raise OSError(f"{path} became shorter")
            hashing(part)
            length -= len(part)
            yield part
