"""Builds launch plans, kernels and packed weights of a model, and variants of kernels to be timed on a GPU.

Start reading this folder here.
"""

from __future__ import annotations

import functools
import hashlib
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import tvm
from tvm_ffi.structural import structural_hash

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.manifest import CPU, FP32, GraphTensor, IoTensor
from mainspring.compiler.artifact.nvrtc import REGISTERS, NvrtcFailed, NvrtcMissing, compile_cuda
from mainspring.compiler.artifact.plan import (
    CUBIN,
    PLAN_FORMATS,
    PTX,
    SHARED_OBJECT,
    SOURCE,
    Launch,
    LaunchPlan,
    Operand,
    Plans,
    Shape,
    Trial,
    ptx_arch,
)
from mainspring.compiler.artifact.target import Gpu
from mainspring.compiler.choosing.tuning import Subject, Tuner
from mainspring.compiler.reference import Prepared
from mainspring.compiler.tvm.assembly import Lifetime, assemble, place, shared
from mainspring.compiler.tvm.kernels import (
    Generated,
    cpu_target,
    cuda_target,
    generate_cpu,
    generate_cuda,
    llvm_options,
    scratch_of,
)
from mainspring.compiler.tvm.line import Line, as_stored, halved, reading_halves
from mainspring.compiler.tvm.lowering import Lowered, lower, portable, tvm_errors
from mainspring.compiler.tvm.schedules import candidates, product_of, schedule_cpu, schedule_cuda
from mainspring.compiler.tvm.tensor_cores import rounded
from mainspring.compiler.tvm.tiles import Choice, cycles

REPEATED = 10
"""Launches of a variant between two readings of the GPU's clock, which ticks about once in a short kernel."""

Compile = Callable[[bytes, str], bytes | None]
"""Compiles source for an architecture; None where no compiler is installed."""


def subjects_of(functions: dict[str, Any], gpu: Gpu, compiled: Compile) -> dict[str, Subject]:
    """Return, by the functions' names, those that can be generated in several ways.

    Functions that are equal but for names have one key. ``compiled`` makes machine code.
    """
    found: dict[str, Subject] = {}
    for name, function in functions.items():
        product = product_of(function)
        if product is not None:
            choices = candidates(function, product, gpu)
            key = f"{structural_hash(function, map_free_vars=True):016x} TVM {tvm.__version__}"
            build = functools.partial(trial, function, gpu=gpu, compiled=compiled)
            found[name] = Subject(key, cycles(choices[0], product, gpu), choices, build)
    return found


def trial(function: Any, choices: Sequence[Choice], gpu: Gpu, compiled: Compile) -> Trial:
    """Return a function's variants, compiled; raise `CompileError` if they can't be."""
    names = [f"variant_{number}" for number in range(1, len(choices) + 1)]
    schedule = functools.partial(schedule_cuda, gpu=gpu, chosen=dict(zip(names, choices, strict=True)))
    generated = generate_cuda(dict.fromkeys(names, function), cuda_target(gpu), schedule)
    image = compiled(generated.code, gpu.arch)
    if image is None:
        raise CompileError("neither nvcc nor NVRTC is installed here, and variants have to be compiled")
    plans = tuple(_plan(number, name, function, generated) for number, name in enumerate(names, 1))
    digest = {"image": hashlib.sha256(image).hexdigest()}
    return Trial(Plans("cuda", gpu.arch, tvm.__version__, digest, plans, PLAN_FORMATS["cuda"]), image)


def _plan(number: int, name: str, function: Any, generated: Generated) -> LaunchPlan:
    """Return a plan that launches one variant again and again, each array at a place of its own."""
    arrays = [*map(scratch_of, function.params), *generated.scratch[name]]
    offsets, workspace_bytes = place([Lifetime(each.size_bytes, 0, 0) for each in arrays])
    launches = []
    for call in generated.calls[name]:
        operands = tuple(
            Operand(
                "workspace",
                0,
                offsets[index],
                arrays[index].size_bytes,
                arrays[index].dtype,
                arrays[index].shape,
                index in call.writes,
            )
            for index in call.arguments
        )
        launches.append(Launch(call.kernel, operands, call.grid, call.block, call.shared_bytes))
    return LaunchPlan(number, workspace_bytes, tuple(launches) * REPEATED)


Array = npt.NDArray[np.generic]


class Built(NamedTuple):
    """An artifact of the ``tvm`` engine, without its weights' places and its measurements."""

    plans: Plans
    files: dict[str, bytes]
    """The files of kernels by name."""
    weights: tuple[Array, ...]
    """The weights, in the order of the plans' operands."""
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
    """A model lowered at all of its shapes, its weights packed."""

    def __init__(self, prepared: Prepared, shapes: Sequence[Shape]) -> None:
        """Lower the model; raise `CompileError` for what TVM can't compile."""
        parts = portable(prepared)
        self._architecture = _architecture(parts.graph, tuple(shapes), parts.info.inputs, parts.info.weights)
        with tvm_errors():
            packed = self._architecture.packing.pack(parts.weights)
        self._weights = (*packed, *self._architecture.constants)

    def build(
        self,
        target: str,
        gpu: Gpu | None = None,
        precision: str = FP32,
        tuner: Tuner | None = None,
    ) -> Built:
        """Return the artifact for ``cpu``, or for ``cuda`` and a GPU.

        Kernels for the CPU in another precision than FP32 round the factors that those for the GPU round, and
        read the same weights.
        ``tuner`` knows or finds out which kernels in FP32 are fast on its architecture.
        """
        halves = halved(self._weights[: len(self._weights) - len(self._architecture.constants)], precision)
        plans, files = self._architecture.build(target, gpu, precision, tuner, halves)
        weights = as_stored(self._weights, halves)
        tensors = tuple(
            GraphTensor(f"w{index}", str(array.dtype), array.shape) for index, array in enumerate(weights)
        )
        return Built(plans, files, weights, tensors)


_Key = tuple[str, Gpu | None, str, Tuner | None, frozenset[int]]
"""Arguments of `_Architecture.build`, on which its kernels depend."""


