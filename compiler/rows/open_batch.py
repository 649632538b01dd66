"""Making the batch axis symbolic, where the exporter baked its own batch into the model.

A model exported with a batch of 1 says so in its inputs, and often in the constant shape of a Reshape. There
the leading 1 may be replaced by "as in the input" if the input's first axis is provably the batch: a Reshape
keeps the order of the elements, every row has as many as the shape's other dimensions say, so row i stays
row i. A less certain node stays unchanged, and the model is refused if it does not run with other batches.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

from mainspring.compiler.artifact.errors import AS_IT_IS, NoRows
from mainspring.compiler.artifact.manifest import BATCH
from mainspring.compiler.reading.contents import array_of
from mainspring.compiler.reading.normalise import AXES_ARE_INPUTS, MAIN_DOMAINS, infer_shapes, opset_of
from mainspring.compiler.rows.baked_batch import Chain, RowRepair

_SMALL = 1024
"""Elements up to which a constant may be a shape; larger ones only cost time in shape inference."""


def baked_batch(model: onnx.ModelProto) -> int | None:
    """Return the number of rows that the exporter fixed; None if it left the batch open everywhere.

    Raises `NoRows` if inputs have different numbers of rows, or none.
    """
    fixed = {}
    for value in model.graph.input:
        dim = value.type.tensor_type.shape.dim[0]
        if dim.HasField("dim_value"):
            fixed[value.name] = dim.dim_value
    if len({*fixed.values()}) > 1 or 0 in fixed.values():
        raise NoRows(
            f"the inputs' first axes are {fixed}, so they aren't all the same batch; "
            f"the model's author can export it with a dynamic first axis for each input; or {AS_IT_IS}"
        )
    return next(iter(fixed.values()), None)


def open_batch(model: onnx.ModelProto) -> None:
    """Make every input's first axis symbolic and forget shapes inferred from its old value."""
    for value in model.graph.input:
        dim = value.type.tensor_type.shape.dim[0]
        dim.Clear()
        dim.dim_param = BATCH
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]


def name_squeezed(model: onnx.ModelProto) -> None:
    """Give each Squeeze without axes those that have one element, of which the batch is none.

    Else it would take the batch away, too, where that has but one row. ``model`` has an open batch; a node
    before which dimensions are not known by number or name stays unchanged.
    """
    bare = [node for node in model.graph.node if _squeezes_all(node)]
    known = _inferred(model, {}) if bare else {}
    for node in bare:
        shape = known.get(node.input[0])
        if not shape or shape[0] != BATCH or "?" in shape:
            continue
        axes = [axis for axis, dim in enumerate(shape) if dim == 1]
        if not axes:
            node.op_type = "Identity"
        elif opset_of(model) < AXES_ARE_INPUTS:
            node.attribute.append(helper.make_attribute("axes", axes))
        else:
            name = f"{node.output[0]}:axes"
            model.graph.initializer.append(numpy_helper.from_array(np.array(axes, np.int64), name))
            node.input.append(name)


def _squeezes_all(node: onnx.NodeProto) -> bool:
    bare = len([*filter(None, node.input)]) == 1 and not node.attribute
    return node.op_type == "Squeeze" and node.domain in MAIN_DOMAINS and bare


def repair_reshapes(model: onnx.ModelProto, rows: int) -> tuple[list[str], list[str]]:
    """Replace a baked batch of ``rows`` in Reshape nodes; return the names of repaired and of other nodes.

    ``model`` has an open batch. The other nodes have the number in their shape, but nothing proves its
    meaning.
    """
    repaired: list[str] = []
    facts: dict[str, list[int]] = {}
    while True:
        known = _inferred(model, facts)
        baked = _baked_reshapes(model.graph, rows)
        proven = {
            name: shape
            for name, shape in baked.items()
            if _is_batch_first(known.get(shape.node.input[0])) and not _zero_is_zero(shape.node)
        }
        for name, (node, shape) in proven.items():
            _give_shape(model.graph, node, [0, *shape[1:]])
            repaired.append(name)
        if not proven:
            others, found = _repair_others(model.graph, known, rows)
            if not others:
                return repaired, list(baked)
            repaired += others
            facts |= found


