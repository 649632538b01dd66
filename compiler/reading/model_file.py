"""Reads an ONNX file from an untrusted source; the result is a model or a `CompileError` for every file.

Truncated files are refused, files that are not ONNX, and external data that is missing, too short, or outside
the model's folder. What no later step expects is rewritten once: sparse constants become dense, optional
tensors are always there, nodes have names of their own, and an output that nothing computes (an input, an
initializer) is computed by an Identity.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import helper, numpy_helper
from onnx.external_data_helper import ExternalDataInfo

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.reading import contents
from mainspring.compiler.reading.contents import Scratch, scratch_in_use
from mainspring.compiler.reading.given_shapes import open_negative

AGAIN = ":as an output"
"""Suffix, inside the graph, of an output's name that an input has too."""

_MOST_BYTES = 1 << 30
"""Most bytes of a sparse tensor that is made dense."""

_MAIN = ("", "ai.onnx")


def make_plain(model: onnx.ModelProto) -> None:
    """Change the model; raise `CompileError` for what means nothing here."""
    graph = model.graph
    if not graph.output:
        raise CompileError("the model has no outputs, so nothing would be answered; export it with some")
    _make_dense(graph)
    _give_optionals(model)
    _compute_outputs(graph)
    for each in _graphs(graph):
        _name_apart(each)


def seen_name(name: str) -> str:
    """Return an output's name as clients see it."""
    return name.removesuffix(AGAIN)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield the graph and those inside it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                yield from _graphs(inner)


def _make_dense(graph: onnx.GraphProto) -> None:
    for each in _graphs(graph):
        each.initializer.extend(_dense(sparse, sparse.values.name) for sparse in each.sparse_initializer)
        del each.sparse_initializer[:]
        for node in each.node:
            for attribute in node.attribute if node.op_type == "Constant" else ():
                if attribute.name == "sparse_value":
                    tensor = _dense(attribute.sparse_tensor, node.output[0])
                    attribute.CopyFrom(helper.make_attribute("value", tensor))


def _dense(sparse: onnx.SparseTensorProto, name: str) -> onnx.TensorProto:
    values = numpy_helper.to_array(sparse.values)
    if math.prod(sparse.dims) * values.itemsize > _MOST_BYTES:
        raise CompileError(
            f"the sparse tensor {name!r} has {math.prod(sparse.dims):,} elements, and is made dense here, "
            f"which takes more than {_MOST_BYTES >> 30} GiB; the model's author can divide it"
        )
    try:
        found = np.zeros(math.prod(sparse.dims), values.dtype)
        places = numpy_helper.to_array(sparse.indices)
        if places.ndim > 1:
            places = np.ravel_multi_index(tuple(places.T), tuple(sparse.dims))
        found[places] = values
    except (IndexError, ValueError) as error:
        raise CompileError(f"the sparse tensor {name!r} has places that it has not: {error}") from error
    return numpy_helper.from_array(found.reshape(tuple(sparse.dims)), name)


def _give_optionals(model: onnx.ModelProto) -> None:
    """Make tensors of optional inputs and outputs: clients always give them, and always get them."""
    graph = model.graph
    values = [value for value in (*graph.input, *graph.output) if _is_optional_tensor(value)]
    if not values:
        return
    for value in values:
        inner = onnx.TypeProto()
        inner.CopyFrom(value.type.optional_type.elem_type)
        value.type.CopyFrom(inner)
    del graph.value_info[:]
    for each in _graphs(graph):
        for node in each.node:
            if node.domain not in _MAIN or node.op_type not in (
                "Optional",
                "OptionalGetElement",
                "OptionalHasElement",
            ):
                continue
            if node.op_type == "OptionalHasElement":
                there = numpy_helper.from_array(np.array(bool(node.input)))
                node.CopyFrom(helper.make_node("Constant", [], node.output, node.name, value=there))
            elif node.input:
                node.CopyFrom(helper.make_node("Identity", node.input, node.output, node.name))


def _is_optional_tensor(value: onnx.ValueInfoProto) -> bool:
    kind = value.type
    inner = kind.optional_type.elem_type.WhichOneof("value")
    return kind.WhichOneof("value") == "optional_type" and inner == "tensor_type"  # type: ignore[no-any-return]


def _compute_outputs(graph: onnx.GraphProto) -> None:
    """Have each output once, and computed by a node."""
    inputs = {value.name: value for value in graph.input}
    initialized = {tensor.name for tensor in graph.initializer}
    outputs = {value.name: value for value in reversed(graph.output)}
    kept = [value for value in graph.output if outputs.pop(value.name, None) is not None]
    for value in kept:
        if value.name not in inputs and value.name not in initialized:
            continue
        again = f"{value.name}{AGAIN}"
        graph.node.append(helper.make_node("Identity", [value.name], [again], f"Identity of {value.name}"))
        value.name = again
    if len(kept) < len(graph.output) or any(value.name.endswith(AGAIN) for value in kept):
        copies = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in kept]
        del graph.output[:]
        graph.output.extend(copies)


def _name_apart(graph: onnx.GraphProto) -> None:
    """Give nodes of one name others, which ONNX Runtime takes for one."""
    often = Counter(node.name for node in graph.node if node.name)
    seen = Counter[str]()
    for node in graph.node:
        if often[node.name] > 1:
            seen[node.name] += 1
            if seen[node.name] > 1:
                node.name = f"{node.name}:{seen[node.name]}"


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
            _load_external(tensor, path, digest.update, scratch if index < initializers else None)
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
    if not (model.graph.node or model.graph.output or model.graph.input) or not model.opset_import:
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
    tensor: onnx.TensorProto, path: Path, hashing: Callable[[bytes], object], scratch: Scratch | None
) -> None:
    """Read the tensor's bytes from its file, which has to be inside the folder of the model at ``path``.

    Bytes of a large tensor go to ``scratch`` if there is one, and all of them to ``hashing``.
    """
    what = f"external data of tensor {tensor.name!r}"
    try:
        info = ExternalDataInfo(tensor)
        file = (path.parent / info.location).resolve()
        inside = _is_beside(file, path, info.location)
    except (ValueError, TypeError, OSError) as error:
        raise CompileError(
            f"{what} is described wrongly ({error}); the model's author can export it again"
        ) from error
    if not info.location or not inside:
        raise CompileError(
            f"{what} is at {info.location!r}, outside the model's folder {path.parent}; "
            "put it beside the model"
        )
    if not file.is_file():
        raise CompileError(f"{what} is missing: {file}; put it beside the model")
    begin, size = info.offset or 0, file.stat().st_size
    if begin < 0 or begin + (info.length or 0) > size:
        raise CompileError(f"{what} ends at byte {begin + (info.length or 0)} of {file}, which has {size}")
    length = info.length or size - begin
    try:
        parts = _parts(file, begin, length, hashing)
        if scratch is not None and length >= contents.BESIDE_BYTES:
            tensor.CopyFrom(scratch.put(tensor, parts))
            return
        tensor.raw_data = b"".join(parts)
    except (OSError, ValueError) as error:
        raise CompileError(f"{what} can't be read: {error}") from error
    tensor.data_location = onnx.TensorProto.DEFAULT
    del tensor.external_data[:]


def _is_beside(file: Path, path: Path, location: str) -> bool:
    """Say whether a file is inside the folder of the model at ``path``, with links resolved.

    Where the model is a link itself, as in the cache of a hub, what lies beside its target is, too.
    """
    if file.is_relative_to(path.parent.resolve()):
        return True
    return ".." not in Path(location).parts and file.parent == path.resolve().parent


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
