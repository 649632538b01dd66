"""One form for all ONNX files, with named open dimensions, and a clear error for files that can't have it.

Initializers are not inputs (IR 3 lists them as such), constants are initializers, functions are inlined,
every node has a name, every input and output is a dense tensor of numbers with an axis for the rows and
otherwise fixed dimensions. ``rows`` handles the batch axis itself.
"""

from __future__ import annotations

import graphlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, inliner, numpy_helper, shape_inference

from mainspring.compiler.artifact.errors import AS_IT_IS, CompileError, NoRows
from mainspring.compiler.reading.given_shapes import shape_option
from mainspring.messages import MOST_TENSORS
from mainspring.messages.model import TEXT_BYTES


class OpenAxis(NamedTuple):
    """An open dimension of an input."""

    input: int
    axis: int
    """Number of the axis, without the batch axis."""
    name: str


def open_axes(model: onnx.ModelProto) -> list[OpenAxis]:
    """Return the open dimensions behind the first axis of each input."""
    return [
        OpenAxis(index, axis, dim.dim_param)
        for index, value in enumerate(model.graph.input)
        for axis, dim in enumerate(value.type.tensor_type.shape.dim[1:])
        if not dim.HasField("dim_value")
    ]


def check_limits(model: onnx.ModelProto, most: Mapping[str, int]) -> None:
    """Raise `NoRows` if a limit is given for an input's first axis, which is not a number of rows then."""
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        if len(dims) and dims[0].dim_param in most:
            raise NoRows(
                f"the first axis of input {value.name!r} is {dims[0].dim_param!r}, to which `--max` gives a "
                f"limit, so it isn't the batch; or {AS_IT_IS}"
            )


def name_open_dims(model: onnx.ModelProto, *, whole: bool) -> None:
    """Give each input's open dimensions a name; raise `NoRows` if the batch's name is one of another.

    If ``whole``, the first axis is not a batch.
    """
    batches = set[str]()
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        if not whole and len(dims) and dims[0].dim_param:
            batches.add(dims[0].dim_param)
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if axis == 0 and not whole:
                continue
            if not dim.HasField("dim_value") and not dim.dim_param:
                dim.dim_param = f"{value.name}.{axis}"
            if dim.dim_param in batches:
                raise NoRows(
                    f"dimension {axis} of input {value.name!r} is the number of rows ({dim.dim_param}); rows "
                    "can't share a run of such a model; fix the dimension with `--shape`"
                )


MAIN_DOMAINS = ("", "ai.onnx")
"""The names of the domain of ONNX's own operators."""

_DRAWING = {
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
}

_CONSTANT_VALUES = {
    "value_int": np.int64,
    "value_ints": np.int64,
    "value_float": np.float32,
    "value_floats": np.float32,
}

_AXES = "the leading axis"

SCAN_WITHOUT_BATCH = 9
"""First opset whose Scan has no batch axis of its own, so that rows may be proven to be apart in it."""

CONTROL_FLOW = (
    "control flow: the rows of a batch could need different branches, or more turns than others; the model's "
    f"author can export it with the branch decided and loops unrolled; or {AS_IT_IS}"
)

AXES_ARE_INPUTS = 13
"""First opset whose Squeeze and Unsqueeze have their axes as an input."""


