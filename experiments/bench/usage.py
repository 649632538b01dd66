"""Cost of processes: processor time, waits for a processor, turns and wake-ups, from the kernel.

``/proc/PID/task/TID/schedstat`` counts the first three of a thread in nanoseconds, and ``status`` how often
it went to sleep. `calls_of` counts system calls with strace, where it is installed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from mainspring.cli.launcher.supervisor import Supervisor

MAIN = "main"
"""The name here of a process's first thread, which the kernel calls as the program."""
_SLEPT = re.compile(r"^voluntary_ctxt_switches:\s*(\d+)", re.MULTILINE)
_STRACE_S = 10.0


class Usage(msgspec.Struct, frozen=True):
    """Usage of a thread, or of all threads of a process."""

    cpu_ns: int = 0
    waited_ns: int = 0
    """Ready to run, but no processor was free."""
    turns: int = 0
    wakeups: int = 0

    def since(self, before: Usage) -> Usage:
        """Return what was added."""
        return Usage(
            self.cpu_ns - before.cpu_ns,
            self.waited_ns - before.waited_ns,
            self.turns - before.turns,
            self.wakeups - before.wakeups,
        )

    def plus(self, other: Usage) -> Usage:
        """Return the sum."""
        return Usage(
            self.cpu_ns + other.cpu_ns,
            self.waited_ns + other.waited_ns,
            self.turns + other.turns,
            self.wakeups + other.wakeups,
        )


def usage_of_threads(pid: int) -> dict[str, Usage]:
    """Return what a process's threads have used, by their names; those that have ended do not count.

    Threads of one name are added up; the first is `MAIN`.
    """
    found: dict[str, Usage] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            name = MAIN if task.name == str(pid) else (task / "comm").read_text().strip()
            cpu_ns, waited_ns, turns = map(int, (task / "schedstat").read_text(encoding="ascii").split())
            slept = _SLEPT.search((task / "status").read_text())
        except OSError:
            continue
        usage = Usage(cpu_ns, waited_ns, turns, int(slept[1]) if slept else 0)
        found[name] = found.get(name, Usage()).plus(usage)
    return found


def usage_of(pid: int) -> Usage:
    """Return what a process's threads have used together; those that have ended do not count."""
    total = Usage()
    for usage in usage_of_threads(pid).values():
        total = total.plus(usage)
    return total


def usage_of_all(supervisor: Supervisor, names: Iterable[str]) -> dict[str, Usage]:
    """Return the usage of each of a cluster's processes that is running, by name."""
    pids = {name: supervisor.pid(name) for name in names}
    return {name: usage_of(pid) for name, pid in pids.items() if pid is not None}


@contextlib.contextmanager
def calls_of(pids: Mapping[str, int]) -> Iterator[dict[str, dict[str, int]]]:
    """Count the system calls of processes while the block runs; what it yields is filled in at its end.

    By process, then by the call's name; empty without strace, or where it may not look.
    """
    found: dict[str, dict[str, int]] = {}
    program = shutil.which("strace")
    if program is None:
        yield found
        return
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        running = {
            name: stack.enter_context(_strace(program, pid, folder / name)) for name, pid in pids.items()
        }
        yield found
        for name, process in running.items():
            process.send_signal(signal.SIGINT)
            process.wait(_STRACE_S)
            found[name] = counted((folder / name).read_text())


@contextlib.contextmanager
def _strace(program: str, pid: int, output: Path) -> Iterator[subprocess.Popen[str]]:
    command = [program, "--follow-forks", "--summary-only", f"--output={output}", f"--attach={pid}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            process.stderr.readline()
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def counted(summary: str) -> dict[str, int]:
    """Return the calls that a summary of strace counts, by name, the most frequent first."""
    rows = [line.split() for line in summary.splitlines()]
    calls = {row[-1]: int(row[3]) for row in rows if len(row) >= 5 and row[3].isdigit()}
    calls.pop("total", None)
    return dict(sorted(calls.items(), key=lambda each: -each[1]))


def stolen_s() -> float:
    """Return the time, summed over all cores, that the host has withheld from this virtual machine."""
    fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
    return int(fields[8]) / os.sysconf("SC_CLK_TCK") if len(fields) > 8 else 0.0
