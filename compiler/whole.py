"""Models without an axis for rows: what they take and give is one whole tensor, whatever its shape.

To everything behind the compiler a run of one is a batch of a single row. So each input gets a leading axis
of 1, which is taken away again before the model, and each output gets one behind it.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.shapes import shape_option

_AXES = "the leading axis"
_AXES_ARE_INPUTS = 13
"""From this opset on Squeeze and Unsqueeze have their axes as an input."""


def check_whole(model: onnx.ModelProto) -> None:
    """Raise `CompileError` for an input that has not all of its dimensions."""
    for value in model.graph.input:
        if not value.type.tensor_type.HasField("shape"):
            raise CompileError(
                f"input {value.name!r} has no shape, and without an axis for rows all of it has to be known; "
                "give it as dims in config.pbtxt, or with `--shape`"
            )
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value"):
                raise CompileError(
                    f"dimension {axis} of input {value.name!r} is dynamic ({dim.dim_param or 'unnamed'}), "
                    f"and the model is to be served whole: fix it with `{shape_option(value, whole=True)}`"
                )


def give_leading_axes(model: onnx.ModelProto) -> None:
    """Give each input and output of a normalised model a leading axis of 1."""
    graph = model.graph
    inside = {value.name: f"{value.name}:whole" for value in [*graph.input, *graph.output]}
    for node in graph.node:
        node.input[:] = [inside.get(name, name) for name in node.input]
        node.output[:] = [inside.get(name, name) for name in node.output]
    for tensor in graph.initializer:
        tensor.name = inside.get(tensor.name, tensor.name)
    opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=1)
    taken = [_moved("Squeeze", value.name, inside[value.name], opset) for value in graph.input]
    given = [_moved("Unsqueeze", inside[value.name], value.name, opset) for value in graph.output]
    nodes = [*taken, *graph.node, *given]
    kept = [_copy(node) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)
    if opset >= _AXES_ARE_INPUTS:
        graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.int64), _AXES))
    for value in graph.input:
        dims = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        value.CopyFrom(
            helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, [1, *dims])
        )
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    del graph.value_info[:]


def _moved(operator: str, name: str, into: str, opset: int) -> onnx.NodeProto:
    if opset >= _AXES_ARE_INPUTS:
        return helper.make_node(operator, [name, _AXES], [into], name=f"{operator} of {name}")
    return helper.make_node(operator, [name], [into], name=f"{operator} of {name}", axes=[0])


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy
