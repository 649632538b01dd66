"""A compiled model before it is stored: its files, its weights in pages, and how it runs here.

There is one class for each engine. All of them run on this machine's CPU, even if they are for another
device, so that every stored model was compared with the original.

Seed durations say how long a LOAD and an INFER at each batch size take on this machine (Clockwork, section
5.1 and appendix A), until the scheduler has measured durations of its own. A worker has its core to itself,
so the CPU time of the thread that runs the model counts: time that other processes took from it while
compiling would make a model look impossible to serve. `mainspring profile` measures a device with a worker's
engine; both make seeds from durations in the same way (`timings`).
"""

from __future__ import annotations

import ctypes
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import psutil

from mainspring import extras
from mainspring.compiler.artifact.arrays import BatchArrays, Runnable, is_text
from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.executable import BoundModel, Executable
from mainspring.compiler.artifact.launching import BoundPlans, CpuKernels, allocate_workspace
from mainspring.compiler.artifact.manifest import (
    CPU,
    CUDA,
    FP32,
    ONNXRUNTIME,
    TVM,
    ExecutableInfo,
    IoTensor,
    SampleRow,
)
from mainspring.compiler.artifact.plan import SHARED_OBJECT, Shape
from mainspring.compiler.artifact.target import Gpu, cpu_flags, kernels_instruction_set, known_gpu
from mainspring.compiler.choosing.durations import Effort, Timing, profile, repeat
from mainspring.compiler.choosing.tuning import Tuner
from mainspring.compiler.program.blocked import in_blocks
from mainspring.compiler.program.layout import Arena, lay_out, place_tensors, weights_image
from mainspring.compiler.program.split import split
from mainspring.compiler.reading.contents import forget
from mainspring.compiler.reading.operator_libraries import in_use
from mainspring.compiler.reading.replaced_operators import FromTheBeginning, without_seeds
from mainspring.compiler.reading.stock import STEPS, optimise, optimise_portably
from mainspring.compiler.reference import Prepared
from mainspring.compiler.sizes.padding import Padded, padded
from mainspring.messages.model import PAGE_BYTES, Symbol, TensorSpec

if TYPE_CHECKING:
    from mainspring.compiler.tvm.build import Built, Model

PORTABLE = "portable"
"""The instruction set of an executable whose bytes depend on none."""

DEFAULT_ARCH = "sm_90"
"""Default architecture that kernels for a GPU are generated for: an H100's."""

MOST_SAMPLE_BYTES = 1 << 20
"""Most bytes of a sample that is stored beside an executable."""
_EFFORT = Effort(seconds=0.4, fewest=2, most=15, warm_up=1)
"""Small, because compiling waits for it at every batch size."""
_SHORT = Effort(seconds=0.1, fewest=2, most=15, warm_up=1)
"""Effort for one of many buckets."""
_ONCE = Effort(seconds=0.0, fewest=2, most=2, warm_up=0)
"""Effort for one of many buckets of a model whose row takes long: the longer of two runs."""
_VALUES = Effort(seconds=0.4, fewest=6, most=200, warm_up=2)
"""Effort for runs with different values, each of which may take another time."""
_LONG_NS = 50_000_000
"""Duration from which a row takes long."""


class Target(msgspec.Struct, frozen=True):
    """The engine and the device that a model is compiled for."""

    engine: str = ONNXRUNTIME
    """``onnxruntime``, ``tvm``, or ``auto`` for the faster one."""
    device: str = CPU
    """``cpu`` or ``cuda``."""
    arch: str = DEFAULT_ARCH
    """The architecture of the GPU that kernels are generated for."""
    precision: str = FP32
    """Precision that products on the GPU are rounded to: one of `PRECISIONS`."""
    gpu: Gpu | None = None
    """The GPU, as its driver describes it; None for the usual one of its architecture."""
    tuner: Tuner | None = None
    """Knows or finds out which kernels are fast there; None: the compiler's model alone chooses."""
    beside: bool = False
    """True if the store keeps what it has of the model for other hosts (`artifact.beside`)."""

    @property
    def described(self) -> Gpu:
        """The GPU that kernels are generated for."""
        return self.gpu or known_gpu(self.arch)


