"""The access log: a line of JSON for each inference request that has ended, answered or not.

It observes the request table, as statistics and traces do: a request that is not logged costs a draw, and
without ``access_log`` there is nothing. A request whose head or body could not be read has no line.

A thread of its own writes the file: bounded in bytes, rotated, and never waited for. What finds no room, here
or on the disk, is dropped and counted; what is in the file is whole lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import stat
import threading
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic_ns, time_ns
from typing import Any, Final

import msgspec

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.core.effects import Dispatched
from mainspring.gateway.core.requests import Pending, computed, kept
from mainspring.gateway.services import Services
from mainspring.gateway.tracing import parse_traceparent
from mainspring.messages.clients import InferRequest, Timing
from mainspring.messages.codes import Reason
from mainspring.messages.peers import Output

DROPPED = "access_log_lines_dropped"
ANSWERED = "answered"
_NAME_CHARACTERS = 200
"""Most characters that are logged of the name of a model that does not exist."""
_ENCODER = msgspec.json.Encoder()


class Line(msgspec.Struct, omit_defaults=True):
    """The line of one request; durations are in milliseconds, and its parts' add up to the total."""

    time: str
    """The time of the request's end, in UTC."""
    model: str
    outcome: str
    """``answered``, or the reason code."""
    total_ms: float
    receive_ms: float
    queue_ms: float
    """Time to the dispatch; for a request without outputs that was not dispatched, to its end."""
    input_ms: float
    load_ms: float
    wait_ms: float
    """Time of waiting on the worker; for a request without outputs, all time after its dispatch."""
    execute_ms: float
    output_ms: float
    version: int = 0
    rows: int = 0
    slo_ms: float | None = None
    """None for best effort."""
    left_ms: float | None = None
    """Time left to the deadline at its end; negative if late."""
    worker: str = ""
    batch_size: int = 0
    cold_start: bool = False
    cached: bool = False
    trace_id: str = ""
    """The trace's id in the client's ``traceparent``."""


class AccessLog:
    """An observer that writes lines to a file; what `start_access_log` returns."""

    def __init__(
        self,
        config: GatewayConfig,
        add: Callable[[Line], object],
        draw: Callable[[], float] = random.random,
        clock: Callable[[], int] = monotonic_ns,
        unix_clock: Callable[[], int] = time_ns,
    ) -> None:
        """``draw`` returns a number from 0 up to 1."""
        self._ratio = config.access_log_sample_ratio
        self._add = add
        self._draw = draw
        self._clock = clock
        self._unix_clock = unix_clock

    def answered(
        self, now_ns: int, request: Pending, dispatch: Dispatched | None, output: Output | None
    ) -> None:
        """Log a request that got outputs, or would have, had they come in time."""
        if self._draw() >= self._ratio:
            return
        came_ns, arrived_ns, deadline_ns = request.came_ns, request.arrived_ns, request.deadline_ns
        if dispatch is None or output is None:
            timing = kept(now_ns, came_ns, arrived_ns, deadline_ns)
        else:
            timing = computed(now_ns, came_ns, arrived_ns, deadline_ns, dispatch, output)
        late = timing.left_ns is not None and timing.left_ns < 0
        unwanted = late and not request.accepted.late_outputs
        self._log(request, Reason.TIMED_OUT.value if unwanted else ANSWERED, timing)

    def refused(self, request: Pending, reason: Reason) -> None:
        """Log a request that got a reason instead, or whose client is gone."""
        if self._draw() >= self._ratio:
            return
        now_ns, last = self._clock(), request.dispatches[-1] if request.dispatches else None
        sent_ns = now_ns if last is None else min(now_ns, max(request.arrived_ns, last.at_ns))
        timing = Timing(
            total_ns=now_ns - request.came_ns,
            queue_ns=sent_ns - request.arrived_ns,
            execute_ns=0,
            left_ns=None if request.deadline_ns is None else request.deadline_ns - now_ns,
            batch_size=0 if last is None else last.batch_size,
            cold_start=last is not None and last.cold,
            worker="" if last is None else last.worker,
            receive_ns=request.arrived_ns - request.came_ns,
            wait_ns=now_ns - sent_ns,
        )
        self._log(request, reason.value, timing)

    def turned_away(self, request: InferRequest, reason: Reason) -> None:
        """Log a request that the table did not see: how long it took to come is not known."""
        if self._draw() >= self._ratio:
            return
        model, parent = request.model[:_NAME_CHARACTERS], _trace_id(request.traceparent)
        self._add(Line(self._now(), model, reason.value, 0, 0, 0, 0, 0, 0, 0, 0, trace_id=parent))

    def _log(self, request: Pending, outcome: str, timing: Timing) -> None:
        accepted = request.accepted
        spec = accepted.signature.spec
        self._add(
            Line(
                time=self._now(),
                model=spec.public_name,
                outcome=outcome,
                total_ms=_ms(timing.total_ns),
                receive_ms=_ms(timing.receive_ns),
                queue_ms=_ms(timing.queue_ns),
                input_ms=_ms(timing.input_ns),
                load_ms=_ms(timing.load_ns),
                wait_ms=_ms(timing.wait_ns),
                execute_ms=_ms(timing.execute_ns),
                output_ms=_ms(timing.output_ns),
                version=spec.version,
                rows=accepted.rows,
                slo_ms=None if accepted.slo_ns is None else _ms(accepted.slo_ns),
                left_ms=None if timing.left_ns is None else _ms(timing.left_ns),
                worker=timing.worker,
                batch_size=timing.batch_size,
                cold_start=timing.cold_start,
                cached=timing.cached,
                trace_id=_trace_id(accepted.traceparent),
            )
        )

    def _now(self) -> str:
        now = datetime.fromtimestamp(self._unix_clock() / 1e9, UTC)
        return now.isoformat(timespec="microseconds").replace("+00:00", "Z")


