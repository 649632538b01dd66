"""An executable of the ``tvm`` engine: for each batch size, kernels to launch in a fixed order.

Of a model with symbols there is such a plan for each batch size and bucket, of the bucket's ceilings.

After compilation a model is a straight line of kernel launches whose operands have known places: bytes of a
weight, of the workspace, of an input or of an output. A worker adds the addresses of its own memory and
launches; there is nothing to allocate, look up or decide.

The kernels are in files beside the plans, by target:

* ``cpu``: `SHARED_OBJECT`, a shared library of tvm_ffi's packed functions. A launch calls the function
  ``kernel`` with one DLTensor for each operand (`Operand.dtype`, `Operand.shape`, compact rows).
* ``cuda``: `SOURCE`, CUDA C++ with each kernel as ``extern "C" __global__``; and, if ``nvcc`` or NVRTC was
  installed, `CUBIN`, the same as machine code for ``arch``, and `PTX`, which newer devices run too. A
  kernel's parameters are the arguments in their order: a `place` for each operand, so that launches are the
  same for all models of an executable, wherever their weights lie.

The places of ``cuda`` count from a table of addresses in the device's constant memory, `ADDRESSES`, which
every module has: the addresses of the workspace, of the batch's slot in the IO cache, and of each page of the
weights file. Before a batch the kernel `SET_ADDRESSES` writes them: its arguments are the address of the
first entry to write and `ADDRESSES_AT_ONCE` addresses by value, one for each thread of its only block. The
kernels of a batch and the next batch's addresses follow each other in one stream.

No launch writes what it reads, and no two operands of a launch overlap in the workspace unless both are read.
What the workspace and the outputs held before does not matter. Launches of a plan run one after the other.
`read_plans` and `kernels_path` read an executable from a store; nothing else here does input or output.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from mainspring.compiler.artifact.errors import StoreError
from mainspring.compiler.artifact.manifest import FP32, TVM, GraphTensor, IoTensor, Manifest
from mainspring.compiler.artifact.store import Store, hash_of_file, recompile_command
from mainspring.messages.model import bucket_name, item_bytes

PLAN_FORMATS = {"cpu": 1, "cuda": 2}
"""Version of the plans, by target; those of another version have to be compiled again."""

PLANS = "plans.json"
"""The plans' file in an executable's folder; its SHA-256 is the executable's name."""

SHARED_OBJECT = "kernels.so"

SOURCE = "kernels.cu"

CUBIN = "kernels.cubin"

PTX = "kernels.ptx"

_ARCH = re.compile(r"(?:sm|compute)_(\d+)[af]?")

_OLDEST_PTX = 80
"""PTX is for this architecture and newer ones, where the machine code is for none that is older."""

ADDRESSES = "mainspring_addresses"

SET_ADDRESSES = "mainspring_set_addresses"

ADDRESSES_COUNT = 2048
"""Entries of the table: enough for 32 GB of weights, and a quarter of a device's constant memory."""

ADDRESSES_AT_ONCE = 64

WORKSPACE_ENTRY, SLOT_ENTRY, FIRST_PAGE_ENTRY = 0, 1, 2

ENTRY_SHIFT = 48
"""A device's addresses have fewer bits."""

WORKSPACE_ALIGNMENT_BYTES = 256
"""Every operand in the workspace begins at a multiple of this, as memory of a device's allocator does."""

MOST_GRID = (2**31 - 1, 65535, 65535)

MOST_BLOCK = (1024, 1024, 64)

MOST_THREADS = 1024
"""CUDA's limits of a grid and a block, on every supported device."""


Region = Literal["weights", "workspace", "input", "output"]

Extent = tuple[int, int, int]
"""Along x, y and z."""


def arch_number(arch: str) -> int:
    """Return an architecture's number: 90 for ``sm_90``, ``sm_90a`` and ``compute_90``; 0 if it has none."""
    found = _ARCH.fullmatch(arch)
    return int(found[1]) if found is not None else 0


