"""The cost of one row at given sizes, counted from the graph; and divisions that could end the process.

Limits of sizes follow from these counts, so that they are the same on every machine. What is not known
without a run (control flow, shapes that follow from values, operators without shape inference) is not
counted, and such a model is timed instead.

The least integer divided by -1 is one more than the largest: the processor traps, and ONNX Runtime's ``Div``
dies by SIGFPE. (By zero it returns an error; ``Mod``, and integers of 8 and 16 bits, don't trap.) Where a
request's values may come together so, a division by -1 becomes a negation, which gives what division gives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.reading.contents import array_of, serialise
from mainspring.compiler.reading.normalise import MAIN_DOMAINS, all_nodes, graphs_of, infer_shapes
from mainspring.compiler.reading.stock import optimise_portably

Shape = tuple[int, ...]

MOST_WORK = 20_000_000_000
"""Multiplications with addition of one row up to which larger sizes are tried: less than half a second of one
core."""

_ELEMENT_WORK = 32
"""Multiplications that a core does while it reads and writes one element of an operator's output in
memory."""

_SMALL_CONSTANT = 1024
"""Elements up to which an initializer may be a shape, and is needed to know others."""

_PRODUCTS = {"MatMul", "MatMulInteger", "QLinearMatMul"}

_CONVOLUTIONS = {"Conv": 1, "ConvInteger": 1, "QLinearConv": 3}
"""Index of the input that is the kernel, by operator."""

_RECURRENT = {"LSTM", "GRU", "RNN"}

_ATTENTION = {"Attention", "MultiHeadAttention", "GroupQueryAttention"}
_SCORE_BYTES = 4
_HEADS = {"q_num_heads", "num_heads"}
_MERGED_HEADS = 3
"""Axes of queries whose last axis has the values of all heads; with one more, heads have an axis."""

_UNKNOWN_COST = {"Einsum"}


class Counted(NamedTuple):
    """The cost of one row."""

    work: float
    """Multiplications with addition, or what takes as long."""
    live_bytes: float
    """The most that activations take at one time."""


class Counter:
    """Counts what a row of one model costs at different sizes."""

    def __init__(self, model: onnx.ModelProto) -> None:
        """``model`` is normalised; what is open of its first axes is the batch."""
        self._skeleton = without_weights(model)
        self._inputs = {value.name for value in model.graph.input}
        own = self._skeleton.graph.input[: len(model.graph.input)]
        first = [value.type.tensor_type.shape.dim[0] for value in own]
        self._rows = max([dim.dim_value for dim in first], default=1) or 1
        for dim in first:
            if not dim.dim_value:
                dim.dim_value = self._rows
        self._known: dict[tuple[tuple[str, int], ...], Counted | None] = {}

    def at(self, sizes: Mapping[str, int]) -> Counted | None:
        """Return what a row costs at a size of each open dimension, by name; None if it can't be counted."""
        key = tuple(sorted(sizes.items()))
        if key not in self._known:
            self._known[key] = self._count(sizes)
        return self._known[key]

    def _count(self, sizes: Mapping[str, int]) -> Counted | None:
        fixed = skeleton_at(self._skeleton, sizes)
        found = _counted(fixed, self._inputs)
        if found is None:
            # With fixed sizes ONNX Runtime folds what shapes are computed with.
            with suppress(CompileError):
                found = _counted(optimise_portably(serialise(fixed)), self._inputs)
        return found and Counted(found.work / self._rows, found.live_bytes / self._rows)


def _counted(model: onnx.ModelProto, inputs: set[str]) -> Counted | None:
    """Count a model of fixed shapes; what does not follow from these inputs is computed before it runs."""
    try:
        graph = infer_shapes(model, data_prop=True).graph
    except Exception:  # onnx raises several classes for models that ONNX Runtime takes.
        return None
    tensors = _tensors(graph)
    shapes = {name: shape for name, (shape, _) in tensors.items()}
    running, moving = set(inputs), []
    for node in graph.node:
        if running.intersection(node.input):
            running.update(node.output)
            moving.append(node)
    costs = [_cost(node, shapes) for node in moving]
    known = [cost for cost in costs if cost is not None]
    outputs = [value.name for value in graph.output]
    return Counted(sum(known), _most_live(moving, outputs, tensors)) if len(known) == len(costs) else None


