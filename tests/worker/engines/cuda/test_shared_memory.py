"""Memory that workers share: huge pages where the host keeps some, and spread over its memory nodes."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mainspring.worker.engine import EngineError
from mainspring.worker.engines.cuda.numa import interleave, memory_nodes
from mainspring.worker.engines.cuda.shared_memory import SharedSegment, make_segment, open_segment

MIB = 1 << 20
POOL = Path("/proc/sys/vm/nr_hugepages")


@pytest.fixture
def huge_pages() -> Iterator[int]:
    """Have the host keep four huge pages of 2 MiB for the test; return how many more there were."""
    try:
        before = int(POOL.read_text(encoding="ascii"))
        POOL.write_text(str(before + 4), encoding="ascii")
    except OSError as error:
        pytest.skip(f"the pool of huge pages can't be changed here: {error.strerror}")
    try:
        if int(POOL.read_text(encoding="ascii")) < before + 4:
            pytest.skip("the host has no four huge pages to spare")
        yield before
    finally:
        POOL.write_text(str(before), encoding="ascii")


def mapped(segment: SharedSegment) -> str:
    """Return the kernel's line about a segment's mapping and its policy; touch the mapping first."""
    segment.part(0, 1)[0] = 1
    try:
        lines = Path("/proc/self/numa_maps").read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        pytest.skip("this kernel has no memory nodes")
    (line,) = [line for line in lines if int(line.split()[0], 16) == segment.address]
    return line


def test_a_segment_is_of_huge_pages_where_the_host_keeps_enough(huge_pages: int) -> None:
    with closing(make_segment(5 * MIB)) as segment:
        assert segment.size == 6 * MIB
        assert "kernelpagesize_kB=2048" in mapped(segment)
        segment.part(MIB, 3)[:] = b"abc"
        other = open_segment(os.getpid(), segment.file, segment.inode)
        assert other is not None
        with closing(other):
            assert bytes(other.part(MIB, 3)) == b"abc"


def test_a_segment_too_large_for_the_huge_pages_is_of_others(huge_pages: int) -> None:
    with closing(make_segment(2 * (huge_pages + 5) * MIB)) as segment:
        assert "kernelpagesize_kB=4" in mapped(segment)


def test_a_host_without_memory_for_a_segment_says_what_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: int, size: int) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    files = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "ftruncate", refuse)
    with pytest.raises(EngineError, match=r"can't give 8 MiB for weights .*host_weights_bytes lower"):
        make_segment(8 * MIB)
    assert len(os.listdir("/proc/self/fd")) == files


def test_a_segment_that_can_not_be_mapped_leaves_no_open_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: int, size: int, **kwargs: int) -> mmap.mmap:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    with closing(make_segment(2 * MIB)) as segment:
        files = len(os.listdir("/proc/self/fd"))
        monkeypatch.setattr(mmap, "mmap", refuse)
        with pytest.raises(EngineError, match=r"shared weights can't be mapped: .*Cannot allocate memory"):
            open_segment(os.getpid(), segment.file, segment.inode)
        with pytest.raises(EngineError, match="can't give 2 MiB for weights"):
            make_segment(2 * MIB)
        assert len(os.listdir("/proc/self/fd")) == files


def test_pages_come_from_the_nodes_in_turn() -> None:
    nodes = memory_nodes()
    if not nodes:
        pytest.skip("this kernel has no memory nodes")
    with closing(make_segment(2 * MIB)) as segment:
        # One node alone, as here, needs no call; with its number the call is made all the same.
        assert interleave(segment.address, segment.size, nodes) == ""
        assert "interleave:" in mapped(segment)
        absent = frozenset({max(nodes) + 1})
        assert interleave(segment.address, segment.size, absent) == "mbind: Invalid argument"


def test_the_nodes_are_those_that_have_memory(tmp_path: Path) -> None:
    assert memory_nodes(tmp_path) == frozenset()
    folder = tmp_path / "devices/system/node"
    folder.mkdir(parents=True)
    (folder / "has_memory").write_text("0,2-3\n")
    assert memory_nodes(tmp_path) == {0, 2, 3}
