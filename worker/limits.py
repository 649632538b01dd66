"""The processors and memory that control groups (cgroups(7), versions 1 and 2) leave this process.

A process is bound by the least of what its own group and all groups above it allow. In a container those
above may be out of sight; what can be seen holds in any case. `limits` is pure: it takes a function that
returns a file's text, which `read_limits` has read from this machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import msgspec

from mainspring.messages.metrics import DeviceHealth
from mainspring.worker.engine import Monitored

Read = Callable[[str], str]
"""Returns the text of a file, "" if there is none that can be read."""

OWN_GROUPS = "/proc/self/cgroup"
MOUNTS = "/proc/self/mountinfo"
MEMORY = "/proc/meminfo"
ONLINE = "/sys/devices/system/cpu/online"
UNLIMITED_BYTES = 1 << 60
"""Version 1 has no word for no limit: it names about 2**63 bytes."""
LOOK_NS = 1_000_000_000
"""Time between two looks of a worker at its limits."""


class Room(NamedTuple):
    """Memory that is left beside what all processes that a limit holds for have taken by now.

    What the kernel can drop, such as files that were read, counts as left.
    """

    left_bytes: int
    of_bytes: int
    """The limit."""
    by: str
    """The file that says so, empty for the machine's memory."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that hold for this process, each with the file that says so."""

    cores: float | None = None
    """Processor time that all processes of the group together may take, in cores; None for any."""
    cores_by: str = ""
    memory_bytes: int | None = None
    """Memory that they may take: a limit, or else what the machine has; None if that is not known."""
    memory_by: str = ""
    """Empty if it is what the machine has."""
    room: Room | None = None
    """Memory that is left of it, or of a wider limit that is nearer to being reached; None if not known."""
    cpuset: str = ""
    """The cores of the group as Linux writes them, such as ``0-3,8``; empty where it has all cores."""
    cpuset_by: str = ""
    no_realtime_by: str = ""
    """The file that leaves the group no time for threads of real-time priority, which version 1 may."""
    periods: int = 0
    """Periods of the quota in which the group has run; those of the group that was throttled most."""
    throttled: int = 0
    """Periods of these in which it had taken its quota and had to wait."""

    def sentences(self) -> list[str]:
        """Return a sentence for each limit that is less than the machine, the quota's first."""
        said = []
        if self.cores is not None:
            said.append(f"processor time is limited to {self.cores:g} cores ({self.cores_by}){self.waits()}")
        if self.memory_by:
            said.append(f"memory is limited to {size(self.memory_bytes or 0)} ({self.memory_by})")
        if self.cpuset:
            said.append(f"of this machine's cores only {self.cpuset} may be used ({self.cpuset_by})")
        return said

    def waits(self) -> str:
        """Return in how many periods the group was throttled, as the end of a sentence; empty for none."""
        return f", throttled in {self.throttled:,} of {self.periods:,} periods" if self.throttled else ""


class _Group(NamedTuple):
    """A group with the folders in which its files may be, the innermost first."""

    folders: tuple[str, ...]
    second: bool
    """True if it is of version 2."""


def read_limits() -> Limits:
    """Return what holds for this process now."""
    return limits(_read)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def limits(read: Read) -> Limits:
    """Return what a machine's files say; one that is absent or says nothing sensible limits nothing."""
    groups = list(_groups(read(OWN_GROUPS), read(MOUNTS)))
    cores: list[tuple[float, str]] = []
    memory: list[tuple[int, str, int]] = []
    cpuset: list[tuple[str, str]] = []
    throttled, no_realtime_by = (0, 0), ""
    for group in groups:
        for folder in group.folders:
            cores += [found for found in [_quota(folder, group.second, read)] if found[0]]
            memory += [found for found in _memory(folder, group.second, read) if found[0] > 0]
            throttled = max(throttled, _throttled(read(f"{folder}/cpu.stat")))
        runtime = f"{group.folders[0]}/cpu.rt_runtime_us" if group.folders else ""
        no_realtime_by = runtime if read(runtime).strip() == "0" else no_realtime_by
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            cpuset += [(read(f"{folder}/{name}").strip(), f"{folder}/{name}") for folder in group.folders[:1]]
    told = _fields(read(MEMORY))
    machine = 1024 * told.get("MemTotal:", 0)
    memory = [each for each in memory if each[0] < (machine or UNLIMITED_BYTES)]
    least = min(memory, default=(machine, "", 0))
    if "MemAvailable:" in told:
        memory.append((machine, "", machine - 1024 * told["MemAvailable:"]))
    rooms = [Room(max(0, limit - taken), limit, file) for limit, file, taken in memory]
    quota, quota_by = min(cores, default=(0.0, ""))
    held, held_by = next((each for each in cpuset if each[0]), ("", ""))
    if held == read(ONLINE).strip():
        held, held_by = "", ""
    return Limits(
        cores=quota or None,
        cores_by=quota_by,
        memory_bytes=least[0] or None,
        memory_by=least[1],
        room=min(rooms, default=None),
        cpuset=held,
        cpuset_by=held_by,
        no_realtime_by=no_realtime_by,
        periods=throttled[1],
        throttled=throttled[0],
    )


