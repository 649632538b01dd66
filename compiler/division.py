"""Integer divisions that no values can end the process by.

The least integer divided by -1 is one more than the largest. The processor's instruction traps on it: ONNX
Runtime's kernel for ``Div`` dies by SIGFPE, and every request of the worker with it. (By zero it returns an
error; ``Mod``, and integers of 8 and 16 bits, don't trap.) So where values of a request may come together so,
a division by -1 becomes a negation, which gives what division gives for all other numbers, and for the least
one itself, as numpy and ONNX Runtime's kernels for 8 bits do.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from mainspring.compiler.contents import array_of
from mainspring.compiler.inferring import infer_shapes
from mainspring.compiler.normalise import MAIN_DOMAINS, all_nodes, graphs_of

_TRAPPING: dict[int, type[np.int32 | np.int64]] = {TensorProto.INT32: np.int32, TensorProto.INT64: np.int64}
"""Elements whose division traps."""
_OF_SHAPES = {"Shape", "Size"}
"""Operators whose outputs follow from shapes alone: lengths are never -1."""
_SMALL_ELEMENTS = 1024
"""Integers up to this number may be shapes, from which types of other values follow."""
_WHERE_CAME = 9
"""The opset that brought ``Where``."""


def guard_divisions(model: onnx.ModelProto) -> bool:
    """Have no division of the model trap on any values of its inputs; return whether one might have.

    The model is normalised. Divisors that are constant, or follow from shapes, are left alone.
    """
    opset = next((each.version for each in model.opset_import if each.domain in MAIN_DOMAINS), 0)
    if opset < _WHERE_CAME or all(node.op_type != "Div" for node in all_nodes(model.graph)):
        return False
    try:
        typed = infer_shapes(_without_weights(model))
    except Exception:  # It fails on models that ONNX Runtime runs; their types stay unknown.
        return False
    return _guard(model.graph, typed.graph, _Known({}, {}, set()))


def _without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with inputs in the place of large initializers, which would be copied."""
    light = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    graph = model.graph
    light.graph.node.extend(graph.node)
    light.graph.input.extend(graph.input)
    light.graph.output.extend(graph.output)
    light.graph.value_info.extend(graph.value_info)
    for each in graph.initializer:
        if each.data_type in _TRAPPING and math.prod(each.dims) <= _SMALL_ELEMENTS:
            light.graph.initializer.append(each)
        else:
            light.graph.input.append(helper.make_tensor_value_info(each.name, each.data_type, each.dims))
    return light


class _Known:
    """Facts about the values that a graph sees."""

    def __init__(self, types: dict[str, int], constants: dict[str, bool], loose: set[str]) -> None:
        self.types = types
        """Element types by name."""
        self.constants = constants
        """True for each initializer of which one element is -1, by name."""
        self.loose = loose
        """Names of values that follow from the values of a request."""

    def within(self, graph: onnx.GraphProto, typed: onnx.GraphProto) -> _Known:
        """Return what is known inside a graph; ``typed`` is the same one with types."""
        held = {each.name for each in graph.initializer}
        types = {each.name: each.data_type for each in graph.initializer}
        types |= {
            each.name: each.type.tensor_type.elem_type
            for each in (*typed.input, *typed.value_info, *typed.output)
        }
        constants = {
            each.name: bool(np.any(array_of(each) == -1))
            for each in graph.initializer
            if each.data_type in _TRAPPING
        }
        loose = {each.name for each in graph.input} - held
        return _Known(self.types | types, self.constants | constants, self.loose | loose)


def _guard(graph: onnx.GraphProto, typed: onnx.GraphProto, outside: _Known) -> bool:
    """Guard the divisions of a graph and of those within it; ``typed`` is the same one with types."""
    known, nodes, changed = outside.within(graph, typed), list[onnx.NodeProto](), False
    for node, with_types in zip(graph.node, typed.node, strict=True):
        for inner, its_types in zip(graphs_of(node), graphs_of(with_types), strict=True):
            changed |= _guard(inner, its_types, known)
        if _follows(node, known.loose):
            known.loose.update(node.output)
        if _may_trap(node, known):
            nodes += _guarded(graph, node, known.types[node.input[1]])
            changed = True
        else:
            nodes.append(node)
    if len(nodes) > len(graph.node):
        copied = [onnx.NodeProto.FromString(each.SerializeToString()) for each in nodes]
        del graph.node[:]
        graph.node.extend(copied)
    return changed


def _follows(node: onnx.NodeProto, loose: set[str]) -> bool:
    """Return whether a node's outputs may follow from values of a request; graphs of control flow see all
    names."""
    if node.op_type in _OF_SHAPES:
        return False
    return bool(graphs_of(node)) or any(name in loose for name in node.input)


def _may_trap(node: onnx.NodeProto, known: _Known) -> bool:
    if node.op_type != "Div" or node.domain not in MAIN_DOMAINS:
        return False
    dividend, divisor = node.input
    if known.types.get(divisor) not in _TRAPPING or dividend not in known.loose:
        return False
    return known.constants.get(divisor, divisor in known.loose)


def _guarded(graph: onnx.GraphProto, node: onnx.NodeProto, element: int) -> list[onnx.NodeProto]:
    """Return what computes the same as a division of the graph, and never divides by -1."""
    (dividend, divisor), (quotient,) = node.input, node.output

    def of(what: str) -> str:
        return f"{quotient}.{what}"

    def step(operator: str, inputs: list[str], output: str) -> onnx.NodeProto:
        return helper.make_node(operator, inputs, [output], f"{output}.{operator}")

    for called, number in (("one", 1), ("minus_one", -1)):
        graph.initializer.append(numpy_helper.from_array(np.array(number, _TRAPPING[element]), of(called)))
    return [
        step("Equal", [divisor, of("minus_one")], of("turns")),
        step("Where", [of("turns"), of("one"), divisor], of("by")),
        helper.make_node("Div", [dividend, of("by")], [of("divided")], node.name),
        step("Neg", [dividend], of("negated")),
        step("Where", [of("turns"), of("negated"), of("divided")], quotient),
    ]
