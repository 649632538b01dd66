"""What control groups leave, from made-up trees of both versions, and from a group that is made here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.worker.limits import Limits, Room, limits, read_limits

GIB = 1 << 30
MACHINE = {"/proc/meminfo": "MemTotal:       16777216 kB\nMemFree: 1 kB\n"}
SECOND = {
    **MACHINE,
    "/proc/self/cgroup": "0::/pod/job\n",
    "/proc/self/mountinfo": "30 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n",
}
FIRST = {
    **MACHINE,
    "/proc/self/cgroup": "4:memory:/pod/job\n3:cpuset:/sets\n2:cpu,cpuacct:/pod/job\n0::/\n",
    "/proc/self/mountinfo": (
        "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
        "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
        "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    ),
}


def found(tree: dict[str, str]) -> Limits:
    return limits(lambda path: tree.get(path, ""))


def second(**files: str) -> Limits:
    return found(SECOND | {f"/sys/fs/cgroup{path}": text for path, text in files.items()})


def test_of_version_2_the_least_of_all_groups_above_holds() -> None:
    told = second(
        **{
            "/pod/job/cpu.max": "max 100000\n",
            "/pod/cpu.max": "150000 100000\n",
            "/cpu.max": "400000 100000\n",
            "/pod/job/memory.max": "2147483648\n",
            "/pod/memory.max": "max\n",
            "/pod/memory.high": "1073741824\n",
            "/pod/memory.current": f"{800 << 20}\n",
            "/pod/memory.stat": f"anon 5\ninactive_file {90 << 20}\nactive_file {10 << 20}\n",
            "/pod/job/cpuset.cpus.effective": "0-1,4\n",
            "/pod/job/cpu.stat": "usage_usec 5\nnr_periods 10\nnr_throttled 0\n",
            "/pod/cpu.stat": "nr_periods 244\nnr_throttled 77\nthrottled_usec 9\n",
        }
    )
    assert told == Limits(
        cores=1.5,
        cores_by="/sys/fs/cgroup/pod/cpu.max",
        memory_bytes=GIB,
        memory_by="/sys/fs/cgroup/pod/memory.high",
        room=Room(GIB - (700 << 20), GIB, "/sys/fs/cgroup/pod/memory.high"),
        cpuset="0-1,4",
        cpuset_by="/sys/fs/cgroup/pod/job/cpuset.cpus.effective",
        periods=244,
        throttled=77,
    )
    assert told.sentences() == [
        "processor time is limited to 1.5 cores (/sys/fs/cgroup/pod/cpu.max), throttled in 77 of 244 periods",
        "memory is limited to 1.0 GiB (/sys/fs/cgroup/pod/memory.high)",
        "of this machine's cores only 0-1,4 may be used (/sys/fs/cgroup/pod/job/cpuset.cpus.effective)",
    ]


def test_of_version_1_each_controller_has_a_tree_of_its_own() -> None:
    root = "/sys/fs/cgroup"
    told = found(
        FIRST
        | {
            f"{root}/cpu,cpuacct/pod/job/cpu.cfs_quota_us": "-1\n",
            f"{root}/cpu,cpuacct/pod/job/cpu.cfs_period_us": "100000\n",
            f"{root}/cpu,cpuacct/pod/cpu.cfs_quota_us": "50000\n",
            f"{root}/cpu,cpuacct/pod/cpu.cfs_period_us": "100000\n",
            f"{root}/cpu,cpuacct/pod/cpu.stat": "nr_periods 9\nnr_throttled 3\nthrottled_time 123\n",
            f"{root}/memory/pod/job/memory.limit_in_bytes": f"{4 * GIB}\n",
            f"{root}/memory/pod/memory.limit_in_bytes": "9223372036854771712\n",
            f"{root}/memory/pod/job/memory.usage_in_bytes": f"{3 * GIB}\n",
            f"{root}/memory/pod/job/memory.stat": f"inactive_file 5\ntotal_inactive_file {GIB}\n",
            f"{root}/cpu,cpuacct/pod/job/cpu.rt_runtime_us": "0\n",
            f"{root}/cpuset/sets/cpuset.cpus": "2-3\n",
        }
    )
    assert (told.cores, told.memory_bytes, told.cpuset) == (0.5, 4 * GIB, "2-3")
    assert told.memory_by == f"{root}/memory/pod/job/memory.limit_in_bytes"
    assert told.room == Room(2 * GIB, 4 * GIB, told.memory_by)
    assert (told.throttled, told.periods) == (3, 9)
    assert told.no_realtime_by == f"{root}/cpu,cpuacct/pod/job/cpu.rt_runtime_us"


def test_what_others_have_taken_of_the_machine_is_no_longer_there() -> None:
    machine = {"/proc/meminfo": "MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable: 3145728 kB\n"}
    told = second(**{"/pod/memory.max": str(8 * GIB), "/pod/memory.current": str(4 * GIB)})
    assert told.room == Room(4 * GIB, 8 * GIB, "/sys/fs/cgroup/pod/memory.max")
    tree = SECOND | machine | {"/sys/fs/cgroup/pod/memory.max": str(8 * GIB)}
    assert found(tree).room == Room(3 * GIB, 16 * GIB, "")
    assert found(machine) == Limits(memory_bytes=16 * GIB, room=Room(3 * GIB, 16 * GIB, ""))


def test_a_set_of_all_cores_limits_nothing() -> None:
    tree = {
        "/sys/devices/system/cpu/online": "0-3\n",
        "/sys/fs/cgroup/pod/job/cpuset.cpus.effective": "0-3\n",
    }
    assert found(SECOND | tree).sentences() == []


@pytest.mark.parametrize(
    ("root", "path"),
    [("/", "/"), ("/docker/abc", "/docker/abc"), ("/..", "/"), ("/kubepods/x", "/elsewhere"), ("/", "/../y")],
    ids=["namespace", "mounted itself", "above the namespace", "moved", "outside"],
)
def test_in_a_container_what_is_mounted_is_its_group(root: str, path: str) -> None:
    tree = MACHINE | {
        "/proc/self/cgroup": f"0::{path}\n",
        "/proc/self/mountinfo": f"30 23 0:28 {root} /a\\040b rw shared:1 - cgroup2 cgroup rw\n",
        "/a b/cpu.max": "200000 100000",
        "/a b/memory.max": "1024",
    }
    told = found(tree)
    assert (told.cores, told.cores_by, told.memory_bytes) == (2.0, "/a b/cpu.max", 1024)


def test_without_limits_the_machine_is_the_limit() -> None:
    for tree in (MACHINE, SECOND, FIRST):
        told = found(tree)
        assert told == Limits(memory_bytes=16 * GIB)
        assert told.sentences() == []
    assert second(**{"/pod/memory.max": str(64 * GIB)}) == Limits(memory_bytes=16 * GIB)
    assert found({}) == Limits()


@given(st.lists(st.integers(1, 64 * GIB), max_size=6), st.lists(st.integers(1_000, 9_000_000), max_size=6))
def test_however_deep_the_least_holds(memory: list[int], quotas: list[int]) -> None:
    def folder(depth: int) -> str:
        return "/sys/fs/cgroup" + "".join(f"/g{number}" for number in range(depth))

    depth = max(len(memory), len(quotas), 1)
    tree = SECOND | {"/proc/self/cgroup": f"0::{folder(depth).removeprefix('/sys/fs/cgroup')}\n"}
    tree |= {f"{folder(at)}/memory.max": f"{value}\n" for at, value in enumerate(memory)}
    tree |= {f"{folder(at)}/cpu.max": f"{value} 100000\n" for at, value in enumerate(quotas)}
    told = found(tree)
    assert told.memory_bytes == min([*memory, 16 * GIB])
    assert told.cores == (min(quotas) / 100_000 if quotas else None)


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from([*FIRST, "/sys/fs/cgroup/cpu.max"]), st.text(max_size=20), max_size=2))
def test_no_text_of_a_file_is_too_odd(odd: dict[str, str]) -> None:
    for tree in (FIRST, SECOND):
        found(tree | odd)


@pytest.fixture
def group() -> Iterator[tuple[list[Path], float]]:
    """A group with a twentieth of a core and 200 MiB: where processes join it, and its cores."""
    # Another run of the tests may be under way.
    name = f"mainspring-test-{os.getpid()}"
    first = Path("/sys/fs/cgroup/cpu", name), Path("/sys/fs/cgroup/memory", name)
    second = (Path("/sys/fs/cgroup", name),)
    folders = first if first[0].parent.is_dir() else second
    made: list[Path] = []
    try:
        for folder in folders:
            folder.mkdir()
            made.append(folder)
        if folders is first:
            (first[0] / "cpu.cfs_quota_us").write_text("5000")
            (first[1] / "memory.limit_in_bytes").write_text(str(200 << 20))
        else:
            (second[0] / "cpu.max").write_text("5000 100000")
            (second[0] / "memory.max").write_text(str(200 << 20))
    except OSError as error:
        for folder in made:
            folder.rmdir()
        pytest.skip(f"no control group can be made here: {error.strerror}")
    yield [folder / "cgroup.procs" for folder in made], 0.05
    for folder in made:
        folder.rmdir()


def test_a_process_in_a_group_of_this_machine_finds_its_limits(group: tuple[list[Path], float]) -> None:
    files, cores = group
    program = f"""
import os, time
from mainspring.worker.limits import read_limits
for path in {[str(file) for file in files]}:
    open(path, "w").write(str(os.getpid()))
end = time.monotonic() + 0.5
while time.monotonic() < end:
    pass
found = read_limits()
print(found.cores, found.memory_bytes, found.throttled > 0)
"""
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ
    ).stdout
    assert told == f"{cores} {200 << 20} True\n"


def test_this_machine_has_some_memory() -> None:
    assert (read_limits().memory_bytes or 0) > 0