def normalise(model: onnx.ModelProto, *, whole: bool = False, symbols: bool = False) -> onnx.ModelProto:
    """Return an equal model in the form that the other steps expect; raise `CompileError`.

    If ``whole``, the model has no axis for rows, and gets a leading axis of size 1. With ``symbols``, other
    dimensions of inputs may be open; they all have names then.
    """
    normal = onnx.ModelProto()
    normal.CopyFrom(model)
    if normal.functions:
        normal = _inlined(normal)
    # Up to IR 3 every initializer has to be an input too; from 4 on one that isn't is constant.
    normal.ir_version = max(normal.ir_version, 4)
    graph = normal.graph
    _put_in_order(graph)
    for index, node in enumerate(graph.node):
        node.name = node.name or f"{node.op_type}_{index}"
    for node in all_nodes(graph):
        _check_node(node, opset_of(normal), whole=whole)
    _constants_to_initializers(graph)
    initialized = {tensor.name for tensor in graph.initializer}
    initialized |= {sparse.values.name for sparse in graph.sparse_initializer}
    inputs = [value for value in graph.input if value.name not in initialized]
    del graph.input[:]
    graph.input.extend(inputs)
    if not graph.input:
        raise CompileError(
            "the model has no input, so it would answer every request alike; give it one, such as the values "
            "of an initializer"
        )
    _give_types(normal)
    for value in [*graph.input, *graph.output]:
        numpy_dtype(value)
    for kind, values in (("inputs", graph.input), ("outputs", graph.output)):
        if len(values) > MOST_TENSORS:
            raise CompileError(
                f"the model has {len(values):,} {kind}, and a request or an answer has at most "
                f"{MOST_TENSORS:,} tensors; the model's author can join some (Concat, or Split behind one)"
            )
    if symbols:
        name_open_dims(normal, whole=whole)
    if whole:
        check_whole(normal, symbols=symbols)
        give_leading_axes(normal)
    for value in graph.input:
        _check_input(value, symbols=symbols)
    return normal


def _give_types(model: onnx.ModelProto) -> None:
    """Give outputs that the file leaves without a type, as ONNX Runtime takes them, the one that follows."""
    if all(value.type.WhichOneof("value") for value in model.graph.output):
        return
    # What can't be inferred stays without a type, which is refused by name.
    with suppress(Exception):
        for value, inferred in zip(model.graph.output, infer_shapes(model).graph.output, strict=True):
            value.type.CopyFrom(inferred.type)


def _inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with the functions of its own in the place of their calls; raise `CompileError`."""
    try:
        return inliner.inline_local_functions(model)
    # onnx raises several classes, for functions that call one another in a circle.
    except Exception as error:
        raise CompileError(
            f"the model's functions can't be put in the place of their calls: {error}; the model's author "
            "can export it without functions"
        ) from error


def _put_in_order(graph: onnx.GraphProto) -> None:
    """Sort the nodes, those of inner graphs too, so that each stands behind those whose outputs it reads.

    ONNX asks for that, and ONNX Runtime does not. Circles are left to it to name.
    """
    for inner in [inner for node in graph.node for inner in graphs_of(node)]:
        _put_in_order(inner)
    maker = {name: place for place, node in enumerate(graph.node) for name in node.output if name}
    before = {
        place: sorted({maker[name] for name in reads(node) if name in maker})
        for place, node in enumerate(graph.node)
    }
    if all(first < place for place, firsts in before.items() for first in firsts):
        return
    with suppress(graphlib.CycleError):
        nodes = [graph.node[place] for place in graphlib.TopologicalSorter(before).static_order()]
        del graph.node[:]
        graph.node.extend(nodes)


def reads(node: onnx.NodeProto) -> set[str]:
    """Return the names that the node and the graphs that it runs read."""
    inner = [name for graph in graphs_of(node) for each in all_nodes(graph) for name in each.input]
    given = [value.name for graph in graphs_of(node) for value in graph.output]
    return {*node.input, *inner, *given}


_INSTEAD = (
    "inputs and outputs must be dense tensors of text, bool, int8 to int64, uint8 to uint64, bfloat16, "
    "float16, float32 or float64, which the protocols have: cast it inside the model"
)


_OTHERS = {
    "map": "the model's author can convert it so that it gives scores as a tensor: skl2onnx's "
    "option `zipmap=False`",
    "sequence": "the model's author can give each of its elements an input or output of its own; where it "
    "holds maps, convert it with skl2onnx's option `zipmap=False`",
    "optional": "the model's author can export it with the value always there, or without it",
    "sparse tensor": "the model's author can give it as a dense tensor",
}
"""Remedies for what is no tensor, by ONNX's word for it."""