class _Baked(NamedTuple):
    node: onnx.NodeProto
    shape: list[int]


def _baked_reshapes(graph: onnx.GraphProto, rows: int) -> dict[str, _Baked]:
    """Return the Reshapes whose constant shape begins with ``rows``, by name, with their shapes."""
    shapes = {
        tensor.name: array_of(tensor).tolist()
        for tensor in graph.initializer
        if tensor.data_type == onnx.TensorProto.INT64 and len(tensor.dims) == 1
    }
    dependent = _batch_dependent(graph)
    return {
        node.name: _Baked(node, shapes[node.input[1]])
        for node in graph.node
        if node.op_type == "Reshape"
        and len(node.input) == 2
        and node.input[0] in dependent
        and shapes.get(node.input[1], [])[:1] == [rows]
    }


def _repair_others(
    graph: onnx.GraphProto, known: dict[str, list[int | str]], rows: int
) -> tuple[list[str], dict[str, list[int]]]:
    """Repair nodes besides plain Reshapes; return their names, and values that are batches of these rows."""
    whole = RowRepair(graph, known, rows, BATCH).run()
    if whole:
        return [node.name for node in graph.node if node.output[0] in whole], whole
    for index, node in enumerate(graph.node):
        if node.op_type != "Reshape" or not _is_batch_first(known.get(node.input[0])):
            continue
        chain = Chain(graph, known, rows)
        if (known.get(node.output[0]) or [BATCH])[0] != BATCH and chain.follow(index):
            for position, shape in chain.shapes.items():
                _give_shape(graph, graph.node[position], shape)
            return [graph.node[position].name for position in chain.shapes], chain.whole
    return [], {}


def _give_shape(graph: onnx.GraphProto, node: onnx.NodeProto, shape: list[int]) -> None:
    """Give a Reshape this shape, as an initializer of its own."""
    name = f"{node.name}:{node.output[0]}:shape"
    node.input[1] = name
    graph.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), name))


def _zero_is_zero(node: onnx.NodeProto) -> bool:
    """Return whether a 0 in the node's shape would mean an empty dimension instead of the input's."""
    return any(attribute.name == "allowzero" and attribute.i for attribute in node.attribute)


def _batch_dependent(graph: onnx.GraphProto) -> set[str]:
    """Return the names of all values that depend on an input."""
    names = {value.name for value in graph.input}
    for node in graph.node:
        if any(name in names for name in node.input):
            names.update(node.output)
    return names


def _is_batch_first(shape: list[int | str] | None) -> bool:
    """Return whether the first axis is the batch, and all others are known."""
    return (
        bool(shape) and shape is not None and shape[0] == BATCH and all(isinstance(d, int) for d in shape[1:])
    )


def _inferred(model: onnx.ModelProto, facts: dict[str, list[int]]) -> dict[str, list[int | str]]:
    """Return the shapes that follow from the open batch, with the symbol for the batch as a string.

    ``facts`` are values whose first axis is known to be the batch, with their other dimensions.
    """
    light = onnx.ModelProto()
    light.ir_version = max(model.ir_version, 4)
    light.opset_import.extend(model.opset_import)
    light.graph.name = "shapes"
    light.graph.input.extend(model.graph.input)
    light.graph.output.extend(model.graph.output)
    light.graph.node.extend(model.graph.node)
    for tensor in model.graph.initializer:
        if int(np.prod(tensor.dims)) <= _SMALL:
            light.graph.initializer.append(tensor)
        else:
            value = helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            light.graph.input.append(value)
    for name, row in facts.items():
        value = helper.make_tensor_value_info(name, onnx.TensorProto.UNDEFINED, [BATCH, *row])
        light.graph.value_info.append(value)
    try:
        result = infer_shapes(light, data_prop=True)
    except Exception:  # onnx raises errors of any class; without shapes nothing is repaired.
        return {}
    return {value.name: _shape(value) for value in [*result.graph.value_info, *result.graph.input]}


def _shape(value: onnx.ValueInfoProto) -> list[int | str]:
    dims = value.type.tensor_type.shape.dim
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in dims]
