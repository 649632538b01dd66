"""Running a plan on the CPU: kernels out of a shared library, called through tvm_ffi alone.

The compiler verifies and profiles TVM's models with this file, and a worker serves with it, as ``executable``
does for ONNX Runtime's graphs. TVM itself is neither imported nor needed. Opening an executable loads its
library. `CpuKernels.bind` makes the descriptors of all arrays whose addresses are known with the weights'
places; a run adds the descriptors of inputs and outputs, and keeps them for the next run on the same slot.

A run allocates only descriptors, on its first use of a slot. The caller owns all memory and keeps it for as
long as an address of it is bound. Weights, inputs and outputs begin at multiples of 64 bytes, the workspace
at a multiple of 256. One bound model may run in one thread at a time.

Where PyTorch is installed too, TVM imports it to exchange arrays. Nothing here uses PyTorch's arrays, and
importing it takes seconds and a few hundred megabytes in each process that compiles or serves; for unknown
versions of PyTorch, TVM compiles an extension first. So TVM is imported `without_torch`.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mainspring import extras
from mainspring.compiler.artifact.arrays import BatchArrays, Sizes, aligned_array
from mainspring.compiler.artifact.errors import ExecutableError
from mainspring.compiler.artifact.manifest import ExecutableInfo, WeightTensor
from mainspring.compiler.artifact.plan import WORKSPACE_ALIGNMENT_BYTES, LaunchPlan, Operand, Plans, Shape

SWITCH = "TVM_FFI_DISABLE_TORCH_C_DLPACK"
"""Environment variable that says whether apache-tvm-ffi may look for PyTorch."""
_TORCH = "torch"
_MOST_SLOTS = 64
"""Slots of IO memory whose descriptors are kept, for each bound model and shape."""


class CpuKernels:
    """An open library of kernels with its plans, shared by all models that were compiled to it."""

    def __init__(self, library: Path, plans: Plans, info: ExecutableInfo) -> None:
        """Open the library; raise `ExecutableError` if it does not open, or lacks a kernel of the plans."""
        self.info = info
        self.plans = plans
        self._functions = _functions(library, plans)
        self._workspaces: dict[int, dict[Operand, Any]] = {}
        """The descriptors of operands in each workspace, which all models and plans have in common."""

    def bind(
        self, tensors: Sequence[WeightTensor], address_of: Callable[[int], int], workspace: int
    ) -> BoundPlans:
        """Return a model whose weights are at ``address_of(tensor.offset)``; nothing is copied.

        ``workspace`` is the address of `Plans.workspace_bytes` bytes, which other models may share as long as
        one runs at a time. Raises `ExecutableError` for tensors that are not the executable's.
        """
        expected = [(tensor.name, tensor.dtype, tensor.shape) for tensor in self.info.weights]
        if [(tensor.name, tensor.dtype, tensor.shape) for tensor in tensors] != expected:
            raise ExecutableError(f"executable {self.info.executable[:12]} has other weights than were bound")
        weights = [address_of(tensor.offset) for tensor in tensors]
        described = _Descriptors(weights, workspace, self._workspaces.setdefault(workspace, {}))
        runs = {plan.shape: _Run(plan, self._functions, described) for plan in self.plans.plans}
        return BoundPlans(self.info, runs)


class BoundPlans:
    """An executable with one model's weights, ready to run."""

    def __init__(self, info: ExecutableInfo, runs: dict[Shape, _Run]) -> None:
        self._info = info
        self._runs = runs

    def run(self, batch_size: int, inputs: Sequence[int], outputs: Sequence[int], sizes: Sizes = ()) -> None:
        """Run one batch from and to these addresses; raise `ExecutableError` if a kernel fails.

        Kernels are of fixed shapes, so ``sizes`` of symbols are a bucket's ceilings.
        """
        shape = Shape(batch_size, sizes)
        self._launch(shape, partial(self._runs[shape].calls, tuple(inputs), tuple(outputs)))

    def stage(
        self,
        batch_size: int,
        inputs: Sequence[int],
        outputs: Sequence[int],
        sizes: Sizes = (),
        *,
        spare: bool,
    ) -> Callable[[], None]:
        """Return what runs the batch as `run` does, while another run may go on.

        Each slot of IO memory has descriptors of its own: to bind one disturbs no run from another, so there
        is no ``spare``.
        """
        del spare
        shape = Shape(batch_size, sizes)
        calls = self._runs[shape].calls(tuple(inputs), tuple(outputs))
        return partial(self._launch, shape, lambda: calls)

    def make_spare(self) -> None:
        """Do nothing: see `stage`."""

    def _launch(self, shape: Shape, find: Callable[[], Sequence[_Call]]) -> None:
        """Run the launches in their order; each releases the interpreter's lock."""
        try:
            for function, arguments in find():
                function(*arguments)
        except Exception as error:  # A kernel raises errors of any class from its generated checks.
            what = f"executable {self._info.executable[:12]}"
            raise ExecutableError(f"{what} failed at {shape}: {error}") from error

    def run_arrays(
        self, batch_size: int, arrays: Sequence[npt.NDArray[np.generic]], sizes: Sizes = ()
    ) -> list[npt.NDArray[np.generic]]:
        """Run one batch on arrays, for callers without IO memory of their own; return the outputs."""
        batch = BatchArrays(self._info, batch_size, sizes)
        batch.fill(arrays)
        batch.run(self)
        self._runs[Shape(batch_size, sizes)].forget()
        return batch.outputs