def numpy_dtype(value: onnx.ValueInfoProto, text_bytes: int = TEXT_BYTES) -> str:
    """Return the numpy name of an input's or output's element type; raise `CompileError` if it has none.

    Texts have slots of ``text_bytes``.
    """
    if value.type.WhichOneof("value") == "tensor_type":
        element = value.type.tensor_type.elem_type
        if element == TensorProto.STRING:
            return f"S{text_bytes}"
        if element == TensorProto.BFLOAT16:
            return "bfloat16"
        if element in helper.get_all_tensor_dtypes():
            dtype = helper.tensor_dtype_to_np_dtype(element)
            if dtype.isbuiltin == 1 and dtype.kind in "biuf":
                return str(dtype.name)
    kind = _kind_of(value)
    raise CompileError(f"{value.name!r} is {kind}; {_OTHERS.get(kind, _INSTEAD)}")


def _kind_of(value: onnx.ValueInfoProto) -> str:
    """Return the kind of an unsupported input or output, in ONNX's words."""
    kind: str = value.type.WhichOneof("value") or ""
    if not kind:
        return "of no type, and none follows from the graph"
    if kind != "tensor_type":
        return kind.replace("_", " ").replace(" type", "")
    element = value.type.tensor_type.elem_type
    if element not in TensorProto.DataType.values():
        return f"a tensor of the unknown type {element}"
    return f"tensor({TensorProto.DataType.Name(element).lower()})"


def opset_of(model: onnx.ModelProto) -> int:
    """Return the version of ONNX's own operators; 0 if the model uses none."""
    return max((entry.version for entry in model.opset_import if entry.domain in MAIN_DOMAINS), default=0)


