"""An architecture is a graph and a plan of its weights; a seed makes a model of it.

The plans keep activations finite and the outputs of different seeds and inputs different: He's
initialisation, normalisation statistics near those of normalised data, residual branches scaled down so that
deep sums don't explode.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper


class Role(StrEnum):
    """What a weight does, and so what random numbers suit it."""

    KERNEL = "kernel"
    """Of a convolution or a dense layer: normal, He's deviation."""
    LINEAR_KERNEL = "linear_kernel"
    """As KERNEL, for an input that was not rectified: without He's factor of two."""
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
    """Changes drawn weights so that the model's answers mean something; None where they are noise."""


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
