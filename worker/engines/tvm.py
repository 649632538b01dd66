"""TVM's kernels on the CPU: the launch plans of a GPU, called one by one through tvm_ffi alone.

TVM itself is not imported. All plans compute in one workspace, which is allocated before the first request; a
plan says where in it every array lies, so a run allocates nothing. Kernels run in the EXEC thread and release
the interpreter's lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from mainspring.compiler.artifact.arrays import BatchArrays
from mainspring.compiler.artifact.executable import open_executable
from mainspring.compiler.artifact.launching import BoundPlans, CpuKernels, allocate_workspace
from mainspring.compiler.artifact.manifest import ONNXRUNTIME, TVM, ExecutableInfo, Manifest, WeightTensor
from mainspring.compiler.artifact.plan import SHARED_OBJECT, kernels_path, read_plans
from mainspring.compiler.artifact.store import Store, recompile_command
from mainspring.compiler.artifact.target import check_target
from mainspring.worker.config import MIB
from mainspring.worker.engine import EngineError
from mainspring.worker.engines.artifacts import allocate
from mainspring.worker.engines.cpu import AddressOf, CpuEngine, Opener

PLACEMENTS = 64
"""Most bindings that are kept: each has a descriptor for every argument of every kernel."""


class TvmPrograms:
    """Opens executables of the ``tvm`` engine, which all compute in one workspace."""

    def __init__(self, workspace_bytes: int) -> None:
        """Allocate the workspace."""
        self.workspace = allocate(workspace_bytes)
        self._set_bytes = 0
        """Number of its bytes that were set to 255: floats that no kernel wrote read as NaN."""

    def __call__(self, store: Store, manifest: Manifest) -> TvmProgram:
        """Open a model's kernels; raise `StoreError`, `ExecutableError`, or `EngineError` if they need more
        workspace than there is.
        """
        info = store.executable_info(manifest)
        check_target(info, recompile_command(manifest.name, manifest.source, store.root))
        plans = read_plans(store, manifest)
        if plans.workspace_bytes > len(self.workspace):
            raise EngineError(
                f"{manifest.name} needs {plans.workspace_bytes} bytes of workspace and this worker has "
                f"{len(self.workspace)}: set workspace_bytes to that or more"
            )
        self.workspace[self._set_bytes : plans.workspace_bytes] = 255
        self._set_bytes = max(self._set_bytes, plans.workspace_bytes)
        library = kernels_path(store, manifest, plans, SHARED_OBJECT)
        if library is None:
            raise EngineError(f"{manifest.name} has no {SHARED_OBJECT}, which its kernels for a CPU are in")
        kernels = CpuKernels(library, plans, info)
        return TvmProgram(kernels, int(self.workspace.ctypes.data))


class TvmProgram:
    """The open kernels of an executable."""

    def __init__(self, kernels: CpuKernels, workspace: int) -> None:
        self._kernels = kernels
        self._workspace = workspace
        self._plans: dict[tuple[WeightTensor, ...], TvmPlan] = {}

    def plan(self, tensors: Sequence[WeightTensor]) -> TvmPlan:
        """Return how these tensors are bound, at any addresses: one plan for equal tensors."""
        key = tuple(tensors)
        if key not in self._plans:
            self._plans[key] = TvmPlan(self._kernels, key, self._workspace)
        return self._plans[key]


class TvmPlan:
    """The binding of one layout's weights to the kernels."""

    def __init__(self, kernels: CpuKernels, tensors: Sequence[WeightTensor], workspace: int) -> None:
        self.info: ExecutableInfo = kernels.info
        self._kernels = kernels
        self._tensors = tensors
        self._workspace = workspace

    def bind(self, address_of: AddressOf) -> BoundPlans:
        """Return a model whose weights are at these addresses; it computes in the EXEC thread's workspace."""
        return self._kernels.bind(self._tensors, address_of, self._workspace)

    def warm(self, address_of: AddressOf, batch_sizes: Sequence[int]) -> None:
        """Run each size on zeros, in a separate workspace: the EXEC thread may be using the other.

        Of a model with symbols, in the largest bucket and in the smallest.
        """
        workspace = allocate_workspace(self._kernels.plans)
        bound = self._kernels.bind(self._tensors, address_of, int(workspace.ctypes.data))
        ladders = [symbol.ceilings for symbol in self.info.symbols]
        ends = dict.fromkeys(tuple(each[end] for each in ladders) for end in (-1, 0))
        for size in batch_sizes:
            for ceilings in ends:
                BatchArrays(self.info, size, ceilings).run(bound)


class TvmCpuEngine(CpuEngine):
    """The CPU as a device for models that were compiled for the engine ``tvm``."""

    def __init__(
        self, store: Path | str, pages: int, io_bytes: int, threads: int = 1, workspace_bytes: int = 512 * MIB
    ) -> None:
        """Raise `ValueError` for more than one thread: TVM's kernels compute in one."""
        if threads != 1:
            raise ValueError(f"the engine {TVM} computes in one thread on the CPU, not in {threads}")
        programs = TvmPrograms(workspace_bytes)
        self.workspace = programs.workspace
        super().__init__(store, pages, io_bytes, {TVM: programs}, PLACEMENTS)


class AnyCpuEngine(CpuEngine):
    """The CPU as a device for models of either engine, each run by its own."""

    def __init__(
        self, store: Path | str, pages: int, io_bytes: int, threads: int = 1, workspace_bytes: int = 512 * MIB
    ) -> None:
        """``threads`` threads compute a batch of ONNX Runtime; TVM's kernels compute in one."""
        openers: dict[str, Opener] = {
            ONNXRUNTIME: partial(open_executable, threads=threads),
            TVM: TvmPrograms(workspace_bytes),
        }
        super().__init__(store, pages, io_bytes, openers, PLACEMENTS, threads)
