"""Launch plans on the emulated device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mainspring.compiler.artifact.manifest import GraphTensor
from mainspring.compiler.artifact.plan import Launch, LaunchPlan, Operand
from tests.emulator.build import compile_source
from tests.emulator.device import Array, Device, KernelLaunch, Number, Pointer


def emulate(
    plan: LaunchPlan,
    source: str,
    weights: Sequence[Array],
    inputs: Sequence[Array],
    outputs: Sequence[GraphTensor],
    folder: Path,
) -> list[Array]:
    """Return what the plan computes of one batch of ``inputs``.

    The kernels of ``source`` that it launches are compiled in ``folder``. ``weights`` are in the order in
    which operands count them, ``outputs`` say dtypes and shapes without the batch axis. Raises
    `EmulationError` for a plan or a kernel that does what no device would do, or not always.
    """
    names = {launch.kernel for launch in plan.launches}
    device = Device(compile_source(source, folder, names))
    for kind, arrays in (("weights", weights), ("input", inputs)):
        for index, array in enumerate(arrays):
            device.give(f"{kind}{index}", array)
    if plan.workspace_bytes:
        device.make("workspace0", plan.workspace_bytes)
    shapes = [(plan.batch_size, *tensor.shape) for tensor in outputs]
    dtypes = [np.dtype(tensor.dtype) for tensor in outputs]
    for index, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True)):
        device.make(f"output{index}", math.prod(shape) * dtype.itemsize)
    made = device.run([_launch(launch) for launch in plan.launches])
    return [
        made[f"output{index}"].view(dtype).reshape(shape)
        for index, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
    ]


def _launch(launch: Launch) -> KernelLaunch:
    arguments = tuple(map(_argument, launch.arguments))
    return KernelLaunch(launch.kernel, launch.grid, launch.block, arguments, launch.shared_bytes)


def _argument(argument: Operand | int | float) -> Pointer | Number:
    match argument:
        case Operand():
            region = f"{argument.region}{argument.index}"
            return Pointer(region, argument.offset, argument.size_bytes, argument.writes)
        case int():
            return Number(argument)
        case float():
            return Number(argument, "float32")
