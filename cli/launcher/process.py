"""One child process: start it on a job, watch it, end it within a bound."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from mainspring.cli.launcher.jobs import Job
from mainspring.cli.launcher.run_dir import open_private

LOG_TAIL_BYTES = 4096


class Process:
    """A job's process over its deaths and restarts. Used from one thread, which must outlive the child.

    The kernel kills a child when the *thread* that started it ends, so the thread that starts children stays.
    """

    def __init__(self, job: Job, run_dir: Path, backoff: Backoff) -> None:
        self.job = job
        self.starts = 0
        self.restart_at_ns: int | None = None
        self.fault = ""
        """Last problem of the process, for a person."""
        self._backoff = backoff
        self._job_path = run_dir / f"{job.name}.json"
        self.log_path = run_dir / f"{job.name}.log"
        self._child: subprocess.Popen[bytes] | None = None
        self._started_ns = 0

    @property
    def pid(self) -> int | None:
        """The running child's process id."""
        return self._child.pid if self._child and self._child.poll() is None else None

    def start(self) -> None:
        """Start the job; the first start begins its log again, and later ones continue it.

        Raises OSError if the machine has no room for it, such as on a full disk.
        """
        if not self.starts or not self._job_path.exists():
            # Not at each start: the disk may be full by then.
            job = msgspec.structs.replace(self.job, parent_pid=os.getpid())
            with open(self._job_path, "wb", opener=open_private) as file:
                file.write(msgspec.json.format(msgspec.json.encode(job)))
        with open(self.log_path, "ab" if self.starts else "wb", opener=open_private) as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "mainspring.cli.launcher.child", str(self._job_path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.starts += 1
        self.restart_at_ns = None
        self._started_ns = time.monotonic_ns()

    def ails(self, now_ns: int) -> bool:
        """Say whether ``fault`` still holds: it has not run long enough since."""
        runs = self._child is not None and now_ns - self._started_ns > self._backoff.longest_ns
        return bool(self.fault) and not runs

    def put_off(self, now_ns: int) -> None:
        """Settle when to try again after a start that failed."""
        self.restart_at_ns = now_ns + self._backoff.died(0)

    def reap(self, now_ns: int) -> str | None:
        """Return how the child died if it has since the last call, and set when it may start again."""
        if self._child is None or (code := self._child.poll()) is None:
            return None
        self._child = None
        self.restart_at_ns = now_ns + self._backoff.died(now_ns - self._started_ns)
        if code < 0:
            return f"killed by signal {-code}"
        return f"exit code {code}: {self._last_words()}"

    def _last_words(self) -> str:
        """Return the last line of the child's log, which is where it says why it left."""
        try:
            tail = self.log_path.read_bytes()[-LOG_TAIL_BYTES:]
        except OSError:
            return "its log can't be read"
        lines = tail.decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "its log is empty"

    def terminate(self) -> None:
        """Ask the child to drain and leave."""
        if self._child is not None:
            self._child.terminate()

    def kill(self) -> None:
        """End the child at once."""
        if self._child is not None:
            self._child.kill()

    def wait(self, timeout_s: float) -> bool:
        """Return whether the child is gone, waiting for it for at most that time."""
        if self._child is None:
            return True
        try:
            self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True


class Backoff(msgspec.Struct):
    """Delay before the next start: doubles with each death in a row, forgotten after a long life."""

    first_ns: int
    longest_ns: int
    """The delay grows no further; a process that lived longer than this starts afresh."""
    deaths: int = 0
    """Deaths in a row."""

    def died(self, lived_ns: int) -> int:
        """Count a death after a life of ``lived_ns``; return how long to wait before the next start."""
        self.deaths = 1 if lived_ns > self.longest_ns else self.deaths + 1
        return min(self.longest_ns, self.first_ns << min(self.deaths - 1, 32))
