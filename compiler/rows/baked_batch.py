"""Replaces an exporter's batch in nodes: Resize, Expand, Concat, and where it is merged with another axis.

A node is repaired only if the shapes around it prove the number's meaning: the input's first axis is the
batch, and the node keeps it. A merged axis, as in the shape [128, 768] of (1, 128, 768), is left open if
every operator on it, until a Reshape splits it again, treats its slices separately: then row i of the batch
stays in its own slices. An operator that is missing in the lists below proves nothing, and its node stays
unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from mainspring.compiler.reading.contents import array_of
from mainspring.compiler.reading.normalise import MAIN_DOMAINS

Shape = list[int | str]


class RowRepair:
    """Finds such nodes in a graph and replaces the batch in them by the number of rows at run time."""

    def __init__(self, graph: onnx.GraphProto, known: Mapping[str, Shape], rows: int, batch: str) -> None:
        self._graph = graph
        self._known = known
        self._rows = rows
        self._batch = batch
        self._constants = {tensor.name: tensor for tensor in graph.initializer}

    def run(self) -> dict[str, list[int]]:
        """Repair proven nodes; return their outputs with the dimensions after the batch."""
        done: dict[str, list[int]] = {}
        nodes: list[onnx.NodeProto] = []
        for node in self._graph.node:
            before: list[onnx.NodeProto] = []
            if node.op_type == "Resize":
                before = self._resize(node, done)
            elif node.op_type == "Expand":
                self._expand(node, done)
            elif node.op_type == "Concat":
                before = self._concat(node, done)
            nodes += [*before, node]
        if len(nodes) > len(self._graph.node):
            del self._graph.node[:]
            self._graph.node.extend(nodes)
        return done

    def _resize(self, node: onnx.NodeProto, done: dict[str, list[int]]) -> list[onnx.NodeProto]:
        """A Resize to constant sizes of which the first is the batch."""
        row = self._row(node.input[0])
        sizes = self._integers(node.input[3]) if len(node.input) == 4 else None
        plain = not any(attribute.name == "axes" for attribute in node.attribute)
        if row is None or sizes is None or not plain or sizes[:1] != [self._rows]:
            return []
        if len(sizes) != len(row) + 1:
            return []
        node.input[3], before = self._with_rows(node, node.input[0], sizes[1:])
        done[node.output[0]] = sizes[1:]
        return before

    def _expand(self, node: onnx.NodeProto, done: dict[str, list[int]]) -> None:
        """An Expand of a batch to a constant shape of the same rank: a leading 1 keeps the batch."""
        row, shape = self._row(node.input[0]), self._integers(node.input[1])
        if (
            row is None
            or shape is None
            or len(shape) != len(row) + 1
            or shape[0] != self._rows
            or shape[0] == 1
        ):
            return
        node.input[1] = self._add(node, "shape", np.array([1, *shape[1:]], np.int64))
        done[node.output[0]] = [max(pair) for pair in zip(row, shape[1:], strict=True)]

    def _concat(self, node: onnx.NodeProto, done: dict[str, list[int]]) -> list[onnx.NodeProto]:
        """A Concat of batches and constants: a constant's row, if all its rows are equal, is every row's."""
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
        batches = [name for name in node.input if self._row(name) is not None]
        constants = [name for name in node.input if name in self._constants]
        if not batches or not constants or len(batches) + len(constants) < len(node.input):
            return []
        rank = len(self._known[batches[0]])
        if axis in (0, -rank):
            return []
        before: list[onnx.NodeProto] = []
        for position, name in enumerate(node.input):
            if name not in self._constants:
                continue
            array = array_of(self._constants[name])
            if (
                array.ndim != rank
                or len(array) != self._rows
                or not np.array_equal(array, array[:1].repeat(len(array), 0))
            ):
                return []
            single = self._add(node, f"row{position}", np.ascontiguousarray(array[:1]))
            shape, nodes = self._with_rows(node, batches[0], list(array.shape[1:]), f"{position}")
            expanded = f"{node.output[0]}:expanded{position}"
            expand = helper.make_node(
                "Expand", [single, shape], [expanded], name=f"{node.name}:expand{position}"
            )
            before += [*nodes, expand]
            node.input[position] = expanded
        parts = [self._row(name) or [] for name in batches]
        parts += [list(self._constants[name].dims)[1:] for name in constants]
        row = list(parts[0])
        row[axis % rank - 1] = sum(part[axis % rank - 1] for part in parts)
        done[node.output[0]] = row
        return before

    def _with_rows(
        self, node: onnx.NodeProto, like: str, rest: list[int], suffix: str = ""
    ) -> tuple[str, list[onnx.NodeProto]]:
        """Return the name of a shape with the first dimension of ``like``, and the nodes that make it."""
        prefix = f"{node.name}:{node.output[0]}:{suffix}"
        first = self._add(node, f"first{suffix}", np.zeros(1, np.int64))
        others = self._add(node, f"rest{suffix}", np.array(rest, np.int64))
        return f"{prefix}whole", [
            helper.make_node("Shape", [like], [f"{prefix}shape"], name=f"{prefix}shape"),
            helper.make_node("Gather", [f"{prefix}shape", first], [f"{prefix}rows"], name=f"{prefix}rows"),
            helper.make_node(
                "Concat", [f"{prefix}rows", others], [f"{prefix}whole"], name=f"{prefix}whole", axis=0
            ),
        ]

    def _add(self, node: onnx.NodeProto, what: str, array: npt.NDArray[np.generic]) -> str:
        name = f"{node.name}:{node.output[0]}:{what}"
        self._graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def _row(self, name: str) -> list[int] | None:
        """Return one row's dimensions if the first axis is the batch and the others are known."""
        shape = self._known.get(name)
        if not shape or shape[0] != self._batch:
            return None
        row = [dim for dim in shape[1:] if isinstance(dim, int)]
        return row if len(row) == len(shape) - 1 else None

    def _integers(self, name: str) -> list[int] | None:
        tensor = self._constants.get(name)
        return None if tensor is None else array_of(tensor).astype(np.int64).reshape(-1).tolist()