def without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with large initializers as inputs, so that to infer shapes copies none."""
    skeleton = onnx.ModelProto(ir_version=model.ir_version)
    skeleton.opset_import.extend(model.opset_import)
    graph = skeleton.graph
    graph.name = "graph"
    graph.node.extend(model.graph.node)
    graph.input.extend(model.graph.input)
    for value in model.graph.output:
        graph.output.add().CopyFrom(value)
        graph.output[-1].type.tensor_type.ClearField("shape")
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) <= _SMALL_CONSTANT:
            graph.initializer.append(tensor)
        else:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return skeleton


def skeleton_at(skeleton: onnx.ModelProto, sizes: Mapping[str, int]) -> onnx.ModelProto:
    """Return what `without_weights` made with the open dimensions of its inputs fixed, by their names."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(skeleton)
    for value in fixed.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
    return fixed


def _tensors(graph: onnx.GraphProto) -> dict[str, tuple[Shape, int]]:
    """Return shape and bytes of each tensor whose shape is known."""
    found: dict[str, tuple[Shape, int]] = {}
    for tensor in graph.initializer:
        found[tensor.name] = tuple(tensor.dims), 0
    for value in [*graph.input, *graph.value_info, *graph.output]:
        kind = value.type.tensor_type
        dims = kind.shape.dim
        if kind.HasField("shape") and all(dim.HasField("dim_value") for dim in dims):
            shape = tuple(dim.dim_value for dim in dims)
            found[value.name] = shape, math.prod(shape) * _item_bytes(kind.elem_type)
    return found


def _item_bytes(element: int) -> int:
    try:
        return int(np.dtype(helper.tensor_dtype_to_np_dtype(element)).itemsize)
    except (KeyError, TypeError):
        return 1


def _cost(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> float | None:
    """Return the work of a node; None if it is not known before a run."""
    if any(each.HasField("g") or each.graphs for each in node.attribute) or node.op_type in _UNKNOWN_COST:
        return None
    if any(name and name not in shapes for name in node.output):
        return None
    written = sum(math.prod(shapes[name]) for name in node.output if name)
    given = [shapes.get(name) for name in node.input]
    return written * _ELEMENT_WORK + _products(node, given, written)


def _products(node: onnx.NodeProto, given: Sequence[Shape | None], written: int) -> float:
    """Return the multiplications of a node that writes so many elements."""
    first = given[0] if given else None
    if node.op_type in _PRODUCTS and first:
        return float(written * first[-1])
    if node.op_type == "Gemm" and first:
        turned = any(each.name == "transA" and each.i for each in node.attribute)
        return float(written * first[0 if turned else -1])
    kernel = given[_CONVOLUTIONS.get(node.op_type, 0)] if node.op_type in _CONVOLUTIONS else None
    if kernel:
        return float(written * math.prod(kernel[1:]))
    if node.op_type == "ConvTranspose" and first and given[1]:
        return float(math.prod(first) * math.prod(given[1][1:]))
    if node.op_type in _RECURRENT and first and given[1] and given[2]:
        return float(math.prod(first[:2]) * (math.prod(given[1]) + math.prod(given[2])))
    if scores := _scores(node, given):
        width = written // max(math.prod(first[:-1] if first else ()), 1)
        return float(scores * (2 * width + _ELEMENT_WORK))
    return 0.0


def _scores(node: onnx.NodeProto, given: Sequence[Shape | None]) -> int:
    """Return how many scores attention keeps in memory, of each query on each key; 0 of other operators."""
    queries = given[0] if node.op_type in _ATTENTION else None
    if not queries:
        return 0
    keys = (given[1] if len(given) > 1 else None) or queries
    heads = max((each.i for each in node.attribute if each.name in _HEADS), default=1)
    return math.prod(queries[:-1]) * keys[-2] * (heads if len(queries) == _MERGED_HEADS else 1)


def _most_live(
    nodes: Sequence[onnx.NodeProto], outputs: Sequence[str], tensors: Mapping[str, tuple[Shape, int]]
) -> int:
    """Return the most bytes of tensors between nodes at one time, each kept until its last reader is done."""
    last = {name: place for place, node in enumerate(nodes) for name in node.input}
    last |= dict.fromkeys(outputs, len(nodes))
    live, most = 0, 0
    ends: dict[int, int] = {}
    for place, node in enumerate(nodes):
        for name in node.output:
            if name in tensors:
                live += tensors[name][1]
                end = last.get(name, place)
                ends[end] = ends.get(end, 0) + tensors[name][1]
        given = [tensors[name][0] if name in tensors else None for name in node.input]
        most = max(most, live + _SCORE_BYTES * _scores(node, given))
        live -= ends.pop(place, 0)
    return most


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
