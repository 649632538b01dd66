"""What processes cost: processor time, time spent waiting for a processor, and turns, from the kernel.

``/proc/PID/task/TID/schedstat`` counts all three in nanoseconds since the thread began.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from mainspring.cli.launcher.supervisor import Supervisor


class Usage(msgspec.Struct, frozen=True):
    """Of all threads of a process."""

    cpu_ns: int = 0
    waited_ns: int = 0
    """Ready to run, but no processor was free."""
    turns: int = 0
    """How often a thread got a processor: about one for each wake-up."""

    def since(self, before: Usage) -> Usage:
        """Return what was added."""
        return Usage(
            self.cpu_ns - before.cpu_ns, self.waited_ns - before.waited_ns, self.turns - before.turns
        )


def usage_of(pid: int) -> Usage:
    """Return what a process's threads have used; those that have ended do not count."""
    total = [0, 0, 0]
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            values = (task / "schedstat").read_text(encoding="ascii").split()
        except OSError:
            continue
        total = [before + int(value) for before, value in zip(total, values, strict=True)]
    return Usage(*total)


def usage_of_all(supervisor: Supervisor, names: Iterable[str]) -> dict[str, Usage]:
    """Return the usage of each of a cluster's processes that is running, by name."""
    pids = {name: supervisor.pid(name) for name in names}
    return {name: usage_of(pid) for name, pid in pids.items() if pid is not None}


def stolen_s() -> float:
    """Return the time, summed over all cores, that the host has withheld from this virtual machine."""
    fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
    return int(fields[8]) / os.sysconf("SC_CLK_TCK") if len(fields) > 8 else 0.0
