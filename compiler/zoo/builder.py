"""Writing an architecture down layer by layer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from mainspring.compiler.zoo.architecture import Architecture, Plan, Role

OPSET = 20
_IR_VERSION = 9


class Builder:
    """A graph that grows. Methods take and return names of values; rows are the first axis of all of them."""

    def __init__(self, name: str) -> None:
        self._graph = onnx.GraphProto(name=name)
        self._plans: list[Plan] = []

    def input(self, name: str, shape: Sequence[int], element: int = TensorProto.FLOAT) -> str:
        """Add an input of this shape for one row."""
        self._graph.input.append(helper.make_tensor_value_info(name, element, ["batch", *shape]))
        return name

    def output(self, value: str, name: str, shape: Sequence[int]) -> None:
        """Give ``value`` out under ``name``."""
        self._graph.node.append(helper.make_node("Identity", [value], [name], name=f"output_{name}"))
        self._graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape]))

    def node(self, operator: str, inputs: Sequence[str], **attributes: int | float | Sequence[int]) -> str:
        """Add a node with one output; return the output."""
        name = f"{operator}_{len(self._graph.node)}"
        node = helper.make_node(operator, inputs, [f"{name}:0"], name=name)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
        self._graph.node.append(node)
        return f"{name}:0"

    def constant(self, *values: int) -> str:
        """Add a vector of integers: a shape, axes."""
        name = f"constant_{len(self._graph.initializer)}"
        self._graph.initializer.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def scalar(self, value: float) -> str:
        """Add a number that belongs to the architecture, not to the weights."""
        name = f"scalar_{len(self._graph.initializer)}"
        self._graph.initializer.append(numpy_helper.from_array(np.array(value, np.float32), name))
        return name

    def weight(self, shape: Sequence[int], role: Role, fan_in: int = 1) -> str:
        """Plan a weight; return its name."""
        name = f"{role}_{len(self._plans)}"
        self._plans.append(Plan(name, tuple(shape), role, fan_in))
        return name

    def conv(self, x: str, channels: tuple[int, int], kernel: int, stride: int = 1, groups: int = 1) -> str:
        """Convolve (in, out) channels without a bias, padded so that stride 1 keeps the size."""
        shape = (channels[1], channels[0] // groups, kernel, kernel)
        weight = self.weight(shape, Role.KERNEL, math.prod(shape[1:]))
        pad = kernel // 2
        return self.node(
            "Conv", [x, weight], kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4, group=groups
        )

    def batch_norm(self, x: str, channels: int, scale: Role = Role.SCALE) -> str:
        """Normalise by stored statistics."""
        roles = (scale, Role.BIAS, Role.BIAS, Role.VARIANCE)
        return self.node("BatchNormalization", [x, *(self.weight([channels], role) for role in roles)])

    def layer_norm(self, x: str, width: int) -> str:
        """Normalise each vector by its own statistics."""
        weights = [self.weight([width], Role.SCALE), self.weight([width], Role.BIAS)]
        return self.node("LayerNormalization", [x, *weights], axis=-1, epsilon=1e-12)

    def dense(self, x: str, width: int, units: int, role: Role = Role.KERNEL) -> str:
        """Multiply by a matrix and add a bias; any number of axes."""
        product = self.node("MatMul", [x, self.weight([width, units], role, width)])
        return self.node("Add", [product, self.weight([units], Role.BIAS)])

    def classify(self, x: str, width: int, classes: int) -> None:
        """Average over the image, and give out the probability of each class."""
        pooled = self.node("Flatten", [self.node("GlobalAveragePool", [x])], axis=1)
        self.output(self.node("Softmax", [self.dense(pooled, width, classes)], axis=-1), "output", [classes])

    def finish(self) -> Architecture:
        """Return the architecture."""
        opset = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(self._graph, opset_imports=opset, ir_version=_IR_VERSION)
        return Architecture(model, tuple(self._plans))