def ptx_arch(arch: str) -> str:
    """Return what PTX is made for beside machine code for ``arch``, such as ``compute_80``."""
    return f"compute_{min(_OLDEST_PTX, arch_number(arch))}"


def place(entry: int, offset: int) -> int:
    """Return the place ``offset`` bytes beyond the address in an entry of the table."""
    return entry << ENTRY_SHIFT | offset


class Shape(NamedTuple):
    """The shape of a model that a plan is for."""

    batch_size: int
    sizes: tuple[int, ...] = ()
    """Ceilings of a bucket, of a model with symbols."""

    def __str__(self) -> str:
        at = f" at {bucket_name(self.sizes)}" if self.sizes else ""
        return f"batch size {self.batch_size}{at}"


def shapes_of(manifest: Manifest) -> list[Shape]:
    """Return the shapes that a model is served at, by batch size and then by its symbols' sizes."""
    buckets = sorted(itertools.product(*[symbol.ceilings for symbol in manifest.symbols]))
    return [Shape(size, bucket) for size in manifest.batch_sizes for bucket in buckets]


class Operand(msgspec.Struct, frozen=True, omit_defaults=True):
    """A compact array that a kernel reads or writes, by its place."""

    region: Region
    index: int
    """Weights: which of `Manifest.tensors`; input and output: which tensor; workspace: 0."""
    offset: int
    """First byte, from the beginning of the region's tensor or of the workspace."""
    size_bytes: int
    dtype: str = "float32"
    """A numpy dtype name."""
    shape: tuple[int, ...] = ()
    """Shape as the kernel sees it, the batch axis included."""
    writes: bool = False
    """True if the launch writes it; otherwise the launch only reads it."""


class Launch(msgspec.Struct, frozen=True, omit_defaults=True):
    """One kernel with everything it is called with."""

    kernel: str
    """The kernel's symbol in the file of kernels."""
    arguments: tuple[Operand | int | float, ...]
    """Arguments in the order of the kernel's own parameters."""
    grid: Extent = (1, 1, 1)
    """Blocks; for ``cpu`` always one."""
    block: Extent = (1, 1, 1)
    """Threads of a block; for ``cpu`` always one."""
    shared_bytes: int = 0
    """Dynamic shared memory, without what the kernel declares itself."""

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The arguments that are arrays."""
        return tuple(argument for argument in self.arguments if isinstance(argument, Operand))


class LaunchPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """A model at one batch size, and at one size of each of its symbols."""

    batch_size: int
    workspace_bytes: int
    launches: tuple[Launch, ...]
    sizes: tuple[int, ...] = ()
    """Ceilings of the bucket that it is for, of a model with symbols."""

    @property
    def shape(self) -> Shape:
        """Return the shape of the model that it is for."""
        return Shape(self.batch_size, self.sizes)


class Plans(msgspec.Struct, frozen=True):
    """Everything that an executable does, and its files of kernels."""

    target: Literal["cpu", "cuda"]
    arch: str
    """``sm_90`` and the like; for ``cpu`` LLVM's options, such as ``-mcpu=x86-64-v3``."""
    tvm: str
    """Version of TVM that generated the kernels."""
    files: dict[str, str]
    """SHA-256 of each file of kernels, by name."""
    plans: tuple[LaunchPlan, ...]
    """Plans in ascending order of their batch sizes, and for each of their symbols' sizes."""
    format: int = 1
    """`PLAN_FORMATS` of the target."""
    precision: str = FP32
    """Precision that the kernels round products to: one of `PRECISIONS`."""

    @property
    def workspace_bytes(self) -> int:
        """Workspace that is enough for every batch size."""
        return max((plan.workspace_bytes for plan in self.plans), default=0)

    def plan(self, batch_size: int, sizes: tuple[int, ...] = ()) -> LaunchPlan:
        """Return the plan of this batch size; raise `KeyError`, which names the existing ones.

        ``sizes`` are the ceilings of a bucket, one for each symbol of the model.
        """
        wanted = Shape(batch_size, sizes)
        for plan in self.plans:
            if plan.shape == wanted:
                return plan
        known = ", ".join(str(plan.shape) for plan in self.plans)
        raise KeyError(f"no plan of {wanted}; there are plans of {known}")

    def problems(
        self, weights: Sequence[GraphTensor], inputs: Sequence[IoTensor], outputs: Sequence[IoTensor]
    ) -> list[str]:
        """Return what no device could do, so that an altered plan is found here and not by a kernel.

        ``weights``, ``inputs`` and ``outputs`` are those of `ExecutableInfo`, shapes without the batch axis.
        """
        found = []
        shapes = [plan.shape for plan in self.plans]
        if not shapes or shapes != sorted({*shapes}) or shapes[0].batch_size < 1:
            known = ", ".join(map(str, shapes)) or "none"
            found.append(f"its plans' shapes ({known}) are not ascending batch sizes from 1 on")
        for plan in self.plans:
            limits = _Limits(plan, weights, inputs, outputs)
            for position, launch in enumerate(plan.launches):
                where = f"{plan.shape}, launch {position} ({launch.kernel})"
                found += [f"{where}: {problem}" for problem in _problems_of(launch, limits)]
        return found


