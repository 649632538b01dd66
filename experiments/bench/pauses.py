"""What the host of a virtual machine takes from it: pauses of each core, as a meter on that core sees them.

A meter sleeps for `STEP_NS`, again and again, before everything else that runs on its core; where it wakes
late, nothing ran there. Without real-time priority it sees this machine's own load as well, and says so.
``python -m mainspring.experiments.bench.pauses CORE`` is one meter.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

STEP_NS = 2_000_000
LEAST_NS = 1_000_000
"""A shorter delay is none: timers have them too."""
_PRIORITY = 90


class Pause(msgspec.Struct, frozen=True):
    """A core stood still."""

    core: int
    begin_ns: int
    """On the monotonic clock, which all processes share."""
    end_ns: int


class Pauses(msgspec.Struct):
    """Of all cores, over a while."""

    realtime: bool = True
    """Whether the meters had real-time priority."""
    seen: list[Pause] = []

    def between(self, begin_ns: int, end_ns: int) -> list[Pause]:
        """Return those that ended, and those that began, within a stretch of time."""
        return [each for each in self.seen if each.end_ns > begin_ns and each.begin_ns < end_ns]

    def lost_percent(self, begin_ns: int, end_ns: int) -> float:
        """Return how much of the cores' time was lost, of the core that lost most."""
        lost: dict[int, int] = {}
        for each in self.between(begin_ns, end_ns):
            part = min(each.end_ns, end_ns) - max(each.begin_ns, begin_ns)
            lost[each.core] = lost.get(each.core, 0) + part
        return 100 * max(lost.values(), default=0) / (end_ns - begin_ns)

    def hit(self, instants_ns: npt.NDArray[np.int64], within_ns: int, spare_ns: int) -> int:
        """Return at how many instants some core lost more than ``spare_ns`` of the ``within_ns`` that follow.

        So many requests would be late on a server without any queue.
        """
        late = np.zeros(len(instants_ns), bool)
        for core in {each.core for each in self.seen}:
            lost = np.zeros(len(instants_ns), np.int64)
            for each in self.seen:
                if each.core == core:
                    begin = np.maximum(instants_ns, each.begin_ns)
                    lost += np.maximum(0, np.minimum(instants_ns + within_ns, each.end_ns) - begin)
            late |= lost > spare_ns
        return int(late.sum())


@contextlib.contextmanager
def watched(cores: Sequence[int] | None = None) -> Iterator[Pauses]:
    """Watch cores, by default all that this process may use; what was seen is complete after the block."""
    found = Pauses()
    command = [sys.executable, "-m", "mainspring.experiments.bench.pauses"]
    meters = [
        subprocess.Popen([*command, str(core)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for core in cores or sorted(os.sched_getaffinity(0))
    ]
    try:
        for meter in meters:
            assert meter.stdout is not None
            found.realtime &= meter.stdout.readline() == b"realtime\n"
        yield found
    finally:
        for meter in meters:
            seen, _ = meter.communicate(b"\n")
            if meter.returncode == 0:
                found.seen += msgspec.json.decode(seen, type=list[Pause])
        found.seen.sort(key=lambda each: each.begin_ns)


def watch(core: int) -> list[Pause]:
    """Watch one core until there is something to read."""
    seen = []
    due_ns = time.monotonic_ns() + STEP_NS
    while not select.select([sys.stdin], [], [], max(0, due_ns - time.monotonic_ns()) / 1e9)[0]:
        now_ns = time.monotonic_ns()
        if now_ns - due_ns > LEAST_NS:
            seen.append(Pause(core, due_ns, now_ns))
        due_ns = now_ns + STEP_NS
    return seen


def main(core: int) -> None:
    """Be one meter: say how, watch, tell what was seen."""
    os.sched_setaffinity(0, {core})
    realtime = True
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
    except PermissionError:
        realtime = False
    gc.disable()
    print("realtime" if realtime else "as others", flush=True)
    sys.stdout.buffer.write(msgspec.json.encode(watch(core)))


if __name__ == "__main__":
    main(int(sys.argv[1]))
