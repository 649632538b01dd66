"""From a file into memory: every byte where it belongs, and an error for what isn't there."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mainspring.cluster.workers import PageTable
from mainspring.worker.engine import Bytes
from mainspring.worker.engines import artifacts as host
from mainspring.worker.engines.artifacts import Arena, MappedFile, allocate, take

SIZE = 3 * mmap.PAGESIZE + 17


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "weights.bin").write_bytes(np.random.default_rng(0).bytes(SIZE))
    descriptor = os.open(tmp_path / "weights.bin", os.O_RDWR)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize(("offset", "size"), [(0, SIZE), (0, 1), (mmap.PAGESIZE, 5), (3 * mmap.PAGESIZE, 17)])
def test_bytes_arrive_and_none_beside_them(file: int, offset: int, size: int) -> None:
    memory = allocate(SIZE + 64)
    mapped = MappedFile(file, SIZE)
    mapped.copy(offset, size, int(memory.ctypes.data) + 32)
    mapped.close()
    assert memory[32 : 32 + size].tobytes() == os.pread(file, size, offset)
    assert not memory[:32].any()
    assert not memory[32 + size :].any()


def test_what_is_written_after_the_mapping_arrives(file: int) -> None:
    memory = allocate(SIZE)
    mapped = MappedFile(file, SIZE)
    os.pwrite(file, b"altered", mmap.PAGESIZE - 3)
    mapped.copy(0, SIZE, int(memory.ctypes.data))
    mapped.close()
    assert memory.tobytes() == os.pread(file, SIZE, 0)


def test_a_file_that_ends_early_is_an_error(file: int) -> None:
    memory = allocate(SIZE)
    mapped = MappedFile(file, SIZE)
    os.ftruncate(file, SIZE - 1)
    with pytest.raises(EOFError, match=f"ends before byte {SIZE}"):
        mapped.copy(0, SIZE, int(memory.ctypes.data))
    assert not memory.any()
    mapped.close()
    with pytest.raises(EOFError, match=f"ends before byte {SIZE}"):
        MappedFile(file, SIZE)


def test_what_the_system_refuses_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(bytes(SIZE))
    descriptor = os.open(tmp_path / "weights.bin", os.O_WRONLY)
    try:
        with pytest.raises(PermissionError) as caught:
            MappedFile(descriptor, SIZE)
        assert caught.value.errno == errno.EACCES
    finally:
        os.close(descriptor)


def test_closing_gives_the_mapping_back(file: int) -> None:
    mapped = MappedFile(file, SIZE)
    begin = f"{mapped.address:x}-"
    assert begin in Path("/proc/self/maps").read_text(encoding="ascii")
    for _ in range(2):
        mapped.close()
        assert begin not in Path("/proc/self/maps").read_text(encoding="ascii")


class Recording:
    """The C library, but for what it says of memory; it notes what is brought in."""

    mmap, munmap, munlock = host._libc.mmap, host._libc.munmap, host._libc.munlock

    def __init__(self, resident: bool, code: int = 0) -> None:
        self.resident = resident
        self.code = code
        self.brought_in: list[tuple[int, int]] = []

    def madvise(self, address: int, size: int, advice: int) -> int:
        self.brought_in.append((address, size))
        ctypes.set_errno(self.code)
        return -1 if self.code else 0

    def mincore(self, address: int, size: int, pages: ctypes.Array[ctypes.c_char]) -> int:
        count = -(-size // mmap.PAGESIZE)
        assert len(pages) == count
        pages.raw = b"\1" * (count - 1) + bytes([self.resident])
        return 0


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("told", [True, False])
def test_a_part_is_brought_in_unless_the_kernel_says_that_it_is_there(
    file: int, resident: bool, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = Recording(resident)
    monkeypatch.setattr(host, "_libc", system)
    monkeypatch.setattr(host, "_may_ask", lambda file: told)
    memory = allocate(SIZE)
    mapped = MappedFile(file, SIZE)
    assert system.brought_in == [(mapped.address, SIZE)]
    mapped.copy(mmap.PAGESIZE, SIZE - mmap.PAGESIZE, int(memory.ctypes.data))
    again = [] if resident and told else [(mapped.address + mmap.PAGESIZE, SIZE - mmap.PAGESIZE)]
    assert system.brought_in[1:] == again
    assert memory[: SIZE - mmap.PAGESIZE].tobytes() == os.pread(file, SIZE, mmap.PAGESIZE)
    mapped.close()


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EFAULT])
def test_a_part_that_cannot_be_brought_in_is_an_error_unless_the_kernel_knows_no_such_advice(
    file: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = Recording(resident=False)
    monkeypatch.setattr(host, "_libc", system)
    memory = allocate(SIZE)
    mapped = MappedFile(file, SIZE)
    system.code = code
    if code == errno.EFAULT:
        with pytest.raises(OSError, match="Bad address"):
            mapped.copy(0, SIZE, int(memory.ctypes.data))
        assert not memory.any()
        with pytest.raises(OSError, match="Bad address"):
            MappedFile(file, SIZE)
    else:
        mapped.copy(0, SIZE, int(memory.ctypes.data))
        assert memory.tobytes() == os.pread(file, SIZE, 0)
    mapped.close()


def test_the_kernel_is_asked_about_ones_own_files(file: int) -> None:
    assert host._may_ask(file)


def resident(memory: Bytes) -> list[bool]:
    """Say of each page of the system's whether it takes memory."""
    pages = ctypes.create_string_buffer(-(-memory.size // mmap.PAGESIZE))
    assert not host._libc.mincore(memory.ctypes.data, memory.size, pages)
    return [page & 1 == 1 for page in pages.raw]


def test_memory_is_taken_when_it_is_asked_for_and_keeps_what_is_in_it() -> None:
    memory = allocate(64 * mmap.PAGESIZE)
    assert not any(resident(memory))
    memory[3 * mmap.PAGESIZE + 5] = 7
    take(memory[mmap.PAGESIZE : 8 * mmap.PAGESIZE])
    assert all(resident(memory)[1:8])
    assert np.flatnonzero(memory).tolist() == [3 * mmap.PAGESIZE + 5]


def test_pages_are_taken_where_models_will_come_and_no_others() -> None:
    arena, table = Arena(8), PageTable(8)
    (memory,) = [each for each in vars(arena).values() if isinstance(each, np.ndarray)]

    def taken() -> list[int]:
        whole = np.reshape(resident(memory), (8, -1))
        assert (whole.all(1) == whole.any(1)).all(), "a page was taken in part"
        return np.flatnonzero(whole.all(1)).tolist()

    assert taken() == []
    models: list[tuple[int, ...]] = []
    used: set[int] = set()
    for extents in [(1,), (2, 1), (1, 1)]:
        models.append(extents)
        arena.expect(models)
        pages = table.place(extents)
        assert pages is not None
        table.take(str(len(models)), pages)
        used |= {*pages}
        assert taken() == sorted(used)
    arena.expect([])
    arena.expect([(8,)])
    assert taken() == list(range(8))