class _Limits:
    """Return the bytes of each place that a plan may name."""

    def __init__(
        self,
        plan: LaunchPlan,
        weights: Sequence[GraphTensor],
        inputs: Sequence[IoTensor],
        outputs: Sequence[IoTensor],
    ) -> None:
        def batch(tensor: IoTensor) -> int:
            return plan.batch_size * math.prod(tensor.at(plan.sizes)) * item_bytes(tensor.dtype)

        self._bytes: dict[str, list[int]] = {
            "weights": [tensor.size_bytes for tensor in weights],
            "workspace": [plan.workspace_bytes],
            "input": [batch(tensor) for tensor in inputs],
            "output": [batch(tensor) for tensor in outputs],
        }

    def problem(self, operand: Operand) -> str:
        """Return why the operand is impossible; empty if it is not."""
        sizes = self._bytes[operand.region]
        if not 0 <= operand.index < len(sizes):
            return f"{operand.region} {operand.index} is none of {len(sizes)}"
        if operand.offset < 0 or operand.offset + operand.size_bytes > sizes[operand.index]:
            end = operand.offset + operand.size_bytes
            place = f"{operand.region} {operand.index}, which has {sizes[operand.index]}"
            return f"bytes {operand.offset} to {end} of {place}"
        if operand.size_bytes != math.prod(operand.shape) * np.dtype(operand.dtype).itemsize:
            return f"{operand.size_bytes} bytes are not {operand.dtype}{list(operand.shape)}"
        if operand.region == "workspace" and operand.offset % WORKSPACE_ALIGNMENT_BYTES:
            return f"workspace offset {operand.offset} is not a multiple of {WORKSPACE_ALIGNMENT_BYTES}"
        if operand.writes and operand.region in ("weights", "input"):
            return f"it writes {operand.region} {operand.index}"
        return ""


def _problems_of(launch: Launch, limits: _Limits) -> list[str]:
    found = [problem for problem in map(limits.problem, launch.operands) if problem]
    if not all(1 <= n <= most for n, most in zip(launch.grid, MOST_GRID, strict=True)):
        found.append(f"grid {launch.grid}")
    if (
        not all(1 <= n <= most for n, most in zip(launch.block, MOST_BLOCK, strict=True))
        or math.prod(launch.block) > MOST_THREADS
    ):
        found.append(f"block {launch.block}")
    if launch.shared_bytes < 0:
        found.append(f"{launch.shared_bytes} bytes of shared memory")
    for written in (operand for operand in launch.operands if operand.writes):
        others = [operand for operand in launch.operands if operand is not written]
        if any(_overlap(written, other) for other in others):
            found.append(f"what it writes at {written.region} {written.offset} is also another operand")
    return found


