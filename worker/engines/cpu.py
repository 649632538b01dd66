"""The CPU as a device: weights in a page arena, bound at their addresses.

PREPARE checks the hashes of weights and executable, maps the weights, opens the executable once for all
models that share it and warms it. LOAD copies the file's pages into the arena and binds the weights, unless
they are bound there already; INFER binds only its slot.

What computes is behind three protocols. A `Program` is an open executable, shared by all models that were
compiled to it. Its `Plan` says how the weights of one layout are bound, at any addresses. A `Bound`
is a model that runs. ONNX Runtime's graphs, whose weights are inputs, fulfil them in
`mainspring.compiler.artifact.executable`, TVM's kernels in `mainspring.worker.engines.tvm`.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from mainspring.compiler.artifact.executable import open_executable
from mainspring.compiler.artifact.manifest import (
    CPU,
    ONNXRUNTIME,
    PYTHON,
    ExecutableInfo,
    Manifest,
    WeightTensor,
)
from mainspring.compiler.artifact.store import Store, recompile_command
from mainspring.messages.actions import Infer, Load
from mainspring.messages.model import PAGE_BYTES, ModelSpec
from mainspring.worker.core.jobs import Reservation
from mainspring.worker.core.residency import slot_layout
from mainspring.worker.engine import EngineError, Staged
from mainspring.worker.engines.artifacts import Arena, Integrity, MappedFile, allocate, stored, take
from mainspring.worker.engines.known_files import KnownFiles, default_path
from mainspring.worker.engines.python import PythonModel, PythonPrograms

AddressOf = Callable[[int], int]
"""Returns the address of a byte of the weights file."""
REMEMBERED = 1024
"""Most bindings that are kept, at 400 bytes for each tensor; the least recently loaded one is dropped."""

READY_SLOTS = 4
"""Batches of the largest size for which a prepared model has IO memory taken from the system; batches beyond
them are the first to write where they are, and wait for the system then."""
READY_IO_BYTES = 16 << 20
"""IO memory that is taken from the system in any case."""

Pages = tuple[int, ...]


class Bound(Protocol):
    """A model with its weights at their addresses; one thread runs it, while another stages the next run."""

    def run(
        self, batch_size: int, inputs: Sequence[int], outputs: Sequence[int], sizes: tuple[int, ...] = ()
    ) -> None:
        """Run one batch from and to these addresses; raise `ExecutableError` if the engine fails.

        ``sizes`` has one size of each symbol.
        """

    def stage(
        self,
        batch_size: int,
        inputs: Sequence[int],
        outputs: Sequence[int],
        sizes: tuple[int, ...] = (),
        *,
        spare: bool,
    ) -> Callable[[], None] | None:
        """Return what runs the batch as `run` does; ``spare`` if what `run` uses may be in use then.

        None if it needs a spare that has not been made.
        """

    def make_spare(self) -> None:
        """Make what `stage` needs to prepare a run of this model while this model runs."""


@runtime_checkable
class Interruptible(Protocol):
    """A result of `Bound.stage` whose runs can be ended early."""

    def interrupter(self) -> Callable[[], None]:
        """Return what ends the run that goes on, and no later one; any thread may call both."""


class _Computing(NamedTuple):
    """The INFER that EXEC computes."""

    action_id: int
    run: Callable[[], None]


class Plan(Protocol):
    """The binding of weights to an executable, except for their addresses."""

    info: ExecutableInfo

    def bind(self, address_of: AddressOf) -> Bound:
        """Return a model whose weights are at these addresses; nothing is copied."""

    def warm(self, address_of: AddressOf, batch_sizes: Sequence[int]) -> None:
        """PREPARE thread: run each of these batch sizes on zeros, while the EXEC thread may run others."""


class Program(Protocol):
    """An open executable."""

    def plan(self, tensors: Sequence[WeightTensor]) -> Plan:
        """Return the same plan for equal tensors; raise `ExecutableError` for tensors of another."""


@runtime_checkable
class Closable(Protocol):
    """A `Program` or an `Opener` that has more than memory to give back."""

    def close(self) -> None:
        """Give it back; nothing of this is called again."""


Opener = Callable[[Store, Manifest], Program]
"""Opens a model's executable, whose file is known to be unaltered; raises `StoreError`, `ExecutableError` or
`EngineError`, which says why it can't be opened here."""