def allocate_workspace(plans: Plans) -> npt.NDArray[np.uint8]:
    """Return a workspace for the plans with every byte 255: floats that no kernel wrote read as NaN."""
    size = plans.workspace_bytes + WORKSPACE_ALIGNMENT_BYTES
    raw = aligned_array((size,), np.dtype(np.uint8)).view(np.uint8)
    raw.fill(255)
    begin = -raw.ctypes.data % WORKSPACE_ALIGNMENT_BYTES
    return raw[begin:]


class _Call(NamedTuple):
    """A kernel with its arguments; inputs and outputs are None until a slot is known."""

    function: Any
    arguments: list[Any]


class _Descriptors:
    """The descriptors of one model's operands; those of weights are the same in all of its plans."""

    def __init__(self, weights: Sequence[int], workspace: int, in_workspace: dict[Operand, Any]) -> None:
        self._bases = {"weights": weights, "workspace": (workspace,)}
        self._known: dict[str, dict[Operand, Any]] = {"weights": {}, "workspace": in_workspace}

    def find(self, operand: Operand) -> Any:
        """Return the descriptor of an operand that is not in a slot of IO memory."""
        known = self._known[operand.region]
        found = known.get(operand)
        if found is None:
            found = known[operand] = _described(operand, self._bases[operand.region][operand.index])
        return found


class _Run:
    """A plan with the addresses of weights and workspace filled in."""

    def __init__(self, plan: LaunchPlan, functions: dict[str, Any], described: _Descriptors) -> None:
        self._io: list[tuple[int, int, Operand]] = []
        """Operands that are in a slot: the number of the call, the number of its argument, and the
        operand."""
        self._template: list[_Call] = []
        self._slots: dict[tuple[tuple[int, ...], tuple[int, ...]], list[_Call]] = {}
        self._filling = threading.Lock()
        for position, launch in enumerate(plan.launches):
            arguments: list[Any] = []
            for place, argument in enumerate(launch.arguments):
                if isinstance(argument, Operand) and argument.region in ("input", "output"):
                    self._io.append((position, place, argument))
                    arguments.append(None)
                elif isinstance(argument, Operand):
                    arguments.append(described.find(argument))
                else:
                    arguments.append(argument)
            self._template.append(_Call(functions[launch.kernel], arguments))

    def calls(self, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> list[_Call]:
        """Return the launches in their order; two threads may ask at a time."""
        calls = self._slots.get((inputs, outputs))
        if calls is None:
            with self._filling:
                calls = self._fill(inputs, outputs)
        return calls

    def forget(self) -> None:
        """Forget the addresses of inputs and outputs."""
        self._slots.clear()

    def _fill(self, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> list[_Call]:
        calls = [_Call(call.function, list(call.arguments)) for call in self._template]
        for position, place, operand in self._io:
            addresses = inputs if operand.region == "input" else outputs
            calls[position].arguments[place] = _described(operand, addresses[operand.index])
        while len(self._slots) >= _MOST_SLOTS:
            del self._slots[next(iter(self._slots))]
        self._slots[inputs, outputs] = calls
        return calls


def _described(operand: Operand, base: int) -> Any:
    """Return the tensor descriptor of an operand; the memory stays the caller's."""
    import tvm_ffi

    size = math.prod(operand.shape) * np.dtype(operand.dtype).itemsize
    memory = (ctypes.c_uint8 * max(1, size)).from_address(base + operand.offset)
    flat = np.ctypeslib.as_array(memory)[:size]
    return tvm_ffi.from_dlpack(flat.view(np.dtype(operand.dtype)).reshape(operand.shape))


def _functions(library: Path, plans: Plans) -> dict[str, Any]:
    try:
        with without_torch():
            import tvm_ffi
    except ImportError as error:
        raise ExecutableError(
            "kernels of TVM are called through apache-tvm-ffi, which is not installed: "
            f"`{extras.command('tvm')}`"
        ) from error
    names = {launch.kernel for plan in plans.plans for launch in plan.launches}
    try:
        module = tvm_ffi.load_module(str(library))
        return {name: module.get_function(name) for name in sorted(names)}
    except Exception as error:  # tvm_ffi raises RuntimeError with the loader's text, and errors of its own.
        raise ExecutableError(f"{library} does not open: {error}") from error


@contextlib.contextmanager
def without_torch() -> Iterator[None]:
    """Have imports in the ``with`` block find no PyTorch, unless it is imported already or `SWITCH` is 0."""
    if _TORCH in sys.modules or os.environ.setdefault(SWITCH, "1") == "0":
        yield
        return
    # None instead of a module makes the import raise ImportError, which TVM handles.
    sys.modules[_TORCH] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[_TORCH]