class Artifact:
    """A model taken apart, its weights in the pages of an arena."""

    content: bytes
    """The file that the executable is named after."""
    kernels: dict[str, bytes]
    """The files beside it."""
    padded: Padded | None = None
    """Fixed shapes and padding of a model with open dimensions that is compiled for fixed shapes."""

    def __init__(self, info: ExecutableInfo, weights: Sequence[npt.NDArray[np.generic]]) -> None:
        """``weights`` are arrays in the order of ``info.weights``."""
        self.info = info
        self.layout = lay_out([array.nbytes for array in weights])
        self.tensors = place_tensors(info, self.layout)
        self.image = weights_image(self.tensors, weights, self.layout.total_bytes)
        self.arena = Arena(self.image, self.layout.extents)
        self.arena.load()

    def weights(self) -> Iterator[memoryview]:
        """Yield the bytes of the weights file, a page at a time."""
        for begin in range(0, len(self.image), PAGE_BYTES):
            yield self.image[begin : begin + PAGE_BYTES].data
            forget(self.image)

    def bind(self) -> Runnable:
        """Return the model as in a worker, with the weights in the arena, to run on the CPU."""
        raise NotImplementedError

    def bind_to_compare(self) -> Runnable:
        """Return the model as `bind` does; every run draws the random numbers of the original."""
        return self.bind()

    def workspace_bytes(self, batch_size: int) -> int:
        """Return the memory that activations take at a batch size."""
        raise NotImplementedError

    said: str = ""
    """Description of how far it is optimised, if that is not as far as can be."""

    simpler: Callable[[], Artifact] | None = None
    """Makes the same model, optimised less, to be tried if this fails."""


class OnnxRuntimeArtifact(Artifact):
    """A graph without weights for ONNX Runtime."""

    def __init__(self, prepared: Prepared, device: str, blocks: bool = True, step: int = 0) -> None:
        """Optimise for this CPU; or, for a GPU, only as far as it does not depend on the device.

        If ``blocks``, layers may be computed in blocks (`program.blocked`); ``step`` is of
        `stock.STEPS`, or a later one if ONNX Runtime fails at that. Raises `CompileError` for a model with
        symbols or strings that is for a GPU.
        """
        if device != CPU:
            check_supported(prepared, f"the device {device}")
            check_fixed(prepared, f"ONNX Runtime on the device {device}")
        if device == CPU:
            optimised, step = _optimised(prepared, step)
            self.said = STEPS[step][0] if step else ""
            if blocks and in_blocks(optimised):
                self.simpler = partial(OnnxRuntimeArtifact, prepared, device, blocks=False, step=step)
            elif step + 1 < len(STEPS):
                self.simpler = partial(OnnxRuntimeArtifact, prepared, device, blocks=False, step=step + 1)
        else:
            optimised = optimise_portably(prepared.content)
        given = prepared.inputs, prepared.outputs
        parts = split(optimised, *given, symbols=prepared.symbols, holds=device == CPU)
        info = msgspec.structs.replace(parts.info, choices=prepared.choices.ways, sample=_sample(prepared))
        if device != CPU:
            info = msgspec.structs.replace(info, device=device, instruction_set=PORTABLE)
        self.content = self._compared = parts.graph
        if prepared.draws:
            self.content, info = without_seeds(parts.graph, info)
        super().__init__(info, parts.weights)
        self.kernels = {}

    def bind(self) -> BoundModel:
        """Open the graph as a worker does."""
        return self._opened(self.content)

    def bind_to_compare(self) -> Runnable:
        """Open the graph as it is compared, for each run if it draws random numbers."""
        if self._compared is self.content:
            return self.bind()
        return FromTheBeginning(partial(self._opened, self._compared))

    def _opened(self, content: bytes) -> BoundModel:
        return Executable(content, self.info).bind(self.tensors, self.arena.address_of)

    def workspace_bytes(self, batch_size: int) -> int:
        """Measure the growth of a process that runs the graph in a workspace of its own."""
        executable = Executable(self.content, self.info, own_workspace=True)
        return measure_workspace(executable.bind(self.tensors, self.arena.address_of), batch_size)


def _optimised(prepared: Prepared, step: int) -> tuple[onnx.ModelProto, int]:
    """Return the model as ONNX Runtime optimises it at the first step from ``step`` on that it can."""
    first: CompileError | None = None
    for each in range(step, len(STEPS)):
        try:
            return optimise(prepared.content, each), each
        except CompileError as error:
            first = first or error
    assert first is not None, "there are steps"
    raise first


