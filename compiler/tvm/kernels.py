"""Generates a target's kernels from functions of loops: code, and how each function's kernels are launched.

For ``cuda`` TVM splits a function into a host part and kernels. After that pass the host part says which
kernel is launched with which arrays over which grid, and only that is kept of it. TVM's kernels have pointers
as parameters; each becomes a function, inlined into a kernel of the same name whose parameters are places in
a table of addresses (`mainspring.compiler.artifact.plan`). The compiler sees the same pointers to global
memory that do not overlap: it generates the same loads, with one read of constant memory for each array
before them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir.instrument import pass_instrument
from tvm_ffi.structural import structural_walk

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.manifest import FP32
from mainspring.compiler.artifact.plan import (
    ADDRESSES,
    ADDRESSES_AT_ONCE,
    ADDRESSES_COUNT,
    ENTRY_SHIFT,
    SET_ADDRESSES,
    Extent,
)
from mainspring.compiler.artifact.target import Gpu, kernels_instruction_set
from mainspring.compiler.tvm import fragments, products

PLACE = "mainspring_place"
"""The type of a kernel's parameter that is an array."""

_TABLE = f"""\
// An entry of the table, and the bytes from its address to an array.
typedef unsigned long long {PLACE};
struct mainspring_entries {{
  unsigned long long addresses[{ADDRESSES_AT_ONCE}];
}};
__constant__ unsigned long long {ADDRESSES}[{ADDRESSES_COUNT}];
// The conversion says that the array is in global memory: what is read from a table could be anywhere.
static __device__ __forceinline__ void* mainspring_at({PLACE} place) {{
  const unsigned long long offset = place & {(1 << ENTRY_SHIFT) - 1:#x}ULL;
  return __cvta_global_to_generic({ADDRESSES}[place >> {ENTRY_SHIFT}] + offset);
}}
"""

_SET = f"""\
// Writes the table through its address in global memory: no kernel that reads it runs meanwhile.
extern "C" __global__ void __launch_bounds__({ADDRESSES_AT_ONCE}) {SET_ADDRESSES}(\
unsigned long long* __restrict__ first, const mainspring_entries entries) {{
  first[threadIdx.x] = entries.addresses[threadIdx.x];
}}
"""

_KERNEL = re.compile(
    r'^extern "C" __global__ void (?P<bounds>__launch_bounds__\([^)]*\) )?(?P<name>\w+)'
    r"\((?P<parameters>[^()]*)\)(?P<end>;\n| \{)",
    re.MULTILINE,
)

_ARRAY = re.compile(r"(?P<type>\w[\w ]*\*) *(?:__restrict__ +)?(?P<name>\w+)")


def through_addresses(source: str) -> str:
    """Return the source with kernels whose arrays are places; raise `CompileError` if it has others.

    Numbers among the parameters stay as they are. The kernel `SET_ADDRESSES` comes first.
    """
    kernels = list(_KERNEL.finditer(source))
    if not kernels or len(kernels) != source.count("__global__"):
        raise CompileError("TVM generated kernels of a form that can't be given a table of addresses")
    begin = kernels[0].start()
    declared = "".join(f"{_function(kernel)};\n" for kernel in kernels if not _is_declaration(kernel))
    return source[:begin] + _TABLE + declared + _SET + _KERNEL.sub(_wrapped, source[begin:])


def _wrapped(kernel: re.Match[str]) -> str:
    """Return a kernel of places, followed by the beginning of the function that it calls."""
    if _is_declaration(kernel):
        return ""
    parameters, arguments = [], []
    for declared in filter(None, map(str.strip, kernel["parameters"].split(","))):
        array = _ARRAY.fullmatch(declared)
        if array is None:
            parameters.append(declared)
            arguments.append(declared.split()[-1])
        else:
            parameters.append(f"{PLACE} {array['name']}")
            arguments.append(f"({array['type']})mainspring_at({array['name']})")
    name = kernel["name"]
    return (
        f'extern "C" __global__ void {kernel["bounds"] or ""}{name}({", ".join(parameters)}) {{\n'
        f"  {name}_arrays({', '.join(arguments)});\n}}\n"
        f"{_function(kernel)} {{"
    )


