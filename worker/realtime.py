"""Priority, affinity and locked memory, where the user has the rights.

A missing right is noted once, for the operator, and the worker goes on without it.

EXEC has a core of its own if there are enough: a SCHED_FIFO thread that leaves no time to a normal thread on
its core is paused by the kernel for about 50 ms of each second, so every other thread of the process is kept
off that core. Where it has to share cores with gateway and controller, it goes behind them: what they have
not read has no deadline that anybody knows, and answers would be late that nobody could have refused. Then
their work makes EXEC take longer, which is measured and so predicted. Where there are as many workers as
cores or more, EXEC may use every core of the process: the kernel has it wait only while real-time threads
take all of them.

The network thread has real-time priority too: it holds the interpreter's lock, and EXEC would wait for that
lock if another process preempted the network thread. LOAD and PREPARE run without real-time priority, so that
their copies don't starve other processes. LOAD, whose duration is predicted, precedes normal threads; PREPARE
follows them.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

PROCESS_CORES = frozenset(os.sched_getaffinity(0))
"""Cores that the process had when it began, before any of its threads was kept to some."""
EXEC_PRIORITY = 50
NETWORK_PRIORITY = 40
SHARED_EXEC_PRIORITY = 25
"""Priority of an EXEC that computes on a core that gateway and controller use: below theirs (30,
`CONTROL_PRIORITY` of the launcher) and above that of programs without real-time priority."""
LOAD_NICE = -10
PREPARE_NICE = 5
SWITCH_INTERVAL_S = 50e-6
"""Time for which a thread may keep the interpreter's lock when another wants it."""
_LOCK_CURRENT_FUTURE_ON_FAULT = 1 | 2 | 4
_CAP_IPC_LOCK = 14
_NAME_CHARACTERS = 15
"""The most that the kernel keeps of a thread's name."""


class Rights:
    """Requests cores, priorities and locked memory from the operating system; nothing if not ``realtime``."""

    def __init__(
        self, realtime: bool, exec_core: int | None = None, *, computes: bool = False, shared: bool = False
    ) -> None:
        """``computes``: whether EXEC keeps its core busy, and not a device beside it; ``shared``: whether
        gateway or controller use that core too, as they do if there is no other. With neither ``exec_core``
        nor a core of its own, EXEC may use all cores of the process."""
        self.realtime = realtime
        self._computes = computes
        self._shared = shared
        self.notes: list[str] = []
        self._exec_cores: frozenset[int] = frozenset()
        self._other_cores: frozenset[int] = frozenset()
        self._collecting = False
        if realtime:
            self._divide_cores(exec_core)

    def claim_process(self) -> None:
        """Lock memory, set the interpreter up, allow many open files. Call once, after all allocations."""
        _allow_open_files()
        if not self.realtime:
            return
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._collecting = gc.isenabled()
        gc.collect()
        gc.freeze()
        gc.disable()
        failure = _lock_memory()
        if failure:
            self._note(f"memory is not locked ({failure}): pages may be swapped out")

    def release_process(self) -> None:
        """Let the garbage collector run again if it did before: the worker has stopped serving."""
        if self.realtime:
            gc.unfreeze()
            if self._collecting:
                gc.enable()

    @contextlib.contextmanager
    def claimed_process(self) -> Iterator[None]:
        """Set this process up like a worker's for the ``with`` block."""
        self.claim_process()
        try:
            yield
        finally:
            self.release_process()

    def claim_libraries(self) -> None:
        """Keep the calling thread off EXEC's core; the threads of libraries inherit its cores."""
        self._pin(self._other_cores)

    def claim_exec(self) -> None:
        """Give the calling thread, EXEC, its core, and the highest priority unless it is to let others go
        first there."""
        self._pin(self._exec_cores)
        behind = self._computes and self._shared
        self._prioritise(SHARED_EXEC_PRIORITY if behind else EXEC_PRIORITY, "EXEC")

    def claim_network(self) -> None:
        """Give the calling thread, the network thread, its cores and priority; new threads inherit them."""
        self._pin(self._other_cores)
        self._prioritise(NETWORK_PRIORITY, "network")

    def release_network(self) -> None:
        """Take the real-time priority from the calling thread, the network thread: nothing that follows has a
        deadline."""
        if self.realtime:
            end_realtime()

    def claim_load(self) -> None:
        """Keep the calling thread, LOAD, off EXEC's core and before normal threads of other processes."""
        self._claim_background(LOAD_NICE)

    def claim_prepare(self) -> None:
        """Keep the calling thread, PREPARE, off EXEC's core and behind normal threads of other processes."""
        self._claim_background(PREPARE_NICE)

    def _claim_background(self, nice: int) -> None:
        self._pin(self._other_cores)
        if not self.realtime:
            return
        end_realtime()
        with contextlib.suppress(PermissionError):
            # Relative: a thread begins at the niceness that the whole process was given.
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + nice)

    def _divide_cores(self, exec_core: int | None) -> None:
        allowed = os.sched_getaffinity(0)
        wanted = max(allowed) if exec_core is None else exec_core
        if wanted not in allowed:
            self._note(
                f"core {wanted} is not among this process's cores {sorted(allowed)}: EXEC is not pinned"
            )
        elif len(allowed) == 1:
            self._shared = True
            self._note("this process has one core: EXEC shares it with everything else")
        elif exec_core is None and self._shared:
            self._exec_cores = self._other_cores = frozenset(allowed)
            if self._computes:
                self._note(f"EXEC has no core of its own: it shares {sorted(allowed)} with other processes")
        else:
            self._exec_cores = frozenset([wanted])
            self._other_cores = frozenset(allowed - {wanted})

    def _pin(self, cores: frozenset[int]) -> None:
        if not cores:
            return
        try:
            os.sched_setaffinity(0, cores)
        except OSError as error:
            self._note(f"threads are not pinned ({error.strerror}): they may disturb each other")

    def _prioritise(self, priority: int, thread: str) -> None:
        if not self.realtime:
            return
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
        except OSError as error:
            self._note(f"no real-time priority for {thread} ({error.strerror}): actions may begin late")

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def end_realtime() -> None:
    """Take its real-time priority from the calling thread, if it has one.

    What ends a process, the interpreter and all its memory, takes up to 0.1 s of a core. At a real-time
    priority, requests that other processes serve would wait for that.
    """
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def name_thread(name: str) -> None:
    """Give the calling thread a name that ``top``, ``ps`` and profilers show, where the system lets it."""
    with contextlib.suppress(OSError):
        Path("/proc/thread-self/comm").write_text(name[:_NAME_CHARACTERS], encoding="ascii")


def _allow_open_files() -> None:
    """Raise the soft limit to the hard one: each prepared model keeps a file open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _lock_memory() -> str:
    """Lock all memory that is or will be touched; return why that failed, or an empty string.

    Under a finite limit nothing is locked: later mappings beyond the limit would fail.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft != resource.RLIM_INFINITY and not _may_lock():
        return f"limit of {soft // 1024} KiB"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlockall(_LOCK_CURRENT_FUTURE_ON_FAULT):
        return os.strerror(ctypes.get_errno())
    return ""


def _may_lock() -> bool:
    """Return whether the process has CAP_IPC_LOCK."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_IPC_LOCK & 1)
    return False
