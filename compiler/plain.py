"""Rewriting what ONNX allows in a graph and no later step expects: done once, as the file is read.

Sparse constants become dense, optional tensors are always there, nodes have names of their own, and what is
an output without being computed (an input, an initializer) is computed by an Identity.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import helper, numpy_helper

from mainspring.compiler.artifact.errors import CompileError

AGAIN = ":as an output"
"""Suffix, inside the graph, of an output's name that an input has too."""
_MOST_BYTES = 1 << 30
"""Most bytes of a sparse tensor that is made dense."""
_MAIN = ("", "ai.onnx")
_OPTIONAL = ("Optional", "OptionalGetElement", "OptionalHasElement")


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
