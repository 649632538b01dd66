"""Memory that one process writes and others read, and how they come by it."""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mainspring.transport.shared_memory import HUGE_PAGE_BYTES, OwnMemory, Unusable, map_to_read


@pytest.fixture
def memory() -> Iterator[OwnMemory]:
    made = OwnMemory("test", 5_000)
    yield made
    made.close()


def test_what_the_owner_writes_others_read_and_cannot_change(memory: OwnMemory) -> None:
    assert memory.size == HUGE_PAGE_BYTES
    theirs = map_to_read(os.dup(memory.descriptor), memory.size)
    memory.bytes[4_000:4_003] = (1, 2, 3)
    assert theirs[3_999:4_004].tolist() == [0, 1, 2, 3, 0]
    with pytest.raises(ValueError, match="read-only"):
        theirs[0] = 1
    with pytest.raises(PermissionError):
        mmap.mmap(memory.descriptor, memory.size, flags=mmap.MAP_SHARED)
    with pytest.raises(PermissionError):
        os.write(memory.descriptor, b"x")


@pytest.mark.parametrize("size", [0, 1 << 30])
def test_its_size_is_what_it_was(memory: OwnMemory, size: int) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(memory.descriptor, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(memory.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_what_is_mapped_outlives_its_owner_and_holds_no_descriptor_of_ours() -> None:
    memory = OwnMemory("test", 1)
    memory.bytes[:2] = (7, 8)
    given = os.dup(memory.descriptor)
    theirs = map_to_read(given, 2)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(given)
    memory.close()
    memory.close()
    del memory
    gc.collect()
    assert theirs.tolist() == [7, 8]


def test_only_memory_whose_size_is_sealed_is_mapped(tmp_path: Path, memory: OwnMemory) -> None:
    unsealed = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, 4_096)
    with pytest.raises(Unusable, match="not sealed"):
        map_to_read(unsealed, 4_096)
    path = tmp_path / "file"
    path.write_bytes(bytes(4_096))
    with pytest.raises(Unusable, match="not a file in memory"):
        map_to_read(os.open(path, os.O_RDWR), 4_096)
    for size in (0, -1, HUGE_PAGE_BYTES + 1):
        with pytest.raises(Unusable, match="were announced"):
            map_to_read(os.dup(memory.descriptor), size)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(unsealed)


def test_memory_that_can_not_be_had_leaves_no_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises((OSError, OverflowError)):
        OwnMemory("test", 1 << 62)
    assert len(os.listdir("/proc/self/fd")) == before


def test_its_pages_take_memory_once_they_are_written_to() -> None:
    memory = OwnMemory("test", 64 << 20)
    if not memory.huge:
        assert os.fstat(memory.descriptor).st_blocks == 0
        memory.bytes[:100_000] = np.arange(100_000) % 256
        assert 0 < os.fstat(memory.descriptor).st_blocks * 512 <= 2 * HUGE_PAGE_BYTES
    memory.close()
