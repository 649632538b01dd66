"""A model small enough to follow: y = x * w + b, as a launch plan of two kernels and what they compute.

The weights lie in two pages, so a LOAD's pages matter; the product goes through the workspace.
"""

from __future__ import annotations

import ctypes
import math
from typing import Literal

import numpy as np
import numpy.typing as npt

from mainspring.compiler.artifact.manifest import GraphTensor, IoTensor, WeightTensor
from mainspring.compiler.artifact.plan import PLAN_FORMATS, Launch, LaunchPlan, Operand, Plans, Shape
from mainspring.experiments.gpu_check.rehearsal.rules import Kernel
from mainspring.messages.model import PAGE_BYTES
from mainspring.worker.core.jobs import SlotLayout
from mainspring.worker.core.residency import align

WIDTH = 24
ROW_BYTES = 4 * WIDTH
SIZES = (1, 2)
WEIGHTS_BYTES = PAGE_BYTES + 256
TENSORS = (
    WeightTensor("w0", "float32", (WIDTH,), 0, 128),
    WeightTensor("w1", "float32", (WIDTH,), 1, PAGE_BYTES + 64),
)
WEIGHTS = tuple(GraphTensor(tensor.name, tensor.dtype, tensor.shape) for tensor in TENSORS)
INPUTS = (IoTensor("i0", "float32", (WIDTH,)),)
OUTPUTS = (IoTensor("o0", "float32", (WIDTH,)),)

Floats = npt.NDArray[np.float32]


def floats(address: int, count: int) -> Floats:
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))


def multiply(rows: int) -> Kernel:
    def run(x: int, weight: int, product: int) -> None:
        found = floats(x, rows * WIDTH).reshape(rows, WIDTH) * floats(weight, WIDTH)
        floats(product, rows * WIDTH)[:] = found.reshape(-1)

    return Kernel(run, 20_000, 3, placed=True)


def add(rows: int) -> Kernel:
    def run(bias: int, product: int, y: int) -> None:
        found = floats(product, rows * WIDTH).reshape(rows, WIDTH) + floats(bias, WIDTH)
        floats(y, rows * WIDTH)[:] = found.reshape(-1)

    return Kernel(run, 30_000, 3, placed=True)


KERNELS = {f"{name}_{rows}": make(rows) for rows in SIZES for name, make in
           (("multiply", multiply), ("add", add))}  # fmt: skip


def operand(
    region: Literal["weights", "workspace", "input", "output"], index: int, rows: int, *, writes: bool = False
) -> Operand:
    shape = (WIDTH,) if region == "weights" else (rows, WIDTH)
    return Operand(region, index, 0, 4 * math.prod(shape), "float32", shape, writes)


def plan(rows: int) -> LaunchPlan:
    x, w = operand("input", 0, rows), operand("weights", 0, rows)
    product = operand("workspace", 0, rows, writes=True)
    read, b = operand("workspace", 0, rows), operand("weights", 1, rows)
    y = operand("output", 0, rows, writes=True)
    launches = (
        Launch(f"multiply_{rows}", (x, w, product), (rows, 1, 1), (32, 1, 1)),
        Launch(f"add_{rows}", (b, read, y), (rows, 1, 1), (32, 1, 1)),
    )
    return LaunchPlan(rows, rows * ROW_BYTES, launches)


PLANS = Plans("cuda", "sm_90", "0.27.0", {}, tuple(map(plan, SIZES)), PLAN_FORMATS["cuda"])
assert not PLANS.problems(WEIGHTS, INPUTS, OUTPUTS)


def layout(rows: int) -> SlotLayout:
    size = align(rows * ROW_BYTES)
    return SlotLayout((0,), (size,), 2 * size)


LAYOUTS = {rows: layout(rows) for rows in SIZES}
SHAPES = {Shape(rows): layout for rows, layout in LAYOUTS.items()}


def weights_file(seed: int) -> bytes:
    """The bytes of a weights file, garbage where no tensor is."""
    random = np.random.default_rng(seed)
    whole = random.integers(0, 256, WEIGHTS_BYTES, np.uint8)
    for tensor in TENSORS:
        values = random.standard_normal(WIDTH, np.float32)
        whole[tensor.offset : tensor.offset + ROW_BYTES] = values.view(np.uint8)
    return whole.tobytes()


def expected(weights: bytes, x: Floats) -> Floats:
    w, b = (np.frombuffer(weights, np.float32, WIDTH, tensor.offset) for tensor in TENSORS)
    return x * w + b
