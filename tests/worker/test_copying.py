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

from mainspring.worker.arena import allocate
from mainspring.worker.engines import copying
from mainspring.worker.engines.copying import copy_from_file

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
    copy_from_file(file, offset, size, int(memory.ctypes.data) + 32)
    assert memory[32 : 32 + size].tobytes() == os.pread(file, size, offset)
    assert not memory[:32].any()
    assert not memory[32 + size :].any()


def test_a_file_that_ends_early_is_an_error(file: int) -> None:
    memory = allocate(SIZE)
    os.ftruncate(file, SIZE - 1)
    with pytest.raises(EOFError, match=f"ends before byte {SIZE}"):
        copy_from_file(file, 0, SIZE, int(memory.ctypes.data))
    assert not memory.any()


def test_what_the_system_refuses_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(bytes(SIZE))
    descriptor = os.open(tmp_path / "weights.bin", os.O_WRONLY)
    memory = allocate(SIZE)
    try:
        with pytest.raises(PermissionError) as caught:
            copy_from_file(descriptor, 0, SIZE, int(memory.ctypes.data))
        assert caught.value.errno == errno.EACCES
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EFAULT])
def test_a_part_that_cannot_be_brought_in_is_an_error_unless_the_kernel_knows_no_such_advice(
    file: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        mmap, munmap = copying._libc.mmap, copying._libc.munmap

        @staticmethod
        def madvise(address: int, size: int, advice: int) -> int:
            ctypes.set_errno(code)
            return -1

    monkeypatch.setattr(copying, "_libc", Failing)
    memory = allocate(SIZE)
    if code == errno.EFAULT:
        with pytest.raises(OSError, match="Bad address"):
            copy_from_file(file, 0, SIZE, int(memory.ctypes.data))
    else:
        copy_from_file(file, 0, SIZE, int(memory.ctypes.data))
        assert memory.tobytes() == os.pread(file, SIZE, 0)
