"""From a model to launch plans, kernels and packed weights: where to start reading this folder."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import tvm

from mainspring.compiler.manifest import CPU, GraphTensor
from mainspring.compiler.plan import CUBIN, SHARED_OBJECT, SOURCE, Plans
from mainspring.compiler.reference import Prepared
from mainspring.compiler.tvm.assembly import assemble
from mainspring.compiler.tvm.graph import portable
from mainspring.compiler.tvm.kernels import Generated, generate_cpu, generate_cuda
from mainspring.compiler.tvm.line import Line, Step
from mainspring.compiler.tvm.lowering import Lowered, lower, tvm_errors
from mainspring.compiler.tvm.packing import check_equal, pack
from mainspring.compiler.tvm.schedules_cpu import schedule_cpu
from mainspring.compiler.tvm.schedules_cuda import schedule_cuda
from mainspring.compiler.tvm.targets import cpu_target, cuda_target, llvm_options
from mainspring.compiler.tvm.toolchain import cubin, shared_object

Array = npt.NDArray[np.generic]


class Built(NamedTuple):
    """An artifact of the ``tvm`` engine, but for its weights' places and its measurements."""

    plans: Plans
    files: dict[str, bytes]
    """The files of kernels by name."""
    weights: tuple[Array, ...]
    """In the order that the plans' operands count them in."""
    tensors: tuple[GraphTensor, ...]
    """The weights' names, dtypes and shapes."""

    @property
    def content(self) -> bytes:
        """The plans' file."""
        return msgspec.json.encode(self.plans)

    @property
    def executable(self) -> str:
        """The SHA-256 that names the executable: of the plans, which hold the SHA-256 of the kernels."""
        return hashlib.sha256(self.content).hexdigest()


class Model:
    """A model lowered at all of its batch sizes, from which each target's kernels can be built."""

    def __init__(self, prepared: Prepared, batch_sizes: Sequence[int]) -> None:
        """Lower the model; raise `CompileError` for what TVM can't compile."""
        parts = portable(prepared)
        info = parts.info
        self._lowered = {size: lower(parts.graph, size, info.inputs, info.weights) for size in batch_sizes}
        check_equal({size: lowered.packing for size, lowered in self._lowered.items()})
        with tvm_errors():
            packed = pack(self._lowered[batch_sizes[0]].packing, parts.weights)
        self._constants, constants = _shared_constants(self._lowered, len(packed))
        self.weights = (*packed, *constants)
        self.tensors = tuple(
            GraphTensor(f"w{index}", str(array.dtype), array.shape)
            for index, array in enumerate(self.weights)
        )

    def build(self, target: str, arch: str = "") -> Built:
        """Return the artifact for ``cpu``, or for ``cuda`` and an ``arch`` such as ``sm_90``."""
        functions = {
            _symbol(size, name): function
            for size, lowered in self._lowered.items()
            for name, function in lowered.functions.items()
        }
        with tvm_errors():
            if target == CPU:
                generated = generate_cpu(functions, cpu_target(), schedule_cpu)
                files = {SHARED_OBJECT: shared_object(generated.code)}
                arch = llvm_options()
            else:
                generated = generate_cuda(functions, cuda_target(arch), schedule_cuda)
                files = _cuda_files(generated, arch)
        plans = Plans(
            target="cpu" if target == CPU else "cuda",
            arch=arch,
            tvm=tvm.__version__,
            files={name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
            plans=tuple(self._plan(size, generated) for size in self._lowered),
        )
        return Built(plans, files, self.weights, self.tensors)

    def _plan(self, size: int, generated: Generated) -> Any:
        line = self._lowered[size].line
        steps = tuple(Step(_symbol(size, step.function), step.reads, step.writes) for step in line.steps)
        renamed = Line(steps, line.outputs, line.constants)
        return assemble(size, renamed, generated, self._constants[size])


def _symbol(size: int, function: str) -> str:
    """Name a function of one batch size, apart from those of others."""
    return f"b{size}_{function}"


def _cuda_files(generated: Generated, arch: str) -> dict[str, bytes]:
    binary = cubin(generated.code, arch)
    return {SOURCE: generated.code} | ({} if binary is None else {CUBIN: binary})


def _shared_constants(
    lowered: dict[int, Lowered], before: int
) -> tuple[dict[int, tuple[int, ...]], list[Array]]:
    """Return which weight each line's constants are, after ``before`` others, and these weights."""
    known: dict[tuple[str, tuple[int, ...], bytes], int] = {}
    arrays: list[Array] = []
    indices: dict[int, tuple[int, ...]] = {}
    for size, each in lowered.items():
        found = []
        for array in each.line.constants:
            key = (str(array.dtype), array.shape, array.tobytes())
            if key not in known:
                known[key] = before + len(arrays)
                arrays.append(array)
            found.append(known[key])
        indices[size] = tuple(found)
    return indices, arrays