class Placements:
    """Bindings of weights at pages, kept for the next model that comes there; any thread may call.

    A binding says where an executable's weights are, not what they are. So it serves every model of the
    executable whose weights file has the same layout, whenever its weights are in the same pages in the same
    order: such a LOAD has nothing to bind, which saves an eighth of the copy's time for 5 MB in 52 tensors.
    """

    def __init__(self, limit: int = REMEMBERED) -> None:
        self._limit = limit
        self._bound: OrderedDict[tuple[Plan, Pages], Bound] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._bound)

    def find(self, plan: Plan, pages: Pages) -> Bound | None:
        """Return the binding there, or None. Two models are never in the same pages at the same time."""
        key = plan, pages
        with self._lock:
            bound = self._bound.get(key)
            if bound is not None:
                self._bound.move_to_end(key)
            return bound

    def keep(self, plan: Plan, pages: Pages, bound: Bound) -> None:
        """Remember a binding."""
        with self._lock:
            self._bound[plan, pages] = bound
            if len(self._bound) > self._limit:
                self._bound.popitem(last=False)

    def forget(self, executable: str) -> None:
        """Forget all bindings of an executable, by its hash, before it is closed."""
        with self._lock:
            for key in [key for key in self._bound if key[0].info.executable == executable]:
                del self._bound[key]


class _Prepared:
    """A model that may be loaded: its manifest, its open weights file, how its executable binds them."""

    def __init__(self, manifest: Manifest, weights: int, mapped: MappedFile | None, plan: Plan) -> None:
        """``weights`` is the open file, ``mapped`` None if it is empty; `close` closes both."""
        self.manifest = manifest
        self.weights = weights
        self.mapped = mapped
        self.plan = plan

    def close(self) -> None:
        """Unmap and close the weights file."""
        if self.mapped is not None:
            self.mapped.close()
        os.close(self.weights)


class _StagedRun:
    """A batch whose slot is bound (`mainspring.worker.engine.Staged`)."""

    __slots__ = ("_compute", "_computing", "spare")

    def __init__(self, compute: Callable[[_Computing], int], computing: _Computing, spare: bool) -> None:
        self._compute = compute
        self._computing = computing
        self.spare = spare

    def run(self) -> int:
        """Compute."""
        return self._compute(self._computing)