def _is_declaration(kernel: re.Match[str]) -> bool:
    return kernel["end"].startswith(";")


def _function(kernel: re.Match[str]) -> str:
    """Return the head of the function that TVM's kernel becomes."""
    return f"static __device__ __forceinline__ void {kernel['name']}_arrays({kernel['parameters']})"


_SPLIT = "tirx.SplitHostDevice"

_DYNAMIC_SHARED = "tirx.use_dyn_shared_memory"

_AXES = ("x", "y", "z")

_LLVM_LEVELS = {"x86_64-avx2": "x86-64-v3", "x86_64-baseline": "x86-64"}
"""LLVM's names of instruction sets."""

_ARCH = re.compile(r"sm_[1-9][0-9]{1,2}a?")

_THREADS = 256
"""Threads of a block whose threads compute one element each: few, so that small images make many blocks."""

_SHARED_BYTES = 48 * 1024
"""Static shared memory of a block on every architecture."""


class KernelCall(NamedTuple):
    """One kernel of a function: what it is launched with."""

    kernel: str
    arguments: tuple[int, ...]
    """Parameter of the function that each argument is, in the kernel's order; scratch arrays come after the
    others."""
    writes: frozenset[int]
    """Parameters of the function that this kernel writes."""
    grid: Extent = (1, 1, 1)
    block: Extent = (1, 1, 1)
    shared_bytes: int = 0


class Generated(NamedTuple):
    """Code for a number of functions."""

    code: bytes
    """Object file for ``cpu``, source for ``cuda``."""
    calls: dict[str, tuple[KernelCall, ...]]
    """Kernels that a call of each function launches, in this order."""
    scratch: dict[str, tuple[Scratch, ...]]
    """The arrays that each function needs besides its operands."""


Schedule = Callable[[Any], Any]
"""Returns a module of functions of loops with a schedule for each."""


def generate_cpu(functions: dict[str, Any], target: Any, schedule: Schedule) -> Generated:
    """Return an object file in which each function is a packed function of tvm_ffi, of the same name."""
    lifted, scratch = _lifted(functions, target, schedule)
    calls: dict[str, tuple[KernelCall, ...]] = {}
    for name, function in lifted.items():
        every = tuple(range(len(function.params)))
        read = len(every) - len(scratch[name])
        written = _stored(function)
        assert written, f"{name} writes nothing"
        calls[name] = (KernelCall(name, every, written | frozenset(every[read:])),)
    module = tirx.build(_module(lifted), target)
    return Generated(_object_file(module), calls, scratch)


def generate_cuda(
    functions: dict[str, Any], target: Any, schedule: Schedule, precision: str = FP32
) -> Generated:
    """Return CUDA source with the kernels of each function, and how they are launched."""
    lifted, scratch = _lifted(functions, target, schedule)
    seen: dict[str, Any] = {}

    @pass_instrument
    class AfterSplit:
        """Keeps the module that still describes the launches of kernels."""

        def run_after_pass(self, module: Any, info: Any) -> None:
            """Remember the module after the pass that splits."""
            if info.name == _SPLIT:
                seen["module"] = module

    # Which lane keeps a sum has to be plain in its index; the GPU's compiler finds common terms by itself.
    config = {} if precision == FP32 else {"tirx.disable_cse_tir": True}
    for name, function in lifted.items():
        if function.attrs.get(products.MARK):
            lifted[name] = products.double_buffered(function, target)
    context = tvm.transform.PassContext(config=config, instruments=[AfterSplit()])
    with context, _no_device_compiler():
        built = tirx.build(_module(lifted), target)
    split = {str(variable.name_hint): function for variable, function in seen["module"].functions.items()}
    calls = {name: _launches(name, split) for name in lifted}
    source = through_addresses(_with_device_code(built.imports[0].inspect_source()))
    return Generated(source.encode(), calls, scratch)


