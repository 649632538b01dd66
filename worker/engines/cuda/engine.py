"""A GPU as a device: both kinds of executables, one memory, one EXEC at a time (Clockwork, section 5.2).

PREPARE reads weights into pinned host memory that all workers of the machine share, and opens the executable
once for all models that share it. LOAD is a copy to the pages, in chunks, and nothing else. INPUT, EXEC and
OUTPUT have streams of their own and wait for each other on the device; the host waits for EXEC's end alone.
The other files of this folder are its parts, and have everything that knows CUDA.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from mainspring.compiler.artifact.errors import StoreError
from mainspring.compiler.artifact.manifest import CPU, TVM, Manifest
from mainspring.compiler.artifact.store import Store, recompile_command
from mainspring.compiler.artifact.target import gpu_targets
from mainspring.messages.actions import Infer, Load
from mainspring.messages.metrics import DeviceHealth
from mainspring.messages.model import PAGE_BYTES, ModelSpec
from mainspring.worker.config import WorkerConfig
from mainspring.worker.core.jobs import Reservation
from mainspring.worker.engine import DeviceLost, EngineError
from mainspring.worker.engines.artifacts import read_weights, stored
from mainspring.worker.engines.cuda.copies import IoCopies, Loader
from mainspring.worker.engines.cuda.driver import Driver
from mainspring.worker.engines.cuda.host_weights import HostWeights, reserve_for
from mainspring.worker.engines.cuda.memory import SESSION_BYTES, DeviceMemory, Wanted, pinned
from mainspring.worker.engines.cuda.monitor import GpuMonitor, StateReader
from mainspring.worker.engines.cuda.opening import AUTO, Open, Opener, count_sessions, program_key
from mainspring.worker.engines.cuda.programs import Bound, Program
from mainspring.worker.engines.cuda.runs import Run, Runs

LOG = logging.getLogger(__name__)

HEARTBEAT_BYTES = 256
"""Bytes of the workspace that are cleared to ask whether the device answers; no batch uses it then."""
IDLE_NS = 500_000_000
"""Time without work after which the device is asked whether it answers."""


class _Prepared(NamedTuple):
    """A model that may be loaded."""

    manifest: Manifest
    program: Program
    weights: int
    """Address of its weights file's bytes in pinned host memory."""


class _Fetched(NamedTuple):
    """A model whose executable is to be opened."""

    manifest: Manifest
    weights: int
    """Address of its weights file's bytes, as in `_Prepared.weights`."""
    open: Open | None
    """Function that opens the executable, as `Opener.find` returned it; None if it was open for another
    model."""


