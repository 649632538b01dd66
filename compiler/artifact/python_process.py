"""The process of one Python model, as the compiler and a worker's engine drive it.

Clipper (section 4.4) has a container for each model, behind one batch call; here it is a process. It has
three things of ours: a socket for control, memory for the tensors, and a log. The memory is sealed, so that
the process can't shrink it under the worker's feet. Its environment names no secret, its standard input is
empty, its session is its own; it dies with the thread that started it. Every wait for it has an end. It is no
sandbox: it runs as the user of the worker, and its code is the operator's.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import math
import mmap
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mainspring.compiler.artifact.arrays import Sizes
from mainspring.compiler.artifact.errors import ExecutableError, Interrupted, ValuesError
from mainspring.compiler.artifact.manifest import ALIGNMENT_BYTES, ExecutableInfo, IoTensor
from mainspring.compiler.artifact.python_folder import facts_of
from mainspring.messages.model import FOUND_BYTES, item_bytes

HOST = Path(__file__).with_name("python_host.py")
MOST_BYTES = 1 << 16
"""Most bytes of a message."""
TIMES_SLOWEST = 4
"""Multiple of the slowest batch of those that were tried that one may take, without ``timeout_ms``."""
LEAST_BUSY_NS = 100_000_000
"""Least of that time, if the process computes."""
LEAST_IDLE_NS = 500_000_000
"""Least of that time, if it hardly computes: it waits for something, or the host has stopped it."""
COMPUTED_PART = 0.5
END_S = 5.0
"""Longest wait for the end of a process that was killed."""
CLOSED_S = 0.2
"""Longest wait for the end of a process that has closed its socket."""
KEPT_ENVIRONMENT = ("LANG", "LC_ALL", "PATH", "TZ")
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class ProcessEnded(ExecutableError):
    """The process is gone; the text says how it ended."""


def layout(tensors: Sequence[IoTensor], rows: int) -> tuple[list[int], int]:
    """Return where each tensor of a batch begins, and the bytes of all, with room for the largest sizes."""
    offsets, end = [], 0
    for tensor in tensors:
        offsets.append(end)
        end += -(-rows * tensor.size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return offsets, end


def limits_ns(given_ns: int, slowest_ns: int) -> tuple[int, int]:
    """Return how long a batch may take before its process counts as hung: one that computes, and one that
    hardly does. ``given_ns`` is the operator's limit, 0 for none."""
    usual_ns = TIMES_SLOWEST * slowest_ns
    return (given_ns,) * 2 if given_ns else (max(usual_ns, LEAST_BUSY_NS), max(usual_ns, LEAST_IDLE_NS))


