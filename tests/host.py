"""What the host took from this machine: time that a hypervisor stole, and time without a free core."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

STAT = Path("/proc/stat")
PRESSURE = Path("/proc/pressure/cpu")
_STEAL = 8
"""Column of the line *cpu* in `/proc/stat`."""


class Taken(NamedTuple):
    """Counters since the machine started, in seconds; None where the system does not keep them."""

    clock_s: float
    stolen_s: float | None
    waited_s: float | None

    def since(self, before: Taken) -> str:
        """Say what was taken since then."""
        return (
            f"{self.clock_s - before.clock_s:.2f} s:"
            f" stolen by the host {_took(before.stolen_s, self.stolen_s)},"
            f" tasks waited for a core {_took(before.waited_s, self.waited_s)}"
        )


def taken(stat: Path = STAT, pressure: Path = PRESSURE) -> Taken:
    """Read the counters."""
    return Taken(time.monotonic(), _stolen_s(stat), _waited_s(pressure))


def _took(before_s: float | None, after_s: float | None) -> str:
    return "unknown" if before_s is None or after_s is None else f"{after_s - before_s:.2f} s"


def _stolen_s(stat: Path) -> float | None:
    """Return the time stolen from all cores together."""
    try:
        columns = stat.read_text(encoding="ascii").split("\n", 1)[0].split()
        return int(columns[_STEAL]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return None


def _waited_s(pressure: Path) -> float | None:
    """Return how long at least one task has waited for a core."""
    try:
        some = pressure.read_text(encoding="ascii").split("\n", 1)[0]
        return int(some.rpartition("total=")[2]) / 1e6
    except (OSError, ValueError):
        return None
