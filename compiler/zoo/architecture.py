"""Architectures: a graph and plans of its weights, written layer by layer, which a seed makes into a model.

The plans keep activations finite and the outputs of different seeds and inputs different: He's
initialisation, normalisation statistics near those of normalised data, residual branches scaled down so that
deep sums don't explode.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 20
_IR_VERSION = 9


class Role(StrEnum):
    """A weight's use, which decides its random numbers."""

    KERNEL = "kernel"
    """Weight of a convolution or a dense layer: normal, with He's deviation."""
    LINEAR_KERNEL = "linear_kernel"
    """Weight like a KERNEL for an input that was not rectified: without He's factor of two."""
    BIAS = "bias"
    SCALE = "scale"
    """A factor near one."""
    BRANCH_SCALE = "branch_scale"
    """A factor at the end of a residual branch."""
    VARIANCE = "variance"
    EMBEDDING = "embedding"


class Plan(NamedTuple):
    """One weight to be drawn."""

    name: str
    shape: tuple[int, ...]
    role: Role
    fan_in: int = 1
    """Elements that one output of a KERNEL sums up."""


class Architecture(NamedTuple):
    """A graph whose float weights are missing, and how to draw them."""

    model: onnx.ModelProto
    plans: tuple[Plan, ...]
    fit: Callable[[onnx.ModelProto], None] | None = None
    """Changes drawn weights so that the model's answers are meaningful; None where they are noise."""


def instantiate(architecture: Architecture, random: np.random.Generator) -> onnx.ModelProto:
    """Return a model of the architecture with weights drawn from ``random``, in the order of the plans."""
    model = onnx.ModelProto()
    model.CopyFrom(architecture.model)
    for plan in architecture.plans:
        model.graph.initializer.append(numpy_helper.from_array(_draw(plan, random), plan.name))
    if architecture.fit is not None:
        architecture.fit(model)
    return model


def _draw(plan: Plan, random: np.random.Generator) -> npt.NDArray[np.float32]:
    values = random.standard_normal(plan.shape, np.float32)
    match plan.role:
        case Role.KERNEL:
            values *= np.float32(math.sqrt(2 / plan.fan_in))
        case Role.LINEAR_KERNEL:
            values *= np.float32(math.sqrt(1 / plan.fan_in))
        case Role.BIAS:
            values *= np.float32(0.05)
        case Role.EMBEDDING:
            values *= np.float32(0.5)
        case Role.SCALE | Role.BRANCH_SCALE:
            values = (1 + values * np.float32(0.1)) * np.float32(1 if plan.role is Role.SCALE else 0.3)
        case Role.VARIANCE:
            values = 1 + np.abs(values) * np.float32(0.2)
    return values.astype(np.float32, copy=False)


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
        """Add ``value`` as the output ``name``."""
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
        """Average over the image, and add the output: the probability of each class."""
        pooled = self.node("Flatten", [self.node("GlobalAveragePool", [x])], axis=1)
        self.output(self.node("Softmax", [self.dense(pooled, width, classes)], axis=-1), "output", [classes])

    def finish(self) -> Architecture:
        """Return the architecture."""
        opset = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(self._graph, opset_imports=opset, ir_version=_IR_VERSION)
        return Architecture(model, tuple(self._plans))
