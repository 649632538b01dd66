"""Actors on nodes of Ray, each with one process of the cluster as its child, and the launcher's end of them.

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
from typing import Any

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


Resources = dict[str, float]
"""Amounts by the names that Ray has for them."""

ASK_S = 1.0
"""Time from one answer of an actor to the next question."""
PENDING_S = 3.0
"""Time without an answer of an actor after which Ray is asked whether it has a node for it."""
RETRY_S = 2.0
"""The time until an actor that could not begin is made once more."""
LEAST_STOP_S = 0.1
"""Least time that a process gets to leave, even if others have used the time up."""
LEAVE_S = 2.0
"""Added to the time for a stop: an actor that does not answer then is killed."""
NO_NODE = ("PENDING", "RESCHEDULING")
"""States of a placement group that has no node, or not yet."""


class Setting(msgspec.Struct, frozen=True):
    """The settings that all actors of a run share."""

    ray: Any
    folder: str
    """Folder that relative paths begin in."""


def placed(wanted: Resources) -> Any:
    """Return a placement group of one bundle; Ray finds another node for it if its node is lost."""
    from ray.util.placement_group import placement_group

    return placement_group([wanted], strategy="STRICT_PACK")


class Child:
    """One job's actor, which Ray starts again whenever it or its node dies."""

    def __init__(self, setting: Setting, job: Job, group: Any, wanted: Resources) -> None:
        """Begin to start the job in a placement group of one bundle, of which it takes ``wanted``."""
        self.name = job.name
        self.essential = job.essential
        self.fault = ""
        """Present problem of the process, for a person."""
        self.pid = 0
        """The process as it was last seen."""
        self.starts = 0
        """Number of its processes that were seen."""
        self.group = group
        self._setting = setting
        self._job = job
        self._wanted = wanted
        self._actor = self._made()
        self._answer: Any = None
        self._ask_s = self._look_s = 0.0
        self._until_s = 0.0

    def tend(self, now_s: float) -> str:
        """Take in what the actor says, and ask it again; return news for a person, mostly none."""
        ray, before = self._setting.ray, self.fault
        if self._answer is None:
            if now_s >= self._ask_s:
                self._answer, self._look_s = self._actor.state.remote(), now_s + PENDING_S
        elif ray.wait([self._answer], timeout=0)[0]:
            self._take(now_s)
        elif now_s >= self._look_s:
            self._look_s = now_s + PENDING_S
            self._look_for_node()
        return self.fault if self.fault != before else ""

    def leave(self, give_up_s: float) -> None:
        """Have the process drain and leave, until ``give_up_s`` of this process's monotonic clock."""
        self._answer = self._actor.stop.remote(max(LEAST_STOP_S, give_up_s - time.monotonic()))
        # One that was never seen has nothing to drain, and may have no node to come to.
        self._until_s = give_up_s + LEAVE_S if self.pid else 0.0

    def left(self, now_s: float) -> bool:
        """Return whether it has left, or its time to do so is over; its actor is ended then."""
        ray = self._setting.ray
        if not ray.wait([self._answer], timeout=0)[0] and now_s < self._until_s:
            return False
        ray.kill(self._actor, no_restart=True)
        return True

    def _made(self) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        setting = self._setting
        actor = setting.ray.remote(ChildActor).options(
            num_cpus=self._wanted.get("CPU", 0.0),
            num_gpus=self._wanted.get("GPU", 0.0),
            max_restarts=-1,
            max_task_retries=-1,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=0),
        )
        return actor.remote(self.name, msgspec.json.encode(self._job), setting.folder)

    def _take(self, now_s: float) -> None:
        """Take in an answer."""
        answer, self._answer = self._answer, None
        self._ask_s = now_s + ASK_S
        try:
            pid, ended = self._setting.ray.get(answer)
        except self._setting.ray.exceptions.RayError as error:
            # Ray gives an actor up whose start raises an error.
            self.fault = f"{self.name} can't be started, trying again: {last_line(str(error))}"
            self._ask_s = now_s + RETRY_S
            self._actor = self._made()
            return
        self.starts += pid != self.pid
        self.pid = pid
        self.fault = f"{self.name} died ({ended}); Ray starts it again" if ended else ""

    def _look_for_node(self) -> None:
        """Say so if Ray has no node for it."""
        from ray.util.placement_group import placement_group_table

        if placement_group_table(self.group).get("state") in NO_NODE:
            free = shown(self._setting.ray.available_resources())
            self.fault = f"{self.name} waits for a node with {shown(self._wanted)}; free in all are {free}"


def last_line(text: str) -> str:
    """Return the last line of a text that is not empty."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), text)


def shown(resources: Resources) -> str:
    """Return resources for a person, without those that only name a node or count bytes."""
    parts = [
        f"{name} {amount:g}"
        for name, amount in sorted(resources.items())
        if ":" not in name and "memory" not in name and "_group_" not in name
    ]
    return ", ".join(parts) or "none"
