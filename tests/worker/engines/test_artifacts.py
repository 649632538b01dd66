"""Files of artifacts that were altered after they were compiled are found out, at little cost."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from mainspring.worker.engine import EngineError
from mainspring.worker.engines.artifacts import Integrity, read_weights


def test_a_file_is_hashed_once_for_each_state_of_it(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(b"right")
    integrity = Integrity()
    descriptor = os.open(path, os.O_RDWR)
    try:
        expected = hashlib.sha256(b"right").hexdigest()
        integrity.check(descriptor, expected, path, "compile it again")
        assert integrity.holds(descriptor, expected)
        as_it_was = path.stat()
        os.pwrite(descriptor, b"wrong", 0)
        os.utime(path, ns=(as_it_was.st_atime_ns, as_it_was.st_mtime_ns))
        # Length and time of modification are as before, and the time of change is not.
        with pytest.raises(EngineError, match=r"weights.bin was altered .*compile it again"):
            integrity.check(descriptor, expected, path, "compile it again")
    finally:
        os.close(descriptor)


def test_a_file_that_is_read_into_memory_is_whole_and_right(tmp_path: Path) -> None:
    path, memory = tmp_path / "weights.bin", memoryview(bytearray(40 << 20))
    whole = os.urandom(len(memory))
    path.write_bytes(whole)
    expected = hashlib.sha256(whole).hexdigest()
    read_weights(path, expected, "compile it again", memory)
    assert memory == whole
    for wrong in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1])):
        path.write_bytes(wrong)
        with pytest.raises(EngineError, match=r"weights.bin was altered .*compile it again"):
            read_weights(path, expected, "compile it again", memory)
