"""Python models on the CPU: a process for each, and a thread that starts them and starts them again.

PREPARE has a process started and warmed. EXEC hands it the true rows of a batch and waits for its answer, for
a bounded time. A process that ends or hangs costs its batch: the model's next batches fail at once, and say
why, until the process is there again. It is started at once, and then after pauses that double while it
answers nothing. One thread starts all processes, because they die with the thread that started them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from mainspring.compiler.artifact.arrays import BatchArrays, Sizes
from mainspring.compiler.artifact.errors import ExecutableError, Interrupted
from mainspring.compiler.artifact.manifest import ExecutableInfo, Manifest, WeightTensor
from mainspring.compiler.artifact.python_folder import facts_of, interpreter, unpacked
from mainspring.compiler.artifact.python_process import ProcessEnded, PythonProcess
from mainspring.compiler.artifact.store import Store
from mainspring.worker.engine import EngineError
from mainspring.worker.limits import read_limits
from mainspring.worker.realtime import PROCESS_CORES

LOG = logging.getLogger(__name__)

LOGS = "logs"
"""The store's folder with a log of each Python model."""
MOST_LOG_BYTES = 1 << 20
KEPT_LOG_BYTES = 1 << 16
"""Bytes that are kept of a log that has become too long: its end."""
LOOK_S = 0.1
"""Time between two looks at the processes, while there are any."""
PAUSE_NS = 500_000_000
MOST_PAUSE_NS = 30_000_000_000

Make = Callable[[], PythonProcess]


def pause_ns(failures: int) -> int:
    """Return the time before another start, after so many ends in a row without an answer between them."""
    return 0 if failures <= 1 else min(PAUSE_NS << min(failures - 2, 10), MOST_PAUSE_NS)


class PythonModel:
    """A Python model on this worker: program, plan and bound model in one, as it has no weights to bind."""

    def __init__(self, info: ExecutableInfo, make: Make, starter: Starter, log: Path) -> None:
        """``make`` starts a process; it is called by the ``starter``."""
        self.info = info
        self.facts = facts_of(info)
        self._make = make
        self._starter = starter
        self.log = log
        self._process: PythonProcess | None = None
        self._coming: PythonProcess | None = None
        """The next process, which is not ready yet."""
        self._failures = 0
        self._slowest_ns = 0
        self._due_ns = 0
        """Instant of the next start."""
        self._why = ""
        """End of the last process, for a person."""
        self.closed = False
        self._lock = threading.Lock()
        """Held while a process is used or replaced; EXEC never waits for it."""

    def plan(self, tensors: Sequence[WeightTensor]) -> PythonModel:  # noqa: ARG002
        """Return this: there are no weights."""
        return self

    def bind(self, address_of: Callable[[int], int]) -> PythonModel:  # noqa: ARG002
        """Return this: there are no weights."""
        return self

    def make_spare(self) -> None:
        """Do nothing: a run binds no addresses."""

    def stage(
        self,
        batch_size: int,
        inputs: Sequence[int],
        outputs: Sequence[int],
        sizes: Sizes = (),
        *,
        spare: bool,  # noqa: ARG002
    ) -> Callable[[], None]:
        """Return what runs the batch; ``batch_size`` is the number of its true rows."""
        return partial(self.run, batch_size, inputs, outputs, sizes)

    def run(self, batch_size: int, inputs: Sequence[int], outputs: Sequence[int], sizes: Sizes = ()) -> None:
        """Have the process compute so many rows; raise as `PythonProcess.run`."""
        if not self._lock.acquire(blocking=False):
            raise ProcessEnded(self._gone())
        try:
            if self._process is None:
                raise ProcessEnded(self._gone())
            try:
                self._process.run(batch_size, inputs, outputs, sizes)
            except (ProcessEnded, Interrupted):
                self._lost(self._process)
                raise
            self._failures = 0
        finally:
            self._lock.release()

    def warm(self, address_of: Callable[[int], int], batch_sizes: Sequence[int]) -> None:  # noqa: ARG002
        """Run these batch sizes, on the sample or on zeros; with symbols, the limits and the least sizes."""
        symbols = self.info.symbols
        limits, least = tuple(each.limit for each in symbols), tuple(each.least for each in symbols)
        for size in batch_sizes:
            for sizes in dict.fromkeys((limits, least)):
                BatchArrays(self.info, size, sizes).begin(self)
        process = self._process
        if process is not None:
            process.trying, self._slowest_ns = False, process.slowest_ns

    def start(self) -> None:
        """Start a process and wait for it; raise `ExecutableError`."""
        process = self._starter.spawned(self._make)
        try:
            process.ready()
        except BaseException:
            process.close()
            raise
        self._process = process
        self._starter.watch(self)

    def look(self, now_ns: int) -> None:
        """Starter: notice that a process has ended by itself, and start another when that is due."""
        process = self._process
        # EXEC, which does not wait for the lock, may run it at any time: it is looked at without.
        if (process is not None and process.alive()) or not self._lock.acquire(blocking=False):
            return
        try:
            if self.closed:
                return
            if self._process is not None:
                self._lost(self._process)
            elif self._coming is not None:
                self._come(self._coming)
            elif now_ns >= self._due_ns:
                self._coming = self._make()
        except ExecutableError as error:
            self._fail(str(error), now_ns)
        finally:
            self._lock.release()

    def _come(self, coming: PythonProcess) -> None:
        """Take a process that has become ready; raise `ExecutableError` if it fails to."""
        try:
            ready = coming.ready(wait=False)
        except ExecutableError:
            self._coming = None
            coming.close()
            raise
        if ready:
            coming.trying, coming.slowest_ns = False, max(self._slowest_ns, coming.slowest_ns)
            self._process, self._coming = coming, None
            LOG.warning("the process of %s runs again", self.facts.name)

    def _lost(self, process: PythonProcess) -> None:
        """Let go of a process that has ended or was killed; the starter waits for its end."""
        # First the reason: whoever finds no process gives it, and waits for no lock.
        self._fail(process.ended or str(process.gone()), time.monotonic_ns())
        self._process = None
        self._starter.do(process.close)

    def _fail(self, why: str, now_ns: int) -> None:
        self._failures += 1
        self._why = why
        pause = pause_ns(self._failures)
        self._due_ns = now_ns + pause
        LOG.warning("%s; it is started again in %.1f s; its log: %s", why, pause / 1e9, self.log)

    def _gone(self) -> str:
        left_s = max(0.0, (self._due_ns - time.monotonic_ns()) / 1e9)
        when = f"in {left_s:.1f} s" if left_s else "now"
        return f"{self._why or f'{self.facts.name} has no process'}; it is started again {when}"

    def close(self) -> None:
        """End the process, and start none again."""
        self._starter.forget(self)
        with self._lock:
            self.closed = True
            for process in (self._process, self._coming):
                if process is not None:
                    process.close()
            self._process = self._coming = None