def _overlap(one: Operand, other: Operand) -> bool:
    same = (one.region, one.index) == (other.region, other.index)
    return same and max(one.offset, other.offset) < min(
        one.offset + one.size_bytes, other.offset + other.size_bytes
    )


def read_plans(store: Store, manifest: Manifest) -> Plans:
    """Return the plans of a model, checked against its executable's facts.

    Raises `StoreError` for a model of another engine, and for plans that are damaged, of another version, or
    name a place that the model does not have.
    """
    remedy = recompile_command(manifest.name, manifest.source, store.root)
    if manifest.engine != TVM:
        raise StoreError(
            f"{manifest.name} was compiled for the engine {manifest.engine}, so it has no launch plans; "
            "`mainspring compile --engine tvm` makes them"
        )
    path = store.executable_path(manifest)
    info = store.executable_info(manifest)
    try:
        plans = msgspec.json.decode(path.read_bytes(), type=Plans)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"{path} is damaged ({error}); {remedy}") from error
    wanted = PLAN_FORMATS[plans.target]
    if plans.format != wanted:
        raise StoreError(
            f"{path} has plans of format {plans.format} and this version runs format {wanted}; {remedy}"
        )
    symbols = len(info.symbols)
    odd = next((plan for plan in plans.plans if len(plan.sizes) != symbols), None)
    if odd is not None:
        raise StoreError(f"{path} is damaged: {odd.shape} is not of {symbols} symbols; {remedy}")
    problems = plans.problems(info.weights, info.inputs, info.outputs)
    if info.device != plans.target:
        problems.append(f"its plans are for {plans.target}, its facts for {info.device}")
    if manifest.precision != plans.precision:
        problems.append(f"its plans are for {plans.precision}, its manifest for {manifest.precision}")
    shapes = {plan.shape for plan in plans.plans}
    lacking = [shape for shape in shapes_of(manifest) if shape not in shapes]
    if lacking:
        problems.append(
            f"it has no plan for {lacking[0]}, and plans for {', '.join(map(str, sorted(shapes)))}"
        )
    if problems:
        raise StoreError(f"{path} is damaged: {problems[0]}; {remedy}")
    return plans


def kernels_path(store: Store, manifest: Manifest, plans: Plans, name: str) -> Path | None:
    """Return a file of kernels, whose bytes are unaltered; None if the plans have no such file.

    ``name`` is one of `SHARED_OBJECT`, `SOURCE`, `CUBIN` and `PTX`. Raises `StoreError` for a file
    that is missing or altered.
    """
    if name not in plans.files:
        return None
    remedy = recompile_command(manifest.name, manifest.source, store.root)
    path = store.executable_path(manifest).with_name(name)
    found = hash_of_file(path, remedy)
    if found != plans.files[name]:
        raise StoreError(f"{path} was altered (SHA-256 {found}); {remedy}")
    return path


class TimerFailed(Exception):
    """Variants could not be timed; the text says why."""


class Trial(msgspec.Struct, frozen=True):
    """Variants of one function, and the order in which to run them."""

    plans: Plans
    """A plan for each variant, numbered from 1 where a model's plans have the batch size. All operands are in
    the workspace."""
    image: bytes
    """The machine code of all variants."""
    order: tuple[int, ...] = ()
    """Numbers of the plans; each may come many times."""


class Timed(msgspec.Struct, frozen=True):
    """The answer to a trial: durations, or why there are none."""

    ns: tuple[int, ...] = ()
    """Duration of each run in nanoseconds, in the trial's order."""
    failed: str = ""


Timer = Callable[[Trial], tuple[int, ...]]
"""Runs a trial; returns the duration of each run in ns; raises `TimerFailed`."""