def _with_device_code(source: str) -> str:
    """Return CUDA source with the functions that its kernels call before the first of them."""
    for part, called in ((fragments, fragments.MULTIPLY), (products, products.COPY)):
        if called in source:
            begin = source.index('extern "C" __global__')
            source = source[:begin] + part.DEVICE_CODE.lstrip() + source[begin:]
    return source


def _lifted(
    functions: dict[str, Any], target: Any, schedule: Schedule
) -> tuple[dict[str, Any], dict[str, tuple[Scratch, ...]]]:
    """Schedule the functions and make parameters of the arrays that they would allocate."""
    with target:
        scheduled = schedule(tvm.IRModule(functions))
    lifted = {
        str(variable.name_hint): lift_scratch(function) for variable, function in scheduled.functions.items()
    }
    return (
        {name: lifted[name][0] for name in sorted(lifted)},
        {name: lifted[name][1] for name in sorted(lifted)},
    )


def _module(functions: dict[str, Any]) -> Any:
    return tvm.IRModule(
        {name: function.with_attr("global_symbol", name) for name, function in functions.items()}
    )


def _launches(name: str, split: dict[str, Any]) -> tuple[KernelCall, ...]:
    """Read the launches of a function from its host part."""
    host = split[name]
    positions = {parameter: index for index, parameter in enumerate(host.params)}
    sources: dict[Any, Any] = {}
    calls: list[Any] = []

    def declared(statement: Any) -> None:
        sources[statement.buffer] = statement.data.args[0]

    def called(call: Any) -> None:
        if getattr(call.op, "name", "") == "tirx.call_ffi_kernel":
            calls.append(call)

    structural_walk(host.body, [(tirx.DeclBuffer, declared), (tvm.ir.Call, called)])

    def position(pointer: Any) -> int:
        buffer = pointer.args[0]
        while buffer not in positions:
            buffer = sources[buffer]
        return positions[buffer]

    if not calls:
        raise CompileError(f"TVM generated no kernel for {name}: it can't be run on the device")
    return tuple(_launch(call, split, position) for call in calls)


def _launch(call: Any, split: dict[str, Any], position: Callable[[Any], int]) -> KernelCall:
    kernel = str(call.args[0].value)
    shape = [str(parameter) for parameter in call.attrs.launch_params]
    count = len(call.args) - 1 - len(shape)
    arguments = tuple(position(pointer) for pointer in call.args[1 : 1 + count])
    extents = dict(zip(shape, map(_number, call.args[1 + count :]), strict=True))
    written = frozenset(arguments[index] for index in _stored(split[kernel]))
    known = {f"{kind}.{axis}" for kind in ("blockIdx", "threadIdx") for axis in _AXES}
    unknown = extents.keys() - known - {_DYNAMIC_SHARED}
    if unknown:
        raise CompileError(f"kernel {kernel} is launched with {sorted(unknown)}, which plans don't have")
    return KernelCall(
        kernel,
        arguments,
        written,
        _extent(extents, "blockIdx"),
        _extent(extents, "threadIdx"),
        extents.get(_DYNAMIC_SHARED, 0),
    )


def _extent(extents: dict[str, int], kind: str) -> Extent:
    x, y, z = (extents.get(f"{kind}.{axis}", 1) for axis in _AXES)
    return x, y, z


def _number(expression: Any) -> int:
    try:
        return int(expression)
    except TypeError:
        raise CompileError(f"a kernel's grid depends on {expression}, which no plan can hold") from None


