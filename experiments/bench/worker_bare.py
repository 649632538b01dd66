"""The worker's process in ``bench.worker``: the real worker, whose engine can also do without the worker.

An action with a negative id is a *bare loop*: for as long as the action is predicted to take, its thread
repeats what the engine does for one action and nothing else. So the bare loop has the same thread, core,
priority, session, binding and arena as the worker's own actions, and can be measured in turns with them. A
bare Infer repeats the run of the bound model, or, if its id is `WAITS` or less, a wait for an instant; a bare
Load repeats a memcpy of the model's weights from the mapped file into the action's pages.

Begin and end of each repetition are left in ``FOLDER/ID.npy``; when the worker stops, the instants at which
the engine was called for each other Infer are left in ``FOLDER/calls.npy``.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mainspring.compiler.artifact.executable import BoundModel, _Run
from mainspring.messages.actions import Infer, Load
from mainspring.messages.model import PAGE_BYTES
from mainspring.worker.config import WorkerConfig
from mainspring.worker.core.jobs import Reservation
from mainspring.worker.engine import Bytes, Staged, wait_until
from mainspring.worker.engines.cpu import OnnxRuntimeEngine
from mainspring.worker.engines.registry import ENGINES
from mainspring.worker.server import run

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
        """Wait for instants some milliseconds ahead; a span is from the instant to when the wait ended."""
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
