"""Times variants of kernels on this machine's first GPU, in a process that the first trial starts."""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys

import msgspec

from mainspring.compiler.artifact.plan import Timed, TimerFailed, Trial

PROGRAM = (sys.executable, "-m", "mainspring.worker.engines.cuda.timing")
TIMEOUT_S = 60.0
"""Longest time of one trial. A driver that was idle for a long time takes seconds to wake."""


class GpuTimer:
    """A `trials.Timer` within a `with`. A failure ends the process; the next trial starts another."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> GpuTimer:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def __call__(self, trial: Trial) -> tuple[int, ...]:
        """Return the duration of each run in ns; raise `TimerFailed`."""
        try:
            timed = msgspec.json.decode(self._ask(msgspec.json.encode(trial) + b"\n"), type=Timed)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            reason = self._end() or str(error)
            raise TimerFailed(f"the process that times kernels on the GPU ended: {reason}") from error
        if timed.failed:
            self._end()
            raise TimerFailed(timed.failed)
        return timed.ns

    def _ask(self, line: bytes) -> bytes:
        pipe = subprocess.PIPE
        if self._process is None:
            self._process = subprocess.Popen(PROGRAM, stdin=pipe, stdout=pipe, stderr=pipe)
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(line)
        stdin.flush()
        if not select.select([stdout], [], [], TIMEOUT_S)[0]:
            self._process.kill()
            raise TimeoutError(f"it was not done after {TIMEOUT_S:.0f} s")
        return stdout.readline()

    def _end(self) -> str:
        """End the process, if there is one; return the last line of what it wrote beside its answers."""
        process, self._process = self._process, None
        if process is None:
            return ""
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.stdin = None
        try:
            said = process.communicate(timeout=TIMEOUT_S)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            said = process.communicate()[1]
        lines = said.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""