def _stored(function: Any) -> frozenset[int]:
    """Return which of the function's parameters are stored to."""
    positions = {parameter: index for index, parameter in enumerate(function.params)}
    sources: dict[Any, Any] = {}
    stored: set[Any] = set()

    def declared(statement: Any) -> None:
        data = statement.data
        sources[statement.buffer] = data.args[0] if isinstance(data, tvm.ir.Call) else data

    def stores(statement: Any) -> None:
        stored.add(statement.buffer)

    structural_walk(function.body, [(tirx.DeclBuffer, declared), (tirx.BufferStore, stores)])
    found = set()
    for buffer in stored:
        root = buffer
        while root in sources and root not in positions:
            root = sources[root]
        if root in positions:
            found.add(positions[root])
    return frozenset(found)


class _no_device_compiler:  # noqa: N801
    """Has TVM generate only source: Mainspring calls the GPU's compiler itself, with its own options."""

    _NAME = "tvm_callback_cuda_compile"

    def __enter__(self) -> None:
        self._before = tvm_ffi.get_global_func(self._NAME, allow_missing=True)
        tvm_ffi.register_global_func(self._NAME, lambda _source: b"", override=True)

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            tvm_ffi.register_global_func(self._NAME, self._before, override=True)


def _object_file(module: Any) -> bytes:
    """Return the object file of a module for the CPU."""
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory(prefix="mainspring-") as folder:
        path = Path(folder) / "kernels.o"
        module.write_to_file(str(path), "o")
        return path.read_bytes()


def llvm_options() -> str:
    """Return LLVM's options for kernels for this machine; empty for the baseline."""
    level = _LLVM_LEVELS.get(kernels_instruction_set(), "")
    return f"-mcpu={level}" if level else ""


def cpu_target() -> Any:
    """Return the target for this machine's CPU."""
    level = _LLVM_LEVELS.get(kernels_instruction_set(), "")
    return tvm.target.Target({"kind": "llvm"} | ({"mcpu": level} if level else {}))


def cuda_target(gpu: Gpu) -> Any:
    """Return the target for a GPU; raise `CompileError` for an unknown architecture."""
    if not _ARCH.fullmatch(gpu.arch):
        raise CompileError(
            f"{gpu.arch!r} is not an architecture of a GPU, such as sm_90 for an H100, sm_80 for an A100"
        )
    description = {
        "kind": "cuda",
        "arch": gpu.arch,
        "max_threads_per_block": _THREADS,
        "max_shared_memory_per_block": _SHARED_BYTES,
        "thread_warp_size": 32,
    }
    return tvm.target.Target(description, host="llvm")


class Scratch(NamedTuple):
    """An array that lives during one call."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def lift_scratch(function: Any) -> tuple[Any, tuple[Scratch, ...]]:
    """Return the function with its own arrays as additional parameters, and what these are.

    A function makes arrays for itself, such as a padded copy of its input. TVM would allocate them at each
    call; as parameters they get a place in the workspace like any result.
    """
    realize = function.body
    if not isinstance(realize, s_tir.SBlockRealize):
        return function, ()
    root = realize.block
    own = [buffer for buffer in root.alloc_buffers if buffer.ty.storage_scope == "global"]
    if not own:
        return function, ()
    kept = [buffer for buffer in root.alloc_buffers if buffer.ty.storage_scope != "global"]
    block = s_tir.SBlock(
        root.iter_vars,
        root.reads,
        root.writes,
        root.name_hint,
        root.body,
        root.init,
        kept,
        root.match_buffers,
        root.annotations,
    )
    body = s_tir.SBlockRealize(realize.iter_values, realize.predicate, block)
    lifted = tirx.PrimFunc([*function.params, *own], body, function.ret_type, function.attrs)
    return lifted, tuple(map(scratch_of, own))


def scratch_of(buffer: Any) -> Scratch:
    """Return the dtype and shape of a buffer or a parameter; raise `CompileError` if it has no fixed size."""
    try:
        return Scratch(str(buffer.ty.dtype), tuple(int(dimension) for dimension in buffer.ty.shape))
    except TypeError:
        raise CompileError(f"the size of {buffer.name} is not known before a request is") from None