def _groups(own: str, mounts: str) -> Iterator[_Group]:
    """Yield the group of this process in each hierarchy that is mounted."""
    paths = dict[str, str]()
    for line in own.splitlines():
        _, names, path = (*line.split(":", 2), "", "")[:3]
        paths |= dict.fromkeys(names.split(","), path)
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) < 5 or not kinds or kinds[0] not in {"cgroup", "cgroup2"}:
            continue
        second = kinds[0] == "cgroup2"
        controllers = {""} if second else {*kinds[-1].split(",")} & {"cpu", "memory", "cpuset"}
        for path in sorted({paths[name] for name in controllers if name in paths}):
            yield _Group(_folders(_unescaped(fields[4]), _unescaped(fields[3]), path), second)


def _folders(mount: str, root: str, path: str) -> tuple[str, ...]:
    """Return the folders of a group, and of those above it up to ``root``, which is what is mounted."""
    above, inner = PurePosixPath(root), PurePosixPath(path)
    # Within a namespace or a container, what is mounted may be the group itself.
    below = inner.relative_to(above) if inner.is_relative_to(above) else PurePosixPath(".")
    inside = PurePosixPath(mount) / ("." if ".." in below.parts else below)
    return tuple(str(each) for each in (inside, *inside.parents) if each.is_relative_to(mount))


def _unescaped(text: str) -> str:
    """Return a path of mountinfo, which writes spaces as ``\\\\040``."""
    return text.encode("ascii", "replace").decode("unicode_escape") if "\\" in text else text


def _quota(folder: str, second: bool, read: Read) -> tuple[float, str]:
    """Return the quota of a group in cores, 0 for none, and the file that says so."""
    file = f"{folder}/cpu.max" if second else f"{folder}/cpu.cfs_quota_us"
    numbers = read(file).split()
    if not second:
        numbers += read(f"{folder}/cpu.cfs_period_us").split()
    quota, period = (_whole(text) for text in (*numbers, "", "")[:2])
    return (quota / period if quota > 0 and period > 0 else 0.0), file


def _memory(folder: str, second: bool, read: Read) -> Iterator[tuple[int, str, int]]:
    """Yield the limits of a group's memory in bytes, each with the file that says so and what is taken."""
    stat = _fields(read(f"{folder}/memory.stat"))
    if second:
        # Of version 1, whose own numbers are without the groups below, those that begin with total count.
        droppable = sum(stat.get(name, 0) for name in ("inactive_file", "active_file", "slab_reclaimable"))
    else:
        droppable = stat.get("total_inactive_file", 0) + stat.get("total_active_file", 0)
    taken = _whole(read(f"{folder}/{'memory.current' if second else 'memory.usage_in_bytes'}"))
    for name in ("memory.max", "memory.high") if second else ("memory.limit_in_bytes",):
        file = f"{folder}/{name}"
        yield _whole(read(file)), file, max(0, taken - droppable)


def _throttled(stat: str) -> tuple[int, int]:
    """Return in how many periods a group was throttled, and of how many."""
    told = _fields(stat)
    return told.get("nr_throttled", 0), told.get("nr_periods", 0)


def _fields(text: str) -> dict[str, int]:
    """Return the numbers of a file whose lines begin with a name and a number."""
    return {
        name: _whole(number)
        for name, number, *_ in (line.split() for line in text.splitlines() if len(line.split()) > 1)
    }


def _whole(text: str) -> int:
    text = text.strip()
    return int(text) if text.isdecimal() else 0


def size(count: int) -> str:
    """Return a number of bytes for a person."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} bytes"


class LimitWatch:
    """Tells what limits a worker, and by how much it is throttled, beside what its device's monitor says."""

    def __init__(self, monitor: Monitored | None) -> None:
        """``monitor`` is None if the device has none."""
        self._monitor = monitor
        self._notes = tuple(read_limits().sentences())
        self._looked_ns = 0

    def health(self) -> DeviceHealth:
        """See `mainspring.worker.engine.Monitored`."""
        now_ns = time.monotonic_ns()
        if now_ns - self._looked_ns >= LOOK_NS:
            self._looked_ns, self._notes = now_ns, tuple(read_limits().sentences())
        found = DeviceHealth() if self._monitor is None else self._monitor.health()
        return DeviceHealth(found.notes + self._notes, found.readings)


def affinity() -> tuple[int, ...]:
    """Return the cores that this process may use, sorted."""
    return tuple(sorted(os.sched_getaffinity(0)))
