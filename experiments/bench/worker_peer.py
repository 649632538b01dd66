"""The other side of the worker in ``bench.worker``: its controller and its gateway, over real sockets.

The worker has a process of its own. What is to be done is a list of *streams*: each keeps some actions on
their way, one following another, so that streams of INFERs and of LOADs run beside each other.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from mainspring.cli.launcher.process_plan import CONTROL_NICE
from mainspring.compiler.artifact.executable import BoundModel, _Run
from mainspring.messages import PROTOCOL_VERSION
from mainspring.messages.actions import Action, Infer, Load, Prepare, Result, Unload
from mainspring.messages.codec import TO_CONTROLLER, encode
from mainspring.messages.codes import Status
from mainspring.messages.model import PAGE_BYTES, ModelSpec
from mainspring.messages.peers import Input, Welcome, WorkerHello
from mainspring.transport.greeting import Pass
from mainspring.transport.hub import Hub
from mainspring.transport.link import Link
from mainspring.transport.listener import Listener
from mainspring.worker.config import WorkerConfig
from mainspring.worker.core.jobs import Reservation
from mainspring.worker.engine import Bytes, Staged, wait_until
from mainspring.worker.engines.cpu import OnnxRuntimeEngine
from mainspring.worker.engines.registry import ENGINES
from mainspring.worker.server import run
from tests.blocking import LIMITS

ENGINE = "measured"
"""The engine's name in the configuration of a worker that `serve` runs."""
CALLS = "calls"
WAITS = -(1 << 40)
"""First id, downwards, of bare loops that only wait."""


def serve(config: WorkerConfig, folder: Path) -> None:
    """Run the worker in this process until SIGTERM."""
    # What the parent has is inherited, and a worker has it not.
    os.setpriority(os.PRIO_PROCESS, 0, 0)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ENGINES[ENGINE] = lambda found: MeasuredEngine(found, folder)
    run(config, stop)


class MeasuredEngine(OnnxRuntimeEngine):
    """The engine of a real worker, with bare loops beside."""

    def __init__(self, config: WorkerConfig, folder: Path) -> None:
        super().__init__(config.store, config.pages, config.io_bytes, config.threads)
        self._folder = folder
        self._spin_ns = config.spin_us * 1000
        self._mapped: dict[str, Bytes] = {}
        self._calls: list[tuple[int, int]] = []

    def execute(self, action: Infer, io: Reservation) -> int:
        """Run the batch, or the bare loop."""
        if action.action_id <= WAITS:
            return self._bare_wait(action)
        if action.action_id < 0:
            return self._bare_exec(action, io)
        self._calls.append((action.action_id, time.monotonic_ns()))
        return super().execute(action, io)

    def stage(self, action: Infer, io: Reservation, running: Infer, ahead: Staged | None) -> Staged | None:
        """Stage the batch, unless it is a bare loop."""
        return None if action.action_id < 0 else super().stage(action, io, running, ahead)

    def load(self, action: Load) -> int:
        """Copy the weights; a bare loop of copies goes before it."""
        if action.action_id < 0:
            self._bare_load(action)
        return super().load(action)

    def close(self) -> None:
        """Leave the instants of the calls."""
        np.save(self._folder / f"{CALLS}.npy", np.array(self._calls, np.int64).reshape(-1, 2))
        super().close()

    def _bare_exec(self, action: Infer, io: Reservation) -> int:
        bound = self._bound[action.model]
        assert isinstance(bound, BoundModel)
        start = self._io_base + io.slot.offset
        bound.run(
            action.batch_size,
            [start + offset for offset in io.layout.inputs],
            [start + offset for offset in io.layout.outputs],
        )
        assert isinstance(bound._first, _Run), "the benchmark's models read no texts"
        session, binding = bound._first._session, bound._first._binding.io
        return self._repeat(action, lambda: session.run_with_iobinding(binding))

    def _bare_wait(self, action: Infer) -> int:
        random = np.random.default_rng(0)
        late = []
        began_ns = now_ns = time.monotonic_ns()
        while now_ns < began_ns + action.predicted_duration_ns:
            instant_ns = now_ns + int(random.integers(2_000_000, 6_000_000))
            wait_until(instant_ns, self._spin_ns)
            now_ns = time.monotonic_ns()
            late.append((instant_ns, now_ns))
        np.save(self._folder / f"{action.action_id}.npy", np.array(late, np.int64))
        return now_ns - began_ns

    def _bare_load(self, action: Load) -> int:
        prepared = self._prepared[action.model]
        size = prepared.manifest.weights_bytes
        if action.model not in self._mapped:
            flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
            mapping = mmap.mmap(prepared.weights, size, flags, mmap.PROT_READ)
            self._mapped[action.model] = np.frombuffer(mapping, np.uint8)
        source = int(self._mapped[action.model].ctypes.data)
        copies = [
            (self._base + page * PAGE_BYTES, source + offset, min(PAGE_BYTES, size - offset))
            for page, offset in zip(action.pages, range(0, size, PAGE_BYTES), strict=True)
        ]

        def copy() -> None:
            for into, out_of, count in copies:
                ctypes.memmove(into, out_of, count)

        copy()
        return self._repeat(action, copy)

    def _repeat(self, action: Infer | Load, function: Callable[[], None]) -> int:
        spans = []
        began_ns = time.monotonic_ns()
        end_ns = -1
        while end_ns < began_ns + action.predicted_duration_ns:
            begin_ns = time.monotonic_ns()
            function()
            end_ns = time.monotonic_ns()
            spans.append((begin_ns, end_ns))
        np.save(self._folder / f"{action.action_id}.npy", np.array(spans, np.int64))
        return end_ns - began_ns


