"""The faults of a run, drawn by a seed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

KILL: Final = "kill"
STOP: Final = "stop"
SLOW: Final = "slow"
CUT: Final = "cut"
STALL: Final = "stall"
FULL: Final = "full disk"
WHAT: Final = {
    KILL: "SIGKILL",
    STOP: "SIGSTOP, and SIGCONT when its time is over",
    SLOW: "stopped for half of the time, 20 ms at a time",
    CUT: "its clients' connections are cut",
    STALL: "its clients' connections carry nothing",
    FULL: "no byte is left where the event log is written",
}
HITS: Final[Mapping[str, Sequence[str]]] = {
    KILL: ("controller", "gateway", "worker"),
    STOP: ("controller", "gateway", "worker"),
    SLOW: ("worker",),
    CUT: ("gateway",),
    STALL: ("gateway",),
    FULL: ("controller",),
}
"""The roles that each fault hits."""
LASTS_S: Final = {
    KILL: (0.0, 0.0),
    CUT: (0.0, 0.0),
    STOP: (0.5, 6.0),
    SLOW: (3.0, 8.0),
    STALL: (0.5, 6.0),
    FULL: (2.0, 6.0),
}
"""The least and the most seconds that a fault lasts."""


class Fault(NamedTuple):
    """One fault of one process."""

    at_s: float
    """Seconds from the beginning of the load."""
    kind: str
    process: str
    lasts_s: float

    def __str__(self) -> str:
        lasts = f" for {self.lasts_s:.1f} s" if self.lasts_s else ""
        return f"{self.kind} {self.process}{lasts}"


def draw(
    seed: int, seconds: float, every_s: float, processes: Mapping[str, Sequence[str]], kinds: Sequence[str]
) -> list[Fault]:
    """Return the faults of a run of so many seconds, one about each ``every_s``, the last ends in time.

    ``processes`` are the names of each role's. Each kind and role has its turn before one comes again.
    """
    random_ = random.Random(seed)
    pairs = [(kind, role) for kind in kinds for role in HITS[kind] if processes.get(role)]
    turn: list[tuple[str, str]] = []
    found: list[Fault] = []
    at_s = every_s / 2
    while at_s + every_s <= seconds:
        if not turn:
            turn = random_.sample(pairs, len(pairs))
        kind, role = turn.pop()
        least, most = LASTS_S[kind]
        lasts_s = min(random_.uniform(least, most), every_s / 2)
        found.append(Fault(at_s, kind, random_.choice(list(processes[role])), lasts_s))
        at_s += every_s * random_.uniform(0.8, 1.2)
    return found


class Request(NamedTuple):
    """One request, as its caller saw it."""

    sent_s: float
    """Seconds from the beginning of the load."""
    took_s: float | None
    """Seconds to its outputs; None if it had none."""
    reason: str = ""
    """Reason of a refusal; ``lost`` if there was no reply at all."""


LOST: Final = "lost"
WINDOW_S: Final = 0.5
RECOVERED: Final = 0.98
"""Part in time of all requests of a window from which on the cluster has recovered."""


class Effect(NamedTuple):
    """Effect of a fault on callers, until the next one."""

    fault: Fault
    offered: int
    in_time: int
    recovered_s: float | None
    """Seconds from the fault until all later windows have as many in time as `RECOVERED`; None: never."""


def effects(faults: Sequence[Fault], requests: Sequence[Request], slo_s: float, end_s: float) -> list[Effect]:
    """Return each fault's effect on the requests that were sent between it and the next one."""
    found = []
    ends = [*(each.at_s for each in faults[1:]), end_s]
    for fault, until_s in zip(faults, ends, strict=True):
        mine = [each for each in requests if fault.at_s <= each.sent_s < until_s]
        windows: dict[int, list[bool]] = {}
        for each in mine:
            in_time = each.took_s is not None and each.took_s <= slo_s
            windows.setdefault(int((each.sent_s - fault.at_s) / WINDOW_S), []).append(in_time)
        bad = [number for number, ended in windows.items() if sum(ended) < RECOVERED * len(ended)]
        recovered_s: float | None = (max(bad) + 1) * WINDOW_S if bad else 0.0
        if bad and max(bad) == max(windows):
            recovered_s = None
        good = sum(sum(ended) for ended in windows.values())
        found.append(Effect(fault, len(mine), good, recovered_s))
    return found
