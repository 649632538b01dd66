"""The exporter's batch where it is merged with another axis, as in the shape [128, 768] of (1, 128, 768).

The size of the merged axis may be left open if every operator on it, until a Reshape splits it again, treats
its slices separately: then row i of the batch stays in its own slices. An operator that is missing in the
lists below proves nothing, and the node stays unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from mainspring.compiler.normalise import MAIN_DOMAINS

_UNARY = {
    "Abs", "Cast", "Clip", "Dropout", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "Identity",
    "LeakyRelu", "Log", "Neg", "Relu", "Selu", "Sigmoid", "Sign", "Softplus", "Sqrt", "Tanh",
}  # fmt: skip
"""Elementwise operators of their first input; their other inputs are scalars."""
_BINARY = {"Add", "Div", "Max", "Min", "Mul", "Pow", "Sub", "Sum"}
_ALONG_AXIS = {"LayerNormalization", "LogSoftmax", "Softmax"}

Shape = list[int | str]


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
