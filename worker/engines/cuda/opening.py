"""Opening of an executable in the store as a program on a GPU, by the engine that it was compiled for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from mainspring.compiler.artifact.errors import ExecutableError, StoreError
from mainspring.compiler.artifact.manifest import CUDA, ONNXRUNTIME, TVM, Manifest
from mainspring.compiler.artifact.plan import Shape, read_plans, shapes_of
from mainspring.compiler.artifact.store import Store, recompile_command
from mainspring.worker.core.jobs import SlotLayout
from mainspring.worker.core.residency import slot_layout
from mainspring.worker.engine import EngineError
from mainspring.worker.engines.artifacts import Integrity
from mainspring.worker.engines.cuda.compiling import image_for
from mainspring.worker.engines.cuda.driver import Driver
from mainspring.worker.engines.cuda.launch_plans import LaunchPlanProgram
from mainspring.worker.engines.cuda.memory import DeviceMemory
from mainspring.worker.engines.cuda.programs import Program, Times
from mainspring.worker.engines.known_files import KnownFiles, default_path

AUTO = "auto"

Open = Callable[[Sequence[int]], Program]
"""Opens and warms a program; `Program.warm` says what it is given. If it raises, nothing is left open."""


class Opener:
    """Opens executables of one device."""

    def __init__(
        self,
        driver: Driver,
        memory: DeviceMemory,
        store: Store,
        engine: str,
        stream: int,
        times: Times,
        alone: Callable[[Callable[[], None]], None],
    ) -> None:
        """``engine`` is the only engine whose executables are opened, or `AUTO`; ``stream`` is EXEC's.

        ``times`` happen around each EXEC's kernels. ``alone`` runs a function while no EXEC runs.
        """
        self._driver = driver
        self._memory = memory
        self._store = store
        self._engine = engine
        self._stream = stream
        self._times = times
        self._alone = alone
        self._preparing = driver.stream()
        self._integrity = Integrity(KnownFiles(default_path(store.root)))

    def find(self, manifest: Manifest) -> Open:
        """Do what the device has no part in, such as compiling; return what opens the program then.

        Raises `EngineError`, `ExecutableError` or `StoreError` if the executable can't be opened here.
        """
        info = self._store.executable_info(manifest)
        if info.device != CUDA:
            raise EngineError(
                f"{manifest.name} was compiled for the {info.device}, and this worker serves from a GPU; "
                "compile it with --device cuda"
            )
        if self._engine not in (AUTO, info.engine):
            raise EngineError(
                f"{manifest.name} was compiled for the engine {info.engine} and this worker's is "
                f"{self._engine}; give the worker the engine auto, or compile the model for its engine"
            )
        path = self._store.executable_path(manifest)
        remedy = recompile_command(manifest.name, manifest.source, self._store.root)
        with path.open("rb") as file:
            self._integrity.check(file.fileno(), manifest.executable, path, remedy)
        if info.engine == TVM:
            return partial(self._open, self._find_plans(manifest))
        if info.engine == ONNXRUNTIME:
            return partial(self._open, self._find_graph(manifest))
        raise ExecutableError(f"{manifest.name} is for the engine {info.engine}, which no GPU worker has")

    def _open(self, make: Callable[[], Program], pages: Sequence[int]) -> Program:
        program = make()
        try:
            program.warm(pages, self._preparing)
        except BaseException:
            program.close()
            raise
        return program

    def _find_plans(self, manifest: Manifest) -> Callable[[], Program]:
        plans = read_plans(self._store, manifest)
        image = image_for(self._driver, self._store, manifest, plans)
        return lambda: LaunchPlanProgram(
            self._driver, self._memory, plans, image, manifest.tensors, _by_shape(manifest), self._times
        )

    def _find_graph(self, manifest: Manifest) -> Callable[[], Program]:
        # The import takes long, and workers that serve only plans don't need it.
        from mainspring.worker.engines.cuda.onnxruntime_program import Device, OnnxRuntimeProgram

        memory = self._memory
        return lambda: OnnxRuntimeProgram(
            self._store.executable_path(manifest),
            self._store.executable_info(manifest),
            manifest.tensors,
            _layouts(manifest),
            Device(
                self._driver,
                memory.workspace,
                memory.workspace_bytes,
                self._stream,
                self._times,
                self._alone,
            ),
        )


def program_key(manifest: Manifest) -> object:
    """Return what models that share a program have in common."""
    return manifest.executable, manifest.tensors, manifest.batch_sizes


def count_sessions(store: Store, stored: Sequence[Manifest]) -> int:
    """Return how many sessions of ONNX Runtime these models need, one for each size of an executable."""
    sessions = {}
    for manifest in stored:
        if manifest.engine == ONNXRUNTIME and program_key(manifest) not in sessions:
            try:
                on_gpu = store.executable_info(manifest).device == CUDA
            except StoreError:
                continue
            sessions[program_key(manifest)] = len(manifest.batch_sizes) * on_gpu
    return sum(sessions.values())


def _layouts(manifest: Manifest) -> dict[int, SlotLayout]:
    return {shape.batch_size: layout for shape, layout in _by_shape(manifest).items()}


def _by_shape(manifest: Manifest) -> dict[Shape, SlotLayout]:
    spec = manifest.spec()
    return {shape: slot_layout(spec, *shape) for shape in shapes_of(manifest)}