class CpuEngine:
    """The CPU as a device with ``pages`` pages of weights memory and a store of artifacts."""

    def __init__(
        self,
        store: Path | str,
        pages: int,
        io_bytes: int,
        openers: Mapping[str, Opener],
        placements: int = REMEMBERED,
        threads: int = 1,
    ) -> None:
        """``openers`` opens executables, by the engine that models were compiled for; Python models, which
        compute in ``threads`` threads each, can always be opened.

        At most ``placements`` bindings are kept for models that come to the same pages.
        """
        self._store = Store(store)
        self._openers: dict[str, Opener] = {**openers, PYTHON: PythonPrograms(threads)}
        self._arena = Arena(pages)
        self.io = allocate(io_bytes)
        self._io_taken = 0
        self._take_io(READY_IO_BYTES)
        self._base = self._arena.address
        self._io_base = int(self.io.ctypes.data)
        self._integrity = Integrity(KnownFiles(default_path(self._store.root)))
        self._prepared: dict[str, _Prepared] = {}
        self._programs: dict[str, Program] = {}
        self._placements = Placements(placements)
        self._bound: dict[str, Bound] = {}
        self._computing: _Computing | None = None

    def prepare(self, model: ModelSpec) -> None:
        """Raise `StoreError`, `ExecutableError` or `EngineError` if the store's artifact can't be served."""
        manifest = stored(self._store, model)
        program = self._programs.get(manifest.executable)
        fresh = program is None
        if program is None:
            program = self._open(manifest)
        prepared = self._open_weights(manifest, program.plan(manifest.tensors))
        try:
            if fresh:
                _warm(prepared)
        except BaseException:
            prepared.close()
            if fresh:
                _close(program)
            raise
        self._programs[manifest.executable] = program
        self._prepared[model.name] = prepared
        self._take_io(READY_SLOTS * slot_layout(model, model.batch_sizes[-1]).size)
        self._arena.expect(each.manifest.extents for each in self._prepared.values())

    def release(self, name: str) -> None:
        """Close the weights file, and the executable after its last model."""
        prepared = self._prepared.pop(name, None)
        if prepared is None:
            return
        prepared.close()
        shared = prepared.manifest.executable
        if all(other.manifest.executable != shared for other in self._prepared.values()):
            _close(self._programs.pop(shared, None))
            self._placements.forget(shared)

    def load(self, action: Load) -> int:
        """Copy page by page, each in one call that releases the interpreter's lock; bind the weights."""
        prepared = self._prepared[action.model]
        manifest, pages, mapped = prepared.manifest, action.pages, prepared.mapped
        if not self._integrity.holds(prepared.weights, manifest.weights_hash):
            self._check_weights(prepared.weights, manifest)
        begin_ns = time.monotonic_ns()
        for file_page, arena_page in enumerate(pages):
            assert mapped is not None, f"{action.model} has pages without weights"
            offset = file_page * PAGE_BYTES
            size = min(PAGE_BYTES, manifest.weights_bytes - offset)
            with _explained(action.model):
                mapped.copy(offset, size, self._base + arena_page * PAGE_BYTES)
        device_ns = time.monotonic_ns() - begin_ns
        self._bound[action.model] = self._placements.find(prepared.plan, pages) or self._bind(
            prepared.plan, pages
        )
        return device_ns

    def unload(self, name: str) -> None:
        """Forget the binding: its addresses are no longer valid."""
        self._bound.pop(name, None)

    def execute(self, action: Infer, io: Reservation) -> int:
        """Run the bound model; only the addresses of inputs and outputs are set."""
        begin_ns = time.monotonic_ns()
        bound = self._bound[action.model]
        run = bound.stage(_rows(bound, action), *self._addresses(io), action.sizes, spare=False)
        assert run is not None, f"{action} needs no spare"
        self._compute(_Computing(action.action_id, run))
        return time.monotonic_ns() - begin_ns

    def _compute(self, computing: _Computing) -> int:
        self._computing = computing
        begin_ns = time.monotonic_ns()
        try:
            computing.run()
        finally:
            self._computing = None
        return time.monotonic_ns() - begin_ns

    def interrupt(self, action_id: int) -> None:
        """See `mainspring.worker.engine.Interrupts`: ONNX Runtime checks between two nodes whether to end."""
        computing = self._computing
        if computing is None or computing.action_id != action_id:
            return
        if isinstance(computing.run, Interruptible):
            end = computing.run.interrupter()
            # Not if that belongs to a later run, of the same binding.
            if self._computing is computing:
                end()

    def stage(self, action: Infer, io: Reservation, running: Infer, ahead: Staged | None) -> Staged | None:
        """See `mainspring.worker.engine.Stages`: set the addresses in a binding that is not running."""
        bound = self._bound[action.model]
        spare = bound is self._bound[running.model] and not (isinstance(ahead, _StagedRun) and ahead.spare)
        run = bound.stage(_rows(bound, action), *self._addresses(io), action.sizes, spare=spare)
        return None if run is None else _StagedRun(self._compute, _Computing(action.action_id, run), spare)

    def make_spare(self, name: str) -> None:
        """See `mainspring.worker.engine.Stages`: bind the weights a second time."""
        bound = self._bound.get(name)
        if bound is not None:
            bound.make_spare()

    def close(self) -> None:
        """Close all files and executables."""
        self._bound.clear()
        for name in list(self._prepared):
            self.release(name)
        for opener in self._openers.values():
            _close(opener)

    def _take_io(self, size: int) -> None:
        """Have so much of IO memory's low end, where slots are while there is room, taken from the system."""
        if size > self._io_taken:
            take(self.io[self._io_taken : size])
            self._io_taken = size

    def _addresses(self, io: Reservation) -> tuple[list[int], list[int]]:
        """Return where a slot's inputs and outputs are."""
        start = self._io_base + io.slot.offset
        return [start + offset for offset in io.layout.inputs], [
            start + offset for offset in io.layout.outputs
        ]

    def _open(self, manifest: Manifest) -> Program:
        opener = self._openers.get(manifest.engine)
        if opener is None:
            raise EngineError(
                f"{manifest.name} was compiled for the engine {manifest.engine} and this worker runs "
                f"{', '.join(self._openers)} alone: give it `--engine auto`, or compile the model again"
            )
        device = self._store.executable_info(manifest).device
        if device != CPU:
            raise EngineError(
                f"{manifest.name} was compiled for {device} and this worker computes on the CPU; "
                f"`mainspring compile --device {CPU}` makes one for it"
            )
        self._check_executable(manifest)
        return opener(self._store, manifest)

    def _open_weights(self, manifest: Manifest, plan: Plan) -> _Prepared:
        weights = os.open(self._store.weights_path(manifest), os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._check_weights(weights, manifest)
            with _explained(manifest.name):
                mapped = MappedFile(weights, manifest.weights_bytes) if manifest.weights_bytes else None
        except BaseException:
            os.close(weights)
            raise
        return _Prepared(manifest, weights, mapped, plan)

    def _bind(self, plan: Plan, pages: Pages) -> Bound:
        bound = plan.bind(
            lambda offset: self._base + pages[offset // PAGE_BYTES] * PAGE_BYTES + offset % PAGE_BYTES
        )
        self._placements.keep(plan, pages, bound)
        return bound

    def _check_executable(self, manifest: Manifest) -> None:
        path = self._store.executable_path(manifest)
        with path.open("rb") as file:
            self._integrity.check(file.fileno(), manifest.executable, path, self._remedy(manifest))

    def _check_weights(self, weights: int, manifest: Manifest) -> None:
        path = self._store.root / "weights" / f"{manifest.weights_hash}.bin"
        self._integrity.check(weights, manifest.weights_hash, path, self._remedy(manifest))

    def _remedy(self, manifest: Manifest) -> str:
        return recompile_command(manifest.name, manifest.source, self._store.root)


def _rows(bound: Bound, action: Infer) -> int:
    """Return the rows that a model runs: a Python model takes any number, others the sizes of batches."""
    return sum(action.rows) if isinstance(bound, PythonModel) else action.batch_size


def _close(each: Program | Opener | None) -> None:
    if isinstance(each, Closable):
        each.close()


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Name the model in errors of copying its weights file."""
    try:
        yield
    except EOFError:
        raise EngineError(
            f"the weights file of {name} ends early: it was altered; compile it again"
        ) from None
    except OSError as error:
        raise EngineError(f"the weights file of {name} can't be read: {error.strerror}") from error


def _warm(prepared: _Prepared) -> None:
    """Run the largest batch size and the smallest, so that nothing is set up while serving.

    The sizes between need nothing else: their first runs take as long as later ones (measured). Warming all
    takes twice as long, and the requests of a restarted worker would wait for it. Of an unverified model
    nobody knows values that it runs on.
    """
    if not prepared.manifest.verified:
        return
    sizes = prepared.manifest.batch_sizes
    base = 0 if prepared.mapped is None else prepared.mapped.address
    prepared.plan.warm(lambda offset: base + offset, (sizes[-1], sizes[0]))


class OnnxRuntimeEngine(CpuEngine):
    """The CPU as a device for models that were compiled for the engine ``onnxruntime``."""

    def __init__(self, store: Path | str, pages: int, io_bytes: int, threads: int = 1) -> None:
        openers: dict[str, Opener] = {ONNXRUNTIME: partial(open_executable, threads=threads)}
        super().__init__(store, pages, io_bytes, openers, threads=threads)