def _sample(prepared: Prepared) -> tuple[SampleRow, ...]:
    """Return a row with which the model runs where it does not on zeros; none if it would be large."""
    row = prepared.beginning
    if sum(array.nbytes for array in row) > MOST_SAMPLE_BYTES:
        return ()
    return tuple(SampleRow(array.shape, array.tobytes()) for array in row)


class TvmArtifact(Artifact):
    """Launch plans and kernels. Those for a GPU come with kernels for the CPU from the same functions."""

    def __init__(
        self,
        prepared: Prepared,
        batch_sizes: Sequence[int],
        target: Target,
        pads: Mapping[str, float] | None = None,
    ) -> None:
        """Raise `CompileError` for a model that TVM can't compile, or if TVM is not installed.

        ``pads`` are values with which inputs were said to be padded.
        """
        check_supported(prepared, f"the engine {TVM}")
        self.padded = padded(prepared, pads or {}, batch_sizes, f"the engine {TVM}")
        shapes = [Shape(size) for size in batch_sizes]
        model = _tvm_model(prepared, self.padded.shapes(batch_sizes) if self.padded else shapes)
        self._local = model.build(CPU, target.described, target.precision)
        built = self._local
        if target.device != CPU:
            built = model.build(CUDA, target.described, target.precision, target.tuner)
        info = _info(built, prepared, target.device, self.padded.symbols if self.padded else ())
        super().__init__(info, built.weights)
        self.content = built.content
        self.kernels = built.files
        self._plans = built.plans

    def bind(self) -> BoundPlans:
        """Load the kernels for the CPU; unwritten parts of the workspace read as NaN."""
        with tempfile.TemporaryDirectory(prefix="mainspring-") as folder:
            library = Path(folder) / SHARED_OBJECT
            library.write_bytes(self._local.files[SHARED_OBJECT])
            kernels = CpuKernels(library, self._local.plans, self.info)
        self._workspace = allocate_workspace(self._local.plans)
        return kernels.bind(self.tensors, self.arena.address_of, int(self._workspace.ctypes.data))

    def workspace_bytes(self, batch_size: int) -> int:
        """Return the plan's number; of several buckets the largest."""
        return max(plan.workspace_bytes for plan in self._plans.plans if plan.batch_size == batch_size)


def check_supported(prepared: Prepared, what: str) -> None:
    """Raise `CompileError` for a model that ONNX Runtime on the CPU alone can run.

    Such are those with operators of libraries, strings, random numbers or shapes that follow from values.
    """
    if in_use().libraries:
        raise CompileError(
            f"the model has operators of {in_use().libraries[0].name}, which ONNX Runtime runs on the CPU "
            f"alone, and not {what}: compile with `--engine {ONNXRUNTIME} --device {CPU}`"
        )
    if not prepared.verified:
        raise CompileError(
            f"the model runs on no sample, and {what} has to be compared: compile with `--engine "
            f"{ONNXRUNTIME} --device {CPU}`"
        )
    if prepared.draws:
        raise CompileError(
            f"the model draws random numbers, and {what} computes the same from the same inputs: compile "
            f"with `--engine {ONNXRUNTIME} --device {CPU}`"
        )
    tensors = (("input", prepared.inputs), ("output", prepared.outputs))
    texts = [f"{side} {spec.name!r}" for side, specs in tensors for spec in specs if is_text(spec.dtype)]
    if texts:
        raise CompileError(
            f"{texts[0]} has strings, and {what} is for numbers: compile with `--engine {ONNXRUNTIME} "
            f"--device {CPU}`"
        )
    varied = next((spec.name for spec in prepared.outputs if spec.varies), None)
    if varied is not None:
        raise CompileError(
            f"the shape of output {varied!r} follows from values, and {what} is for fixed shapes: compile "
            f"with `--engine {ONNXRUNTIME} --device {CPU}`"
        )


def check_fixed(prepared: Prepared, what: str) -> None:
    """Raise `CompileError` for a model with open dimensions, which ``what`` can't run."""
    if prepared.symbols:
        symbol = prepared.symbols[0]
        raise CompileError(
            f"dimension {symbol.name!r} is open, and {what} is for fixed shapes: fix it with `--shape`, a "
            f"number for each dimension, compile with `--engine {TVM}`, for which requests are padded, or "
            f"with `--engine {ONNXRUNTIME} --device {CPU}`"
        )


def _tvm_model(prepared: Prepared, shapes: Sequence[Shape]) -> Model:
    try:
        from mainspring.compiler.tvm.build import Model
    except ImportError as error:
        raise CompileError(
            f"the engine tvm needs TVM to compile, which is not installed ({error}): "
            f"`{extras.command('tvm')}` installs it"
        ) from error
    return Model(prepared, shapes)