class CudaEngine:
    """`mainspring.worker.engine.Engine` and `OwnMemory` of one GPU."""

    def __init__(
        self,
        config: WorkerConfig,
        driver: Driver,
        folder: Path | None = None,
        notes: tuple[str, ...] = (),
        reader: StateReader | None = None,
    ) -> None:
        """Allocate all memory; ``folder`` is where workers agree on their weights.

        ``notes`` say what makes the GPU's timing unpredictable; ``reader`` reads its state while it serves.
        Raises `EngineError` if memory is too small.
        """
        driver.attach()
        self.notes = notes
        self._driver = driver
        self._store = Store(config.store)
        stored = _manifests(self._store)
        self.device_kind = config.device_kind if config.device_kind != CPU else kind_of(driver.name())
        self.targets = gpu_targets(config.engine, driver.arch())
        self._memory = DeviceMemory(driver, _wanted(config, self._store, stored))
        self.pages = self._memory.pages
        self._io_address, self.io = pinned(driver, config.io_bytes)
        self.transfers = IoCopies(driver, self._io_address, self._memory.io)
        self._loader = Loader(driver, self._memory, config.load_chunk_bytes)
        self._exec = driver.stream(urgent=True)
        self._runs = Runs(driver, self.transfers, self._exec, self._explain)
        self._opener = Opener(
            driver, self._memory, self._store, config.engine, self._exec, self._runs.kernels, self._run_alone
        )
        self._weights = HostWeights(
            driver, self._store.root, config.host_weights_bytes or reserve_for(self._store), folder
        )
        self._programs: dict[object, Program] = {}
        self._prepared: dict[str, _Prepared] = {}
        self._fetched: dict[str, _Fetched] = {}
        self._changing = threading.Lock()
        """Held while models or programs are entered, which EXEC and PREPARE do."""
        self._bound: dict[str, Bound] = {}
        """Programs with the weights of resident models, by the model's name."""
        self._open_stored(config.engine, stored)
        self._stored = frozenset(self._programs)
        """Programs that stay open without a model."""
        self._used_ns = time.monotonic_ns()
        """Instant at which the device was last given work."""
        self._monitor = GpuMonitor(reader, self._probe, self._refused)

    def fetch(self, model: ModelSpec) -> bool:
        """Read the weights; return whether the executable is open (`engine.OpensAlone`).

        Raises `StoreError` or `EngineError` if the store's artifact can't be served from this GPU.
        """
        self._attach()
        manifest = stored(self._store, model)
        if manifest.pages > self.pages:
            raise EngineError(f"{model.name} needs {manifest.pages} pages and the GPU has {self.pages}")
        key, fetched = program_key(manifest), self._fetched.get(model.name)
        try:
            if fetched is None:
                find = None if key in self._programs else self._opener.find(manifest)
                fetched = _Fetched(manifest, self._take_weights(manifest), find)
        except Exception as error:
            raise self._explain(error) from error
        return self._enter(fetched)

    def prepare(self, model: ModelSpec) -> None:
        """Do all, or what `fetch` has left to do; raise `StoreError` or `EngineError` as `fetch`."""
        if model.name in self._fetched:
            # If it fails, `release` follows in the thread that weights belong to.
            self._open(model.name)
        elif not self.fetch(model):
            try:
                self._open(model.name)
            except BaseException:
                self.release(model.name)
                raise

    def release(self, name: str) -> None:
        """Release the weights, and the program after its last model."""
        self._attach()
        self.unload(name)
        with self._changing:
            fetched, prepared = self._fetched.pop(name, None), self._prepared.pop(name, None)
            unused = prepared is not None and self._forget_unused(prepared)
        held = fetched or prepared
        try:
            if held is not None:
                self._weights.give_back(held.manifest.weights_hash)
        finally:
            if prepared is not None and unused:
                prepared.program.close()

    def load(self, action: Load) -> int:
        """Copy the weights."""
        self._attach()
        self._used_ns = time.monotonic_ns()
        prepared = self._prepared[action.model]
        addresses = [self._memory.page(page) for page in action.pages]
        try:
            bound = prepared.program.bind(addresses)
            device_ns = self._loader.copy(
                prepared.weights, prepared.manifest.weights_bytes, action.pages, bound.steps()
            )
        except Exception as error:
            raise self._explain(error) from error
        self._bound[action.model] = bound
        return device_ns

    def unload(self, name: str) -> None:
        """Forget where the model's weights are."""
        self._bound.pop(name, None)

    def takes_ahead(self, action: Infer) -> bool:
        """See `mainspring.worker.engine.Queues`.

        Only what is one launch: launching more takes the host about as long as the kernels may take, and
        holds the lock that EXEC's thread needs when the EXEC before has ended.
        """
        bound = self._bound.get(action.model)
        return bound is not None and bound.at_once

    def give(self, action: Infer, io: Reservation) -> Run:
        """Launch the batch behind its inputs, and begin copying its outputs back behind it."""
        self._used_ns = time.monotonic_ns()
        return self._runs.give(lambda: self._bound[action.model], action, io)

    def execute(self, action: Infer, io: Reservation) -> int:
        """Give the device the batch, and wait for its end."""
        return self.give(action, io).wait().device_ns

    def close(self) -> None:
        """Release everything, as far as the device still accepts it."""
        self._monitor.stop()
        try:
            self._attach()
        except EngineError as error:
            LOG.warning("the GPU can't be used any more; the driver releases its memory: %s", error)
            self._weights.close()
            return
        held = (*self._prepared, *self._fetched)
        steps: list[Callable[[], None]] = [self._runs.drain]
        steps += [partial(self.release, name) for name in held]
        steps += [program.close for key, program in self._programs.items() if key in self._stored]
        steps += [self.transfers.close, self._weights.close, self._memory.close]
        steps += [lambda: self._driver.free_host(self._io_address), self._driver.close]
        for step in steps:
            try:
                step()
            except Exception as error:
                LOG.warning("not all of the GPU's memory could be released: %s", error)

    def heartbeat(self) -> None:
        """See `mainspring.worker.engine.Awakened`: a few bytes of the workspace are cleared."""
        try:
            self._driver.attach()
            self._runs.beat(self._memory.workspace, HEARTBEAT_BYTES)
        except Exception as error:
            raise self._explain(error) from error

    def health(self) -> DeviceHealth:
        """See `mainspring.worker.engine.Monitored`."""
        found, notes = self._monitor.health(), self.transfers.notes
        return msgspec.structs.replace(found, notes=found.notes + notes) if notes else found

    def _refused(self) -> list[str]:
        """Return why executables have no graph, for each that has none."""
        return [program.refused for program in [*self._programs.values()] if program.refused]

    def _probe(self) -> None:
        """Ask a device that has nothing to do whether it answers; raise `DeviceLost` if it does not.

        While it works, its work shows it, and the question could delay that.
        """
        if time.monotonic_ns() - self._used_ns < IDLE_NS or self._runs.busy:
            return
        self._attach()
        try:
            self._driver.memory()
        except RuntimeError as error:
            reason = self._explain(error)
            if isinstance(reason, DeviceLost):
                raise reason from error

    def bound(self, name: str) -> Bound:
        """Return a resident model's program, for measurements; raise `KeyError` for another."""
        return self._bound[name]

    def _open_stored(self, engine: str, manifests: Sequence[Manifest]) -> None:
        """Open the launch plans in the store before anything is served.

        Loading a module may hold up all else that CUDA does until the GPU has nothing to do. What can't be
        opened is left to its model's PREPARE, which says why.
        """
        for manifest in manifests:
            key = program_key(manifest)
            if manifest.engine != TVM or engine not in (AUTO, TVM) or key in self._programs:
                continue
            try:
                self._programs[key] = self._opener.find(manifest)(())
            except Exception as error:
                reason = self._explain(error)
                if isinstance(reason, DeviceLost):
                    raise reason from error
                LOG.info("%s is not opened before it is prepared: %s", manifest.name, reason)

    def _open(self, name: str) -> None:
        """Open and warm the executable of a model whose weights are there."""
        fetched = self._fetched[name]
        manifest = fetched.manifest
        if self._enter(fetched):
            return  # For another model, since this one was fetched.
        try:
            self._driver.attach()
            pages = [fetched.weights + page * PAGE_BYTES for page in range(manifest.pages)]
            program = (fetched.open or self._opener.find(manifest))(pages)
        except Exception as error:
            raise self._explain(error) from error
        self._enter(fetched, program)

    def _enter(self, fetched: _Fetched, opened: Program | None = None) -> bool:
        """Count a model as prepared if its executable is open; return whether it is."""
        manifest, key = fetched.manifest, program_key(fetched.manifest)
        with self._changing:
            program = opened or self._programs.get(key)
            if program is None:
                self._fetched[manifest.name] = fetched
                return False
            self._programs[key] = program
            self._fetched.pop(manifest.name, None)
            self._prepared[manifest.name] = _Prepared(manifest, program, fetched.weights)
        return True

    def _forget_unused(self, prepared: _Prepared) -> bool:
        """Forget the program of a model that is gone, unless it stays open; the caller holds `_changing`."""
        key = program_key(prepared.manifest)
        if key in self._stored or any(other.program is prepared.program for other in self._prepared.values()):
            return False
        del self._programs[key]
        return True

    def _take_weights(self, manifest: Manifest) -> int:
        remedy = recompile_command(manifest.name, manifest.source, self._store.root)
        fill = partial(read_weights, self._store.weights_path(manifest), manifest.weights_hash, remedy)
        return self._weights.take(manifest.weights_hash, manifest.weights_bytes, fill)

    def _attach(self) -> None:
        """Make this device the calling thread's; raise `DeviceLost` if it is lost, as any call would."""
        try:
            self._driver.attach()
        except RuntimeError as error:
            raise self._driver.explain(error) from error

    def _run_alone(self, function: Callable[[], None]) -> None:
        with self._runs.alone:
            function()

    def _explain(self, error: Exception) -> Exception:
        """Return what an error of the driver means; other errors are returned unchanged."""
        return self._driver.explain(error) if isinstance(error, RuntimeError | KeyError) else error


def kind_of(name: str) -> str:
    """Return the device kind of a GPU by its maker's name: ``nvidia-h200`` for NVIDIA H200."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _manifests(store: Store) -> Sequence[Manifest]:
    """Return those of the store, if it can be read."""
    try:
        return store.manifests()
    except StoreError:
        return ()


def _wanted(config: WorkerConfig, store: Store, stored: Sequence[Manifest]) -> Wanted:
    elsewhere = 0
    if config.engine != TVM:
        # ONNX Runtime has an arena for intermediate results, as large as our workspace, and handles.
        elsewhere = config.workspace_bytes + SESSION_BYTES * count_sessions(store, stored)
    return Wanted(config.workspace_bytes, config.io_bytes, config.reserve_bytes, config.pages, elsewhere)
