"""Run all tests in the time of the longer half: ``python -m tests.halves [PYTEST ARGUMENTS]``.

Much of the suite waits, for real sockets, processes and deadlines. What only computes runs beside it on the
processor time that is left over: it is of the lowest kind of priority there is (SCHED_IDLE), so what is under
way in real time hardly notices it. With arguments everything runs one after the other, as pytest does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

COMPUTES = ("compiler", "emulator", "messages", "scheduler", "simulator", "telemetry")
"""Folders whose tests know no real time."""
TIMEOUT_S = 1_500
"""Longest that one of their tests may take: they may have to wait for the others."""
TESTS = Path(__file__).parent
PYTEST = (sys.executable, "-m", "pytest")


def let_idle(process: int) -> None:
    """Give a process, and all that it will start, nothing but idle time, where the system lets it."""
    try:
        os.sched_setscheduler(process, os.SCHED_IDLE, os.sched_param(0))
    except OSError:
        os.setpriority(os.PRIO_PROCESS, process, 19)


def main(arguments: list[str]) -> int:
    """Run the tests; return the exit code."""
    if arguments:
        return subprocess.call([*PYTEST, *arguments])
    computing = [str(TESTS / name) for name in COMPUTES]
    without = [f"--ignore={path}" for path in computing]
    with tempfile.TemporaryFile() as output:
        # Its cache of what failed would be written over by the other's.
        beside = [*PYTEST, *computing, "--timeout", str(TIMEOUT_S), "-p", "no:cacheprovider"]
        with subprocess.Popen(beside, stdout=output, stderr=output) as half:
            let_idle(half.pid)
            print(f"pytest {' '.join(f'tests/{name}' for name in COMPUTES)} runs beside:", flush=True)
            code = subprocess.call([*PYTEST, *without])
            print("and beside that:", flush=True)
            other = half.wait()
        output.seek(0)
        sys.stdout.flush()
        sys.stdout.buffer.write(output.read())
    return code or other


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