def _info(built: Built, prepared: Prepared, device: str, symbols: tuple[Symbol, ...]) -> ExecutableInfo:
    return ExecutableInfo(
        executable=built.executable,
        instruction_set=kernels_instruction_set() if device == CPU else PORTABLE,
        onnxruntime=onnxruntime.__version__,
        cpu_flags=cpu_flags(),
        weights=built.tensors,
        inputs=_io_tensors("i", prepared.inputs),
        outputs=_io_tensors("o", prepared.outputs),
        engine=TVM,
        device=device,
        symbols=symbols,
    )


def _io_tensors(prefix: str, specs: Sequence[TensorSpec]) -> tuple[IoTensor, ...]:
    return tuple(
        IoTensor(f"{prefix}{index}", each.dtype, each.shape, each.open) for index, each in enumerate(specs)
    )


MAKERS: dict[str, Callable[[Prepared, Sequence[int], Target, Mapping[str, float]], Artifact]] = {
    ONNXRUNTIME: lambda prepared, _sizes, target, _pads: OnnxRuntimeArtifact(
        prepared, target.device, blocks=prepared.verified
    ),
    TVM: TvmArtifact,
}
"""Classes that compile a model, by engine; the last argument is what inputs were said to be padded with."""


def measure_infer(model: Runnable, info: ExecutableInfo, batch_sizes: Sequence[int]) -> dict[int, int]:
    """Return the seed duration in nanoseconds of each batch size."""
    return {batch_size: measure_at(model, info, batch_size, (), _EFFORT) for batch_size in batch_sizes}


def measure_values(
    model: Runnable, info: ExecutableInfo, rows: Sequence[npt.NDArray[np.generic]], sizes: tuple[int, ...]
) -> Timing:
    """Return the timing of runs of one row with different values, at one size of each symbol."""
    batches = []
    for row in range(len(rows[0])):
        batch = BatchArrays(info, 1, sizes)
        batch.fill([array[row : row + 1] for array in rows])
        batches.append(batch)
    turns = itertools.cycle(batches)

    def run() -> int:
        batch = next(turns)
        begin_ns = time.thread_time_ns()
        batch.run(model)
        return time.thread_time_ns() - begin_ns

    return Timing.of(repeat(run, _VALUES))


def measure_shaped(
    model: Runnable, info: ExecutableInfo, batch_sizes: Sequence[int]
) -> dict[tuple[int, ...], dict[int, int]]:
    """Return the seed durations in nanoseconds of each bucket of an executable with symbols.

    Those of kernels, which are of fixed shapes, follow no line: each is measured.
    """
    first = measure_at(model, info, batch_sizes[0], tuple(each.limit for each in info.symbols), _ONCE)
    effort = _SHORT if first < _LONG_NS else _ONCE

    def at(batch_size: int, sizes: tuple[int, ...]) -> int:
        return measure_at(model, info, batch_size, sizes, effort)

    if info.engine == TVM:
        buckets = itertools.product(*[symbol.ceilings for symbol in info.symbols])
        return {bucket: {size: at(size, bucket) for size in batch_sizes} for bucket in buckets}
    return profile(at, info.symbols, batch_sizes)


def measure_at(
    model: Runnable, info: ExecutableInfo, batch_size: int, sizes: tuple[int, ...], effort: Effort
) -> int:
    """Return the seed duration in nanoseconds at one batch size and one size of each symbol."""
    zeros = BatchArrays(info, batch_size, sizes)
    zeros.begin(model)

    def run() -> int:
        begin_ns = time.thread_time_ns()
        zeros.run(model)
        return time.thread_time_ns() - begin_ns

    return Timing.of(repeat(run, effort)).seed_ns


def measure_load(arena: Arena) -> int:
    """Return the seed duration in nanoseconds of a LOAD into memory that was touched before."""
    return Timing.of(repeat(arena.load, _EFFORT)).seed_ns


def measure_workspace(model: BoundModel, batch_size: int) -> int:
    """Return the growth of this process, in bytes, at the first run of a model with its own workspace."""
    process = psutil.Process()
    _trim_heap()
    before = process.memory_info().rss
    model.warm([batch_size])
    return int(max(0, process.memory_info().rss - before))


def _trim_heap() -> None:
    """Return freed memory to the system if the C library can: reusing it would hide growth."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