def graphs_of(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the graphs that the node runs: it is control flow if there are any."""
    return [
        graph
        for attribute in node.attribute
        for graph in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]
    ]


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the graph's nodes and, behind each, those of the graphs that it runs."""
    for node in graph.node:
        yield node
        for inner in graphs_of(node):
            yield from all_nodes(inner)


def draws(node: onnx.NodeProto) -> bool:
    """Say whether the node draws random numbers."""
    return node.op_type in _DRAWING and node.domain in MAIN_DOMAINS


def rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Rename values where nodes read and write them, also in graphs of control flow, which see them."""
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for inner in graphs_of(node):
            rename(inner, names)


def _check_node(node: onnx.NodeProto, opset: int, *, whole: bool) -> None:
    what = f"node {node.name!r} ({node.op_type})"
    if graphs_of(node) and not whole and (node.op_type != "Scan" or opset < SCAN_WITHOUT_BATCH):
        raise NoRows(f"{what} is {CONTROL_FLOW}")
    if draws(node) and not whole:
        raise NoRows(
            f"{what} draws random numbers, so nothing shows whose numbers a row gets beside others; the "
            f"model's author can make them an input; or {AS_IT_IS}"
        )


def _constants_to_initializers(graph: onnx.GraphProto) -> None:
    """Turn Constant nodes into initializers, and ConstantOfShape of a known shape too."""
    known = {tensor.name: tensor for tensor in graph.initializer}
    kept = []
    for node in graph.node:
        tensor = _constant(node, known)
        if tensor is None:
            kept.append(node)
        else:
            tensor.name = node.output[0]
            known[tensor.name] = tensor
            graph.initializer.append(tensor)
    if len(kept) < len(graph.node):
        del graph.node[:]
        graph.node.extend(kept)


def _constant(node: onnx.NodeProto, known: dict[str, onnx.TensorProto]) -> onnx.TensorProto | None:
    """Return the value of ``node`` if its type alone makes it constant."""
    attributes = {attribute.name: attribute for attribute in node.attribute}
    if node.op_type == "Constant" and node.domain in MAIN_DOMAINS:
        if "value" in attributes:
            tensor = onnx.TensorProto()
            tensor.CopyFrom(attributes["value"].t)
            return tensor
        for name, dtype in _CONSTANT_VALUES.items():
            if name in attributes:
                return numpy_helper.from_array(np.array(helper.get_attribute_value(attributes[name]), dtype))
    if node.op_type == "ConstantOfShape" and node.input[0] in known:
        shape = numpy_helper.to_array(known[node.input[0]]).tolist()
        value = (
            numpy_helper.to_array(attributes["value"].t) if "value" in attributes else np.zeros(1, np.float32)
        )
        return numpy_helper.from_array(np.full(shape, value.reshape(-1)[0], value.dtype))
    return None


def _check_input(value: onnx.ValueInfoProto, *, symbols: bool) -> None:
    """Refuse an input without an axis for rows; or with another dynamic dimension, unless it may have it."""
    shape = value.type.tensor_type.shape
    if not value.type.tensor_type.HasField("shape") or not shape.dim:
        raise NoRows(
            f"input {value.name!r} has no axis for the rows; every input needs a first axis that is the "
            f"batch (if the model only doesn't say its shape, `--shape {value.name}=1,...` does)"
            f"; or {AS_IT_IS}"
        )
    for axis, dim in enumerate(shape.dim[1:], 1):
        if not symbols and (not dim.HasField("dim_value") or dim.dim_value < 0):
            name = dim.dim_param or "unnamed"
            raise CompileError(
                f"dimension {axis} of input {value.name!r} is dynamic ({name}), but only the batch may be; "
                f"fix it with `mainspring compile ... {shape_option(value)}`, a number for each name"
            )


def check_whole(model: onnx.ModelProto, *, symbols: bool = False) -> None:
    """Raise `CompileError` for an input with an unknown dimension, or shape if dimensions may be open."""
    for value in model.graph.input:
        if not value.type.tensor_type.HasField("shape"):
            raise CompileError(
                f"input {value.name!r} has no shape, and without an axis for rows all of it has to be known; "
                "give it as dims in config.pbtxt, or with `--shape`"
            )
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if not symbols and not dim.HasField("dim_value"):
                raise CompileError(
                    f"dimension {axis} of input {value.name!r} is dynamic ({dim.dim_param or 'unnamed'}), "
                    f"and the model is to be served whole: fix it with `{shape_option(value, whole=True)}`"
                )


def give_leading_axes(model: onnx.ModelProto) -> None:
    """Give each input and output of a normalised model a leading axis of 1.

    A model without an axis for rows reads and writes whole tensors. All other components treat a run of such
    a model as a batch of one row. So a Squeeze before the model removes each input's leading axis, and an
    Unsqueeze behind the model adds one to each output.
    """
    graph = model.graph
    inside = {value.name: f"{value.name}:whole" for value in [*graph.input, *graph.output]}
    rename(graph, inside)
    for tensor in graph.initializer:
        tensor.name = inside.get(tensor.name, tensor.name)
    opset = opset_of(model)
    taken = [_moved("Squeeze", value.name, inside[value.name], opset) for value in graph.input]
    given = [_moved("Unsqueeze", inside[value.name], value.name, opset) for value in graph.output]
    nodes = [*taken, *graph.node, *given]
    del graph.node[:]
    graph.node.extend(nodes)
    if opset >= AXES_ARE_INPUTS:
        graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.int64), _AXES))
    for value in graph.input:
        dims = [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        value.CopyFrom(
            helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, [1, *dims])
        )
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    del graph.value_info[:]


def _moved(operator: str, name: str, into: str, opset: int) -> onnx.NodeProto:
    if opset >= AXES_ARE_INPUTS:
        return helper.make_node(operator, [name, _AXES], [into], name=f"{operator} of {name}")
    return helper.make_node(operator, [name], [into], name=f"{operator} of {name}", axes=[0])


_VALUES = {
    "values_strings": TensorProto.STRING,
    "values_int64s": TensorProto.INT64,
    "values_floats": TensorProto.FLOAT,
}


def infer_shapes(model: onnx.ModelProto, *, data_prop: bool = False, strict: bool = False) -> onnx.ModelProto:
    """Return the model with the shapes that follow from those of its inputs; raises what onnx raises.

    If ``strict``, that is also done for a contradiction within the graph.
    """
    if any(map(is_fatal, all_nodes(model.graph))):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        model = copy
        for node in filter(is_fatal, [*all_nodes(model.graph)]):
            kinds = [_VALUES[each.name] for each in node.attribute if each.name in _VALUES]
            to = kinds[0] if kinds else TensorProto.STRING
            node.CopyFrom(helper.make_node("Cast", node.input, node.output, name=node.name, to=to))
    return shape_inference.infer_shapes(model, data_prop=data_prop, strict_mode=strict)


def is_fatal(node: onnx.NodeProto) -> bool:
    """Say whether inference of this node alone may end the process."""
    return node.op_type == "LabelEncoder" and node.domain == "ai.onnx.ml"