class Starter:
    """The thread that starts the processes of one engine, and watches them. It waits for none of them."""

    def __init__(self) -> None:
        """Start the thread: with this thread's priority, which its processes inherit."""
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._models: list[PythonModel] = []
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="python models", daemon=True)
        self._thread.start()

    def do(self, job: Callable[[], None]) -> None:
        """Have the thread do something, and then look at its processes."""
        self._jobs.put(job)

    def spawned(self, make: Make) -> PythonProcess:
        """Return a process that this thread has started; raise `ExecutableError`."""
        done: Future[PythonProcess] = Future()

        def spawn() -> None:
            try:
                done.set_result(make())
            except Exception as error:
                done.set_exception(error)

        self.do(spawn)
        return done.result()

    def watch(self, model: PythonModel) -> None:
        """Look after a model's process from now on."""
        self.do(lambda: self._models.append(model))

    def forget(self, model: PythonModel) -> None:
        """Look after it no longer."""
        self.do(lambda: self._models.remove(model) if model in self._models else None)

    def close(self) -> None:
        """End the thread, and with it every process that is left."""
        self._stopped = True
        self.do(lambda: None)
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped:
            with contextlib.suppress(queue.Empty):
                self._jobs.get(timeout=LOOK_S if self._models else None)()
            now_ns = time.monotonic_ns()
            for model in self._models:
                model.look(now_ns)
                trim(model.log)


def trim(log: Path) -> None:
    """Keep the end alone of a log that has become too long; its writers append."""
    try:
        if log.stat().st_size <= MOST_LOG_BYTES:
            return
        with log.open("r+b") as file:
            file.seek(-KEPT_LOG_BYTES, os.SEEK_END)
            end = file.read(KEPT_LOG_BYTES)
            file.truncate(0)
            file.seek(0)
            file.write(b"(what was before is gone)\n" + end)
    except OSError:
        return


class PythonPrograms:
    """Opens executables of the ``python`` engine (`mainspring.worker.engines.cpu.Opener`)."""

    def __init__(self, threads: int) -> None:
        """``threads``: in how many each process computes."""
        self._threads = threads
        self._starter = Starter()

    def __call__(self, store: Store, manifest: Manifest) -> PythonModel:
        """Start a model's process; raise `StoreError`, `ExecutableError`, or `EngineError` without memory."""
        info = store.executable_info(manifest)
        facts = facts_of(info)
        _check_memory(manifest.name, facts.memory_bytes)
        folder, python = unpacked(store, manifest), interpreter(store, facts)
        log = store.root / LOGS / f"{manifest.name}.log"
        rows = manifest.batch_sizes[-1]

        def make() -> PythonProcess:
            file = _opened(log)
            try:
                return PythonProcess(
                    info, rows, folder, python, file, threads=self._threads, cores=PROCESS_CORES
                )
            finally:
                os.close(file)

        model = PythonModel(info, make, self._starter, log)
        model.start()
        return model

    def close(self) -> None:
        """End the thread that starts processes."""
        self._starter.close()


def _opened(log: Path) -> int:
    """Return the open log; that of nobody where the store can't be written."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return os.open(log, flags, 0o640)
    except OSError as error:
        LOG.warning("%s can't be written (%s): what the model prints is lost", log, error.strerror)
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def _check_memory(name: str, memory_bytes: int) -> None:
    """Raise `EngineError` if a process that may take so much memory does not fit beside the others."""
    room = read_limits().room
    if room is not None and room.left_bytes < memory_bytes:
        raise EngineError(
            f"{name} may take {memory_bytes >> 20} MiB, and this host has {room.left_bytes >> 20} MiB left"
            f"{f' ({room.by})' if room.by else ''}: lower `memory_mb` in its model.toml, or serve it "
            "elsewhere"
        )