class _Architecture:
    """The common part of models that differ only in their weights."""

    def __init__(
        self,
        graph: bytes,
        shapes: tuple[Shape, ...],
        inputs: tuple[IoTensor, ...],
        weights: tuple[GraphTensor, ...],
    ) -> None:
        lowered = {shape: lower(graph, shape, inputs, weights) for shape in shapes}
        with tvm_errors():
            self.packing = shared({shape: each.packing for shape, each in lowered.items()})
        self._lowered = {
            shape: each._replace(line=self.packing.numbered(shape, each.line))
            for shape, each in lowered.items()
        }
        self._constants, self.constants = _shared_constants(self._lowered, self.packing.total)
        self._built: dict[_Key, tuple[Plans, dict[str, bytes]]] = {}

    def build(
        self, target: str, gpu: Gpu | None, precision: str, tuner: Tuner | None, halves: frozenset[int]
    ) -> tuple[Plans, dict[str, bytes]]:
        """Return plans and files of kernels for a target; ``halves``: the weights that lie as FP16."""
        # Without rounding kernels for the CPU are the same for every GPU.
        plain = target == CPU and precision == FP32
        key = (target, None if plain else gpu, precision, tuner, halves)
        if key not in self._built:
            with tvm_errors():
                self._built[key] = self._generate(target, gpu, precision, tuner, halves)
        return self._built[key]

    def _generate(
        self, target: str, gpu: Gpu | None, precision: str, tuner: Tuner | None, halves: frozenset[int]
    ) -> tuple[Plans, dict[str, bytes]]:
        lines, functions = self._reading(halves)
        if target == CPU:
            if gpu is not None and precision != FP32:
                functions = {name: rounded(function, gpu, precision) for name, function in functions.items()}
            generated = generate_cpu(functions, cpu_target(), schedule_cpu)
            files = {SHARED_OBJECT: shared_object(generated.code)}
        elif gpu is None:
            raise CompileError("kernels for a GPU need its description")
        else:
            # Tiles of tensor cores have no variants.
            known = tuner if precision == FP32 else None
            chosen = _measured(functions, gpu, known) if known is not None else {}
            schedule = functools.partial(schedule_cuda, gpu=gpu, chosen=chosen, precision=precision)
            generated = generate_cuda(functions, cuda_target(gpu), schedule, precision)
            files = _cuda_files(generated, gpu.arch)
        kind: Literal["cpu", "cuda"] = "cpu" if target == CPU else "cuda"
        plans = Plans(
            target=kind,
            arch=llvm_options() if gpu is None or target == CPU else gpu.arch,
            tvm=tvm.__version__,
            files={name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
            plans=tuple(
                assemble(shape, line, generated, self._constants[shape]) for shape, line in lines.items()
            ),
            format=PLAN_FORMATS[kind],
            precision=precision,
        )
        return plans, files

    def _reading(self, halves: frozenset[int]) -> tuple[dict[Shape, Line], dict[str, Any]]:
        """Return the lines by shape and their functions, whose names tell shapes apart."""
        lines: dict[Shape, Line] = {}
        functions: dict[str, Any] = {}
        for shape, lowered in self._lowered.items():
            line, called = reading_halves(lowered.line, lowered.functions, halves)
            steps = tuple(step._replace(function=_symbol(shape, step.function)) for step in line.steps)
            lines[shape] = line._replace(steps=steps)
            functions |= {_symbol(shape, name): function for name, function in called.items()}
        return lines, functions


_architecture = functools.lru_cache(maxsize=2)(_Architecture)
"""Copies of an architecture are compiled one after the other: they are lowered once."""


def _symbol(shape: Shape, function: str) -> str:
    """Name a function of one shape, apart from those of others."""
    return "_".join([f"b{shape.batch_size}", *[f"s{size}" for size in shape.sizes], function])


def _measured(functions: dict[str, Any], gpu: Gpu, tuner: Tuner) -> dict[str, Choice]:
    """Return what is known to be fast, by the functions' names; equal functions are timed once."""
    subjects = subjects_of(functions, gpu, compiled_kernels)
    costs: defaultdict[str, float] = defaultdict(float)
    for each in subjects.values():
        costs[each.key] += each.cost
    distinct = {each.key: each._replace(cost=costs[each.key]) for each in subjects.values()}
    found = tuner.choose([*distinct.values()], gpu.arch)
    return {name: found[each.key] for name, each in subjects.items() if each.key in found}


def _cuda_files(generated: Generated, arch: str) -> dict[str, bytes]:
    code = generated.code
    made = {CUBIN: compiled_kernels(code, arch), PTX: compiled_kernels(code, ptx_arch(arch))}
    return {SOURCE: code, **{name: content for name, content in made.items() if content is not None}}


def _shared_constants(
    lowered: dict[Shape, Lowered], before: int
) -> tuple[dict[Shape, tuple[int, ...]], list[Array]]:
    """Return the numbers of each line's constants as weights, after ``before`` others, and the constants."""
    known: dict[tuple[str, tuple[int, ...], bytes], int] = {}
    arrays: list[Array] = []
    indices: dict[Shape, tuple[int, ...]] = {}
    for shape, each in lowered.items():
        found = []
        for array in each.line.constants:
            key = (str(array.dtype), array.shape, array.tobytes())
            if key not in known:
                known[key] = before + len(arrays)
                arrays.append(array)
            found.append(known[key])
        indices[shape] = tuple(found)
    return indices, arrays


_LINKERS = ("cc", "gcc", "clang", "c++")

_RUNTIME = (b"TVMBackendAllocWorkspace", b"TVMBackendParallelLaunch", b"TVMBackendGetFuncFromEnv")
"""Functions of TVM's own runtime, which a worker does not have."""

_TIMEOUT_SECONDS = 900


def shared_object(object_file: bytes) -> bytes:
    """Return the shared library of an object file; raise `CompileError` without a linker.

    The same object file gives the same bytes.
    """
    needed = [name.decode() for name in _RUNTIME if name in object_file]
    if needed:
        raise CompileError(f"the generated code calls {', '.join(needed)}, which a worker does not have")
    linker = next(filter(None, map(shutil.which, _LINKERS)), None)
    if linker is None:
        raise CompileError(
            f"none of {', '.join(_LINKERS)} is installed, and kernels for the CPU have to be linked: install "
            "a C compiler, such as Debian's package gcc"
        )
    arguments = [linker, "-shared", "-Wl,--build-id=none", "-o", "kernels.so", "kernels.o", "-lm"]
    return _run(arguments, {"kernels.o": object_file}, "kernels.so", "the kernels can't be linked")


def compiled_kernels(source: bytes, arch: str) -> bytes | None:
    """Return machine code for an architecture such as ``sm_90``, or PTX for one such as ``compute_80``.

    None without ``nvcc`` and NVRTC: then the worker compiles the source.
    """
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        try:
            return compile_cuda(source, arch)
        except NvrtcMissing:
            return None
        except NvrtcFailed as error:
            raise CompileError(str(error)) from error
    kind = "-ptx" if arch.startswith("compute_") else "-cubin"
    # No --use_fast_math: it replaces division, square root and exp by approximations, and flushes subnormals.
    arguments = [nvcc, kind, f"-arch={arch}", "-O3", "-std=c++17", REGISTERS]
    arguments += ["-o", "kernels", "kernels.cu"]
    made = _run(arguments, {"kernels.cu": source}, "kernels", "nvcc can't compile the kernels")
    # The driver takes PTX as text that ends with a zero, as NVRTC makes it.
    return made if kind == "-cubin" else made + b"\0"


def _run(arguments: list[str], inputs: dict[str, bytes], output: str, failure: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="mainspring-") as folder:
        for name, content in inputs.items():
            (Path(folder) / name).write_bytes(content)
        try:
            done = subprocess.run(
                arguments, cwd=folder, capture_output=True, text=True, check=False, timeout=_TIMEOUT_SECONDS
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CompileError(f"{failure}: {error}") from error
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise CompileError(f"{failure}: {said[0] if said else f'exit status {done.returncode}'}")
        return (Path(folder) / output).read_bytes()