_UNARY = {
    "Abs", "Cast", "Clip", "Dropout", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "Identity",
    "LeakyRelu", "Log", "Neg", "Relu", "Selu", "Sigmoid", "Sign", "Softplus", "Sqrt", "Tanh",
}  # fmt: skip
"""Elementwise operators of their first input; their other inputs are scalars."""

_BINARY = {"Add", "Div", "Max", "Min", "Mul", "Pow", "Sub", "Sum"}

_ALONG_AXIS = {"LayerNormalization", "LogSoftmax", "Softmax"}


class Chain:
    """Follows a merged axis from one Reshape to the Reshapes that split it."""

    def __init__(self, graph: onnx.GraphProto, known: Mapping[str, Shape], rows: int) -> None:
        self._nodes = list(graph.node)
        self._outputs = {value.name for value in graph.output}
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._known = known
        self._rows = rows
        self.shapes: dict[int, list[int]] = {}
        """New shape of each Reshape on the way, by its position among the nodes."""
        self.whole: dict[str, list[int]] = {}
        """Values whose first axis is the batch alone again, with their other dimensions."""
        self._merged: dict[str, int] = {}

    def follow(self, start: int) -> bool:
        """Follow the Reshape at this position; whether every step is proven."""
        node = self._nodes[start]
        source = self._known.get(node.input[0], ["?"])[1:]
        row = [dim for dim in source if isinstance(dim, int)]
        if len(row) < len(source) or not self._reshape(start, node, math.prod(row)):
            return False
        for index, follower in enumerate(self._nodes[start + 1 :], start + 1):
            if any(name in self._merged for name in follower.input) and not self._step(index, follower):
                return False
        return not self._outputs & self._merged.keys()

    def _step(self, index: int, node: onnx.NodeProto) -> bool:
        """Pass one node that reads a merged value; whether its slices stay separate."""
        first = node.input[0]
        shape = self._static(first)
        if shape is None or node.domain not in MAIN_DOMAINS:
            return False
        if node.op_type == "Reshape" and first in self._merged:
            return self._reshape(index, node, math.prod(shape) // self._rows)
        if node.op_type in _UNARY and first in self._merged:
            proven = all(name not in self._merged for name in node.input[1:])
        elif node.op_type in _BINARY:
            proven = self._aligned(node)
        elif node.op_type in {"MatMul", "Gemm"}:
            proven = self._product(node, len(shape))
        elif node.op_type in _ALONG_AXIS:
            axis = _attribute(node, "axis", -1)
            proven = first in self._merged and (axis + len(shape) if axis < 0 else axis) > 0
            proven = proven and all(name not in self._merged for name in node.input[1:])
        elif node.op_type == "Transpose":
            proven = list(_attribute(node, "perm", [-1]))[:1] == [0]
        else:
            proven = False
        if proven:
            factor = next(self._merged[name] for name in node.input if name in self._merged)
            self._merged.update((name, factor) for name in node.output if name)
        return proven

    def _aligned(self, node: onnx.NodeProto) -> bool:
        """Return whether all inputs are merged in the same way, or constants without an axis along the
        batch."""
        shapes = [self._static(name) for name in node.input]
        rank = max(
            (len(s) for name, s in zip(node.input, shapes, strict=True) if name in self._merged and s),
            default=0,
        )
        factors = {self._merged[name] for name in node.input if name in self._merged}
        return len(factors) == 1 and all(
            shape is not None
            and (len(shape) == rank if name in self._merged else self._broadcast(name, shape, rank))
            for name, shape in zip(node.input, shapes, strict=True)
        )

    def _broadcast(self, name: str, shape: list[int], rank: int) -> bool:
        return name in self._constants and (len(shape) < rank or (len(shape) == rank and shape[0] == 1))

    def _product(self, node: onnx.NodeProto, rank: int) -> bool:
        """Return whether a MatMul or Gemm multiplies each slice with the same weights, or with its own."""
        left, right = node.input[0], node.input[1]
        right_shape = self._static(right)
        if left not in self._merged or right_shape is None:
            return False
        if node.op_type == "Gemm":
            constant = [self._static(name) for name in node.input[2:] if name in self._constants]
            plain = len(constant) == len(node.input) - 2 and all(
                shape is not None and (len(shape) < 2 or shape[0] == 1) for shape in constant
            )
            return right in self._constants and plain and not _attribute(node, "transA", 0)
        if right in self._merged:
            return rank == len(right_shape) >= 3 and self._merged[left] == self._merged[right]
        return right in self._constants and len(right_shape) == 2 and rank >= 2

    def _reshape(self, index: int, node: onnx.NodeProto, row_elements: int) -> bool:
        """Pass a Reshape; whether its first axis consists of whole rows of the given number of elements."""
        tensor = self._constants.get(node.input[1])
        if tensor is None or _attribute(node, "allowzero", 0):
            return False
        shape = numpy_helper.to_array(tensor).astype(np.int64).tolist()
        if not shape or 0 in shape or shape.count(-1) > 1 or shape[:1] == [-1]:
            return False
        total = row_elements * self._rows
        if -1 in shape:
            rest = -math.prod(shape)
            if not rest or total % rest:
                return False
            shape[shape.index(-1)] = total // rest
        if math.prod(shape) != total or shape[0] % self._rows:
            return False
        self.shapes[index] = [-1, *shape[1:]]
        if shape[0] == self._rows:
            self.whole[node.output[0]] = shape[1:]
        else:
            self._merged[node.output[0]] = shape[0] // self._rows
        return True

    def _static(self, name: str) -> list[int] | None:
        """Return the value's shape with the exporter's batch; None if it is unknown."""
        if name in self._constants:
            return list(self._constants[name].dims)
        shape = self._known.get(name)
        if shape is None:
            return None
        static = [dim for dim in shape if isinstance(dim, int)]
        return static if len(static) == len(shape) else None


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    return next((onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)