class PythonProcess:
    """A process and the memory between it and this one; one thread at a time uses it."""

    def __init__(
        self,
        info: ExecutableInfo,
        rows: int,
        folder: Path,
        python: Path,
        log: int,
        *,
        threads: int = 1,
        cores: frozenset[int] = frozenset(),
    ) -> None:
        """Start it, for batches of at most ``rows``; `ready` waits for it.

        ``folder`` is the model's, ``log`` a descriptor that its output goes to. Libraries in it compute in
        ``threads`` threads, on ``cores`` or, if none are named, on this thread's. Raises `ExecutableError`.
        """
        self.info, self.facts = info, facts_of(info)
        self.trying = True
        """True until requests are served: a batch without a limit may take as long as the start."""
        self.slowest_ns = max(info.measured.infer_ns.values(), default=0)
        """Duration of the slowest batch, of those that were measured and those that were tried here."""
        self._tensors = (*info.inputs, *info.outputs)
        self._offsets, size = layout(self._tensors, rows)
        self._size = max(size, mmap.PAGESIZE)
        self._told: dict[tuple[int, Sizes], bytes] = {}
        self.ended = ""
        """Its end, for a person; empty while it runs."""
        self._began_ns = time.monotonic_ns()
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        memory = os.memfd_create("mainspring-python", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(memory, self._size)
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
            self._memory = mmap.mmap(memory, self._size)
            self._base = int(np.frombuffer(self._memory, np.uint8).ctypes.data)
            self._process = self._started(python, folder, theirs, memory, log, threads, cores)
        except OSError as error:
            self._link.close()
            raise ExecutableError(f"the process of {self.name} can't start: {error}") from error
        finally:
            theirs.close()
            os.close(memory)
        self._link.send(json.dumps(self._description(folder)).encode())

    @property
    def name(self) -> str:
        """Return the model's name."""
        return self.facts.name

    @property
    def pid(self) -> int:
        """Return the process's number."""
        return self._process.pid

    def _started(
        self,
        python: Path,
        folder: Path,
        theirs: socket.socket,
        memory: int,
        log: int,
        threads: int,
        cores: frozenset[int],
    ) -> subprocess.Popen[bytes]:
        kept = {key: os.environ[key] for key in KEPT_ENVIRONMENT if key in os.environ}
        fds = (theirs.fileno(), memory)
        process = subprocess.Popen(
            [str(python), "-I", "-B", "-u", str(HOST), *map(str, (*fds, os.getpid()))],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=fds,
            cwd=folder,
            env=kept | dict.fromkeys(_THREADS, str(threads)),
            start_new_session=True,
        )
        if cores:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(process.pid, cores)
        return process

    def _description(self, folder: Path) -> dict[str, Any]:
        placed = [
            {"name": each.name, "dtype": each.dtype, "offset": offset, "varies": each.varies}
            for each, offset in zip(self._tensors, self._offsets, strict=True)
        ]
        inputs = len(self.info.inputs)
        return {
            "folder": str(folder),
            "memory_bytes": self.facts.memory_bytes,
            "size": self._size,
            "inputs": placed[:inputs],
            "outputs": placed[inputs:],
        }

    def ready(self, wait: bool = True) -> bool:
        """Return whether its `Predictor` is there, after waiting for it.

        Raises `ExecutableError` if that fails or takes too long.
        """
        left_ns = self._began_ns + self.facts.start_ns - time.monotonic_ns()
        if not wait and left_ns > 0 and not self._readable(0):
            return False
        try:
            self._answer(max(left_ns, 0), max(left_ns, 0), "while it started")
        except Interrupted:
            start_s = self.facts.start_ns / 1e9
            raise ExecutableError(
                f"model.py of {self.name} was not ready after {start_s:g} s; `start_s` in model.toml allows "
                "more"
            ) from None
        return True

    def sample(self) -> list[npt.NDArray[np.generic]] | None:
        """Return rows of each input that the model takes; None if its `Predictor` has no ``sample``."""
        self._send(b'{"do": "sample"}')
        shapes = self._answer(self.facts.start_ns, self.facts.start_ns, "in sample()")["shapes"]
        if shapes is None:
            return None
        found, begin = [], 0
        for tensor, shape in zip(self.info.inputs, shapes, strict=True):
            array = np.frombuffer(self._memory, tensor.dtype, math.prod(shape), begin).reshape(shape).copy()
            found.append(array)
            begin += array.nbytes
        return found

    def run(self, batch_size: int, inputs: Sequence[int], outputs: Sequence[int], sizes: Sizes = ()) -> None:
        """Have it compute a batch of just so many rows from and to these addresses.

        Raises `ValuesError` for what `Predictor` says is wrong with the inputs, `Interrupted` if it took so
        long that it was killed, `ProcessEnded` if it ended, `ExecutableError` for other errors in it.
        """
        rows, begin_ns = batch_size, time.monotonic_ns()
        for tensor, offset, address in zip(self.info.inputs, self._offsets, inputs, strict=False):
            ctypes.memmove(self._base + offset, address, rows * _row_bytes(tensor, sizes))
        key = rows, sizes
        told = self._told.get(key)
        if told is None:
            if len(self._told) > 1024:
                self._told.clear()
            told = self._told[key] = self._message(rows, sizes)
        self._send(told)
        limits = limits_ns(self.facts.timeout_ns, self.slowest_ns)
        if self.trying:
            limits = (self.facts.timeout_ns or self.facts.start_ns,) * 2
        shapes = self._answer(*limits, f"while it ran a batch of {rows}")["shapes"]
        if self.trying:
            self.slowest_ns = max(self.slowest_ns, time.monotonic_ns() - begin_ns)
        places = self._offsets[len(self.info.inputs) :]
        for tensor, offset, address, shape in zip(self.info.outputs, places, outputs, shapes, strict=True):
            size, into = rows * _row_bytes(tensor, sizes), address
            if tensor.varies:
                found = [int(shape[axis - len(tensor.shape)]) for axis in tensor.varies]
                header = np.array(found, "<i8").tobytes()
                ctypes.memmove(into, header, len(header))
                into += FOUND_BYTES
                size = min(size, math.prod(map(int, shape)) * item_bytes(tensor.dtype))
            ctypes.memmove(into, self._base + offset, size)

    def _message(self, rows: int, sizes: Sizes) -> bytes:
        shapes = [
            [*tensor.at(sizes)] if self.facts.whole else [rows, *tensor.at(sizes)] for tensor in self._tensors
        ]
        inputs = len(self.info.inputs)
        return json.dumps(
            {
                "do": "run",
                "rows": None if self.facts.whole else rows,
                "inputs": shapes[:inputs],
                "outputs": shapes[inputs:],
            }
        ).encode()

    def _send(self, message: bytes) -> None:
        if self.ended:
            raise ProcessEnded(self.ended)
        try:
            self._link.send(message)
        except OSError:
            raise self.gone() from None

    def _readable(self, wait_ns: int) -> bool:
        waiting = select.poll()
        waiting.register(self._link, select.POLLIN)
        return bool(waiting.poll(wait_ns / 1e6))

    def _computed_ns(self) -> int:
        """Return the processor time that the process has taken; 0 if it is gone."""
        try:
            # The number of its clock, as clock_getcpuclockid(3) makes it.
            return time.clock_gettime_ns((~self.pid << 3) | 2)
        except OSError:
            return 0

    def _answer(self, busy_ns: int, idle_ns: int, when: str) -> dict[str, Any]:
        """Return the answer to what was sent; raise what it says is wrong.

        Waits ``busy_ns`` for a process that computes half of that time, ``idle_ns`` for another.
        """
        computed_ns = self._computed_ns()
        waited_ns, there = busy_ns, self._readable(busy_ns)
        if not there and self._computed_ns() - computed_ns < COMPUTED_PART * busy_ns:
            waited_ns, there = idle_ns, self._readable(idle_ns - busy_ns)
        if not there:
            self.kill()
            self.ended = f"{self.name} was not done after {waited_ns / 1e9:.3g} s {when}, and was ended"
            raise Interrupted(f"{self.ended}: `timeout_ms` in model.toml allows more")
        try:
            received = self._link.recv(MOST_BYTES)
        except OSError:
            received = b""
        if not received:
            raise self.gone(when)
        answer = _decoded(received)
        kind = answer.get("kind")
        said = f"{answer.get('error', '')}"
        if kind is None:
            return answer
        if kind == "values":
            raise ValuesError(f"{said}{answer.get('place', '')}")
        if kind == "memory":
            allowed = self.facts.memory_bytes >> 20
            said = f"it needs more memory than the {allowed} MiB that `memory_mb` in model.toml allows"
        raise ExecutableError(f"model.py of {self.name} failed {when}: {said}{answer.get('place', '')}")

    def gone(self, when: str = "while it had nothing to do") -> ProcessEnded:
        """Return how the process ended, which has closed its socket or has ended."""
        end_s = time.monotonic() + CLOSED_S
        while (lives := self.alive()) and time.monotonic() < end_s:
            time.sleep(0.001)
        self.close()
        code = self._process.returncode
        if lives:
            how = "because it had closed its connection to the worker"
        elif code is None or code >= 0:
            how = f"with exit code {code}: model.py may not end it"
        elif code == -signal.SIGKILL:
            how = "by SIGKILL: the kernel does that where memory is short"
        else:
            named = -code in [each.value for each in signal.Signals]
            how = f"by {signal.Signals(-code).name if named else -code}: native code in it failed"
        self.ended = f"the process of {self.name} was ended {when} {how}"
        return ProcessEnded(self.ended)

    def alive(self) -> bool:
        """Return whether the process runs; any thread may call."""
        if self.ended or self._process.returncode is not None:
            return False
        try:
            # Its number stays its own until it is waited for.
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False

    def kill(self) -> None:
        """End the process and what it has started, without waiting for that."""
        self.ended = self.ended or f"the process of {self.name} was ended"
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill it, and wait for its end."""
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        self._link.close()


def _row_bytes(tensor: IoTensor, sizes: Sizes) -> int:
    return math.prod(tensor.at(sizes)) * item_bytes(tensor.dtype) if sizes else tensor.size_bytes


def _decoded(received: bytes) -> dict[str, Any]:
    """Return an answer; one that `python_host` would not give is an error of the model's."""
    try:
        answer = json.loads(received)
    except ValueError:
        answer = None
    if isinstance(answer, dict) and ("kind" in answer or "shapes" in answer or not answer):
        return answer
    return {"kind": "failed", "error": "its process answers what it was not asked"}