Ints = npt.NDArray[np.int64]

PATIENCE_S = 20.0
OPEN_NS = 60_000_000_000
"""Length of a window that does not matter."""


class Stream(Protocol):
    """A source of actions, the next of which may hang on how the one before ended."""

    def next(self, worker: LoneWorker) -> Sequence[int]:
        """Send what can be sent now; return the ids of the actions whose results are to come to `ended`."""

    def ended(self, worker: LoneWorker, result: Result, /) -> None:
        """Note how one of these actions ended."""


class LoneWorker:
    """One worker as its controller and its gateway see it."""

    def __init__(self, config: WorkerConfig, folder: Path) -> None:
        self._hub = Hub()
        self._controller = Listener(self._hub, "tcp://127.0.0.1:*", LIMITS, Pass("controller"))
        self.name = config.name
        self.folder = folder
        config = msgspec.structs.replace(config, controller=self._controller.address)
        spawn = multiprocessing.get_context("spawn")
        self._process = spawn.Process(target=serve, args=(config, folder), daemon=True)
        self._process.start()
        self._ids = itertools.count(1)
        self._identity = b""
        hello = self._hello()
        self.notes = hello.notes
        self._gateway = Link(self._hub, hello.data_address, LIMITS, keeps=True, shows=Pass("gateway"))
        self._say(Welcome(PROTOCOL_VERSION, 1))

    def next_id(self) -> int:
        """Return a fresh action id."""
        return next(self._ids)

    def submit(self, action: Action) -> int:
        """Send an action; return its id."""
        self._say(action)
        return action.action_id

    def push(self, action_id: int, request_id: int, tensors: Sequence[memoryview] | None) -> None:
        """Send a request's inputs, or that it was withdrawn."""
        header = encode(Input(action_id, request_id, withdrawn=tensors is None))
        self._gateway.send((header, *(tensors or ())))

    def do(self, action: Action) -> Result:
        """Send an action and wait for its result; raise RuntimeError unless it is OK."""
        ended: list[Result] = []
        self.submit(action)
        self._await({action.action_id}, ended)
        return ended[0]

    def hold(self, model: ModelSpec, pages: tuple[int, ...]) -> None:
        """Prepare a model and load it into these pages."""
        self.do(Prepare(self.next_id(), self.name, model))
        self.do(self.load(self.next_id(), model, pages))

    def drop(self, model: ModelSpec) -> None:
        """Unload a model."""
        self.do(Unload(self.next_id(), self.name, model.name))

    def load(self, action_id: int, model: ModelSpec, pages: tuple[int, ...], for_ns: int = 0) -> Load:
        """Return a Load that may begin now."""
        now_ns = time.monotonic_ns()
        return Load(action_id, self.name, model.name, pages, now_ns, now_ns + OPEN_NS, now_ns, for_ns)

    def infer(
        self, action_id: int, model: ModelSpec, window: tuple[int, int] | None = None, for_ns: int = 0
    ) -> Infer:
        """Return an Infer of one row, request 1; without a window it may begin now."""
        now_ns = time.monotonic_ns()
        earliest_ns, latest_ns = window or (now_ns, now_ns + OPEN_NS)
        ids, rows, cold = (1,), (1,), (False,)
        return Infer(
            action_id, self.name, model.name, 1, ids, rows, cold, earliest_ns, latest_ns, earliest_ns, for_ns
        )

    def drive(self, *streams: Stream, busy: bool = False) -> None:
        """Run the streams beside each other until none has anything to send or to wait for.

        ``busy`` keeps this thread's core at work meanwhile, instead of asleep.
        """
        owner: dict[int, Stream] = {}
        for stream in streams:
            owner.update(dict.fromkeys(stream.next(self), stream))
        while owner:
            for result in self._receive(busy):
                stream = owner.pop(result.action_id)
                stream.ended(self, result)
                owner.update(dict.fromkeys(stream.next(self), stream))

    def bare_spans(self, action_id: int) -> Ints:
        """Return begin and end, in ns, of each repetition of a bare loop that has ended."""
        return np.asarray(np.load(self.folder / f"{action_id}.npy"), np.int64)

    def close(self) -> Ints:
        """Stop the worker; return action id and instant of each call of the engine for an Infer."""
        self._process.terminate()
        self._process.join(PATIENCE_S)
        self._hub.close()
        if self._process.exitcode != 0:
            self._process.kill()
            raise RuntimeError(f"the worker ended with code {self._process.exitcode}")
        return np.asarray(np.load(self.folder / f"{CALLS}.npy"), np.int64)

    def kill(self) -> None:
        """End the worker's process if it still runs."""
        self._process.kill()
        self._hub.close()

    def _say(self, message: msgspec.Struct) -> None:
        self._controller.send(self._identity, (encode(message),))

    def _hello(self) -> WorkerHello:
        until_s = time.monotonic() + PATIENCE_S
        while (received := self._controller.receive()) is None:
            if time.monotonic() > until_s:
                raise RuntimeError("the worker did not say hello")
            self._hub.wait(round(PATIENCE_S * 1e9))
        self._identity, (data,) = received
        hello = TO_CONTROLLER.decode(data)
        if not isinstance(hello, WorkerHello):
            raise RuntimeError(f"the worker did not say hello: {hello}")
        return hello

    def _await(self, wanted: set[int], ended: list[Result]) -> None:
        while wanted:
            for result in self._receive():
                if result.status is not Status.OK:
                    raise RuntimeError(f"an action failed: {result}")
                wanted.discard(result.action_id)
                ended.append(result)

    def _receive(self, busy: bool = False) -> Iterator[Result]:
        until_s = time.monotonic() + PATIENCE_S
        while not self._hub.wait(0 if busy else round(PATIENCE_S * 1e9)):
            if time.monotonic() > until_s:
                raise RuntimeError(f"no word from the worker for {PATIENCE_S:g} s")
        while self._gateway.receive() is not None:
            pass
        while (received := self._controller.receive()) is not None:
            message = TO_CONTROLLER.decode(received[1][0])
            if isinstance(message, Result):
                yield message


@contextmanager
def running(config: WorkerConfig, folder: Path) -> Iterator[LoneWorker]:
    """Run a worker; this process goes before LOAD and keeps off EXEC's core, as a gateway does."""
    cores, nice = os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)
    if config.realtime:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, CONTROL_NICE)
    worker = LoneWorker(config, folder)
    if config.realtime and len(cores) > 1:
        # Only now: the worker's process would have inherited it.
        os.sched_setaffinity(0, cores - {max(cores) if config.exec_core is None else config.exec_core})
    try:
        yield worker
    finally:
        worker.kill()
        os.sched_setaffinity(0, cores)
        os.setpriority(os.PRIO_PROCESS, 0, nice)
