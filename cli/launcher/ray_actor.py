"""An actor on a node of Ray, with one ordinary process of the cluster as its child.

The actor does nothing but to have that child and to end with it, so that restarts, and where they happen, are
Ray's. What the child prints goes to Ray's log of the actor. Nothing here imports Ray.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import msgspec

from mainspring.cli.launcher.jobs import Job
from mainspring.cli.launcher.run_dir import open_private

LAST_WORDS = 300
"""Most characters of a dead child's last line that are reported."""
TOLD_S = 2.0
"""Time that the actor of a dead child waits to be asked why, before it ends."""
SENT_S = 0.2
"""Time after that until its answer has left."""


class ChildActor:
    """One job's process, which the kernel ends when the actor's process ends."""

    def __init__(self, name: str, job: bytes, folder: str) -> None:
        """Start the job, which is JSON.

        The job's relative paths begin at ``folder``, if this node has it. Raises OSError if the node has no
        room for it.
        """
        self._name = name
        self._own = Path(tempfile.mkdtemp(prefix="mainspring-ray-"))
        self._told = threading.Event()
        self._stopping = False
        self._last = ""
        self._ended = ""
        told = msgspec.json.decode(job, type=Job)
        told_path = self._own / "job.json"
        with open(told_path, "wb", opener=open_private) as file:
            file.write(msgspec.json.encode(msgspec.structs.replace(told, parent_pid=os.getpid())))
        self._command = [sys.executable, "-m", "mainspring.cli.launcher.child", str(told_path)]
        self._folder = folder if Path(folder).is_dir() else None
        self._failure: OSError | None = None
        self._child: subprocess.Popen[bytes] | None = None
        started = threading.Event()
        # The kernel ends a child with the thread that started it, so that is one that lasts as long.
        threading.Thread(target=self._keep, args=(started,), name="child", daemon=True).start()
        started.wait()
        if self._failure is not None:
            raise self._failure

    def __repr__(self) -> str:
        """Return what Ray's lists and logs call the actor."""
        return self._name

    def state(self) -> tuple[int, str]:
        """Return the child's process id, and why it ended, empty while it runs."""
        if self._ended:
            self._told.set()
        assert self._child is not None
        return self._child.pid, self._ended

    def stop(self, patience_s: float) -> bool:
        """Have the child drain and leave; return False if it had to be killed."""
        assert self._child is not None
        self._stopping = True
        self._child.terminate()
        try:
            self._child.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
            return False
        finally:
            shutil.rmtree(self._own, ignore_errors=True)
        return True

    def _keep(self, started: threading.Event) -> None:
        """Start the child, pass on what it prints, and end the actor's process after it."""
        try:
            child = self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                start_new_session=True,
            )
        except OSError as error:
            shutil.rmtree(self._own, ignore_errors=True)
            self._failure = error
            return
        finally:
            started.set()
        assert child.stdout is not None
        for line in child.stdout:
            text = line.decode("utf-8", "replace").rstrip()
            self._last = text[:LAST_WORDS] or self._last
            print(text, file=sys.stderr, flush=True)
        code = child.wait()
        if self._stopping:
            return
        shutil.rmtree(self._own, ignore_errors=True)
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        self._ended = f"{how}: {self._last}" if self._last else how
        self._told.wait(TOLD_S)
        time.sleep(SENT_S)
        os._exit(1)
