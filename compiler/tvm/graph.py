"""An ONNX model in the form that goes to TVM: portable operators, weights as inputs, canonical names.

ONNX Runtime's own basic optimisations come first: they fold constants and batch norms, remove operators
without effect, and leave only operators of the standard. Then ``split`` takes the weights out, as it does for
the ``onnxruntime`` engine. The result has only canonical names (TVM makes identifiers of names, and
``layer/0/weight`` is not one), and is the same for models of the same architecture.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import helper, numpy_helper

from mainspring.compiler.program.split import Split, split
from mainspring.compiler.reading.stock import optimise_portably
from mainspring.compiler.reference import Prepared

_PARAMETERS = {
    "Clip": (1, 2),
    "Pad": (1, 2, 3),
    "Resize": (1, 2, 3),
    "Upsample": (1,),
    "TopK": (1,),
    "OneHot": (1, 2),
    "Range": (0, 1, 2),
}
"""Inputs that are parameters of an operator, not its operands: kernels need them constant."""


def portable(prepared: Prepared) -> Split:
    """Return the model, split into graph and weights; raise `CompileError` if ONNX Runtime can't open it."""
    model = optimise_portably(prepared.content)
    _in_binary_operators(model.graph)
    return split(model, prepared.inputs, prepared.outputs, _structural(model.graph))


def _structural(graph: onnx.GraphProto) -> frozenset[str]:
    """Return the initializers that stay in the graph: single numbers, and operators' parameters."""
    single = {tensor.name for tensor in graph.initializer if math.prod(tensor.dims) <= 1}
    parameters = {
        node.input[position]
        for node in graph.node
        for position in _PARAMETERS.get(node.op_type, ())
        if position < len(node.input) and node.input[position]
    }
    return frozenset(single | parameters)


def _in_binary_operators(graph: onnx.GraphProto) -> None:
    """Write Sum as Adds and Clip as comparisons: TVM would stack Sum's inputs, and does not fuse its Clip."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type == "Sum" and len(node.input) > 1:
            nodes += _additions(node)
        elif node.op_type == "Clip":
            nodes += _comparisons(node, constants, graph)
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def _additions(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    value, nodes = node.input[0], []
    for position, other in enumerate(node.input[1:], 2):
        output = node.output[0] if position == len(node.input) else f"{node.output[0]}:{position}"
        nodes.append(helper.make_node("Add", [value, other], [output], f"{node.name}:{position}"))
        value = output
    return nodes


def _comparisons(
    node: onnx.NodeProto, constants: dict[str, onnx.TensorProto], graph: onnx.GraphProto
) -> list[onnx.NodeProto]:
    """Return the nodes for a Clip; the Clip itself if its bounds are unknown."""
    bounds = _bounds(node, constants, graph)
    value, nodes = node.input[0], []
    for position, (operator, bound) in enumerate(bounds):
        output = node.output[0] if position == len(bounds) - 1 else f"{node.output[0]}:{operator}"
        beyond = f"{output}:beyond"
        nodes.append(helper.make_node(operator, [value, bound], [beyond], beyond))
        nodes.append(helper.make_node("Where", [beyond, bound, value], [output], output))
        value = output
    return nodes or [node]


def _bounds(
    node: onnx.NodeProto, constants: dict[str, onnx.TensorProto], graph: onnx.GraphProto
) -> list[tuple[str, str]]:
    """Return a Clip's bounds as comparisons with constants; empty if a bound is unknown."""
    found = []
    for position, (operator, name) in enumerate((("Less", "min"), ("Greater", "max")), 1):
        attribute = next((each for each in node.attribute if each.name == name), None)
        if attribute is not None:
            bound = f"{node.output[0]}:{name}"
            graph.initializer.append(numpy_helper.from_array(np.array(attribute.f, np.float32), bound))
            found.append((operator, bound))
        elif position < len(node.input) and node.input[position]:
            tensor = constants.get(node.input[position])
            if tensor is None:
                return []
            found.append((operator, node.input[position]))
    return found