class ServedLog:
    """The access log as something that a gateway serves."""

    def __init__(self, file: LogFile, path: str) -> None:
        self._file = file
        self.address = path

    def leave(self) -> None:
        """Do nothing: nobody connects."""

    async def close(self, grace_s: float) -> None:
        """Write what waits, within ``grace_s``."""
        await asyncio.to_thread(self._file.close, max(grace_s, 0.1))


def start_access_log(services: Services, config: GatewayConfig) -> ServedLog:
    """Log requests from now on; raise OSError, which says what to do, if the file can't be written."""
    path, loop, counts = config.access_log, asyncio.get_running_loop(), services.driver.counts

    def count(lines: int) -> None:
        counts[DROPPED] += lines

    def drop(lines: int) -> None:
        with contextlib.suppress(RuntimeError):
            # Which says that the loop has ended, and with it whoever could ask.
            loop.call_soon_threadsafe(count, lines)

    try:
        file = LogFile(
            path, config.access_log_max_bytes, config.access_log_older_files, _ENCODER.encode, drop
        )
    except OSError as error:
        raise OSError(
            f"the gateway can't write its access_log {path!r}: {error.strerror or error}; name a file in a "
            "folder that exists and that it may write to, or leave access_log empty"
        ) from error
    services.driver.core.observers.add(AccessLog(config, file.add))
    return ServedLog(file, path)


def _ms(spent_ns: int) -> float:
    return round(spent_ns / 1e6, 6)


def _trace_id(traceparent: str) -> str:
    parent = parse_traceparent(traceparent) if traceparent else None
    return "" if parent is None else f"{parent.trace_id:032x}"


log = logging.getLogger("mainspring.gateway")

MOST_WAITING: Final = 65_536
"""Lines that may wait to be written."""
_TOGETHER: Final = 64
"""Lines that are written at once: making them keeps the thread that serves from running."""
_PAUSE_S: Final = 0.2
"""Seconds between two looks whether there are lines to write."""


class LogFile:
    """The file and its thread. `add` belongs to one thread, the rest to the writer's."""

    def __init__(
        self,
        path: str,
        max_bytes: int,
        older_files: int,
        encode: Callable[[Any], bytes],
        drop: Callable[[int], object],
    ) -> None:
        """Beside the file at ``path`` there are at most so many older ones, ``path.1`` the youngest.

        ``encode`` makes a line of what was added, without its end; ``drop`` is told how many lines were
        dropped, in either thread. Raises OSError if the file can't be opened.
        """
        self._path, self._max_bytes, self._older_files = os.path.abspath(path), max_bytes, older_files
        self._encode = encode
        self._drop = drop
        self._waiting: deque[Any] = deque()
        self._file = self._opened()
        self._failing = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-file", daemon=True)
        self._thread.start()

    def add(self, line: Any) -> None:
        """Have a line written soon."""
        if len(self._waiting) < MOST_WAITING:
            self._waiting.append(line)
        else:
            self._drop(1)

    def close(self, patience_s: float) -> None:
        """Write what waits, and close the file, within a time; a disk that hangs is left to itself."""
        self._stopping.set()
        self._thread.join(patience_s)

    # --- the writer's thread ---

    def _run(self) -> None:
        while not self._stopping.wait(_PAUSE_S):
            self._write_waiting()
        self._write_waiting()
        os.close(self._file)

    def _write_waiting(self) -> None:
        while self._waiting:
            lines: list[bytes] = []
            while self._waiting and len(lines) < _TOGETHER:
                lines.append(self._encode(self._waiting.popleft()) + b"\n")
            data = b"".join(lines)
            try:
                self._file = self._current(len(data))
                self._append(data)
                self._failing = False
            except OSError as error:
                self._drop(len(lines))
                if not self._failing:
                    log.warning("lines of %s are dropped: %s", self._path, error)
                self._failing = True

    def _append(self, data: bytes) -> None:
        """Write all of it or nothing: half a line would spoil the next one."""
        before = os.fstat(self._file)
        written = 0
        try:
            while written < len(data):
                written += os.write(self._file, data[written:])
        except OSError:
            if written and stat.S_ISREG(before.st_mode):
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file, before.st_size)
            raise

    def _current(self, more_bytes: int) -> int:
        """Return the file to write to: another one if this was moved away, or would be too large."""
        now = os.fstat(self._file)
        if not stat.S_ISREG(now.st_mode):
            return self._file
        try:
            there = os.stat(self._path)
            moved = (there.st_ino, there.st_dev) != (now.st_ino, now.st_dev)
        except FileNotFoundError:
            moved = True
        if not moved:
            if not now.st_size or now.st_size + more_bytes <= self._max_bytes:
                return self._file
            self._rotate()
        file = self._opened()
        os.close(self._file)
        return file

    def _rotate(self) -> None:
        """Give each file the next number; the last one goes."""
        for number in range(self._older_files, 0, -1):
            younger = f"{self._path}.{number - 1}" if number > 1 else self._path
            with contextlib.suppress(FileNotFoundError):
                os.replace(younger, f"{self._path}.{number}")

    def _opened(self) -> int:
        # Without O_NONBLOCK a named pipe that nobody reads would hold the start up.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        return os.open(self._path, flags, 0o640)
