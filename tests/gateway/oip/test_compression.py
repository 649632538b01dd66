"""Bodies in gzip and deflate, of all sizes and of none."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.gateway.oip.compression import ENCODINGS, TooLarge, deflate, inflate
from mainspring.gateway.oip.datatypes import Unfit


@given(st.lists(st.binary(max_size=100), max_size=4), st.sampled_from(ENCODINGS))
def test_what_is_deflated_inflates_again(parts: list[bytes], encoding: str) -> None:
    whole = b"".join(parts)
    packed = deflate([memoryview(part) for part in parts], encoding)
    assert inflate(memoryview(packed), encoding, len(whole)) == whole
    assert (gzip.decompress if encoding == "gzip" else zlib.decompress)(packed) == whole


def test_what_clients_compress_inflates() -> None:
    assert inflate(gzip.compress(b"abc", mtime=0), "gzip", 3) == b"abc"
    assert inflate(zlib.compress(b"abc"), "deflate", 3) == b"abc"
    assert inflate(zlib.compress(b"abc")[2:-4], "deflate", 3) == b"abc"


@given(st.lists(st.binary(max_size=100), min_size=1, max_size=9), st.integers(0, 3))
def test_members_of_gzip_are_joined(parts: list[bytes], zeros: int) -> None:
    whole = b"".join(parts)
    packed = b"".join(gzip.compress(part, mtime=0) for part in parts) + bytes(zeros)
    assert inflate(packed, "gzip", len(whole)) == whole
    if whole:
        with pytest.raises(TooLarge):
            inflate(packed, "gzip", len(whole) - 1)


def test_large_members_too() -> None:
    parts = [bytes([number]) * 300_000 + bytes(range(256)) * 900 for number in range(3)]
    packed = b"".join(gzip.compress(part, 0, mtime=0) for part in parts)
    assert inflate(packed, "gzip", 1 << 22) == b"".join(parts)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_bomb_is_refused_before_it_takes_memory(encoding: str) -> None:
    compressor = zlib.compressobj(9, zlib.DEFLATED, 31 if encoding == "gzip" else 15)
    bomb = b"".join([*(compressor.compress(bytes(1 << 20)) for _ in range(200)), compressor.flush()])
    limit = 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge, match="more than 1,048,576 bytes"):
            inflate(bomb, encoding, limit)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * limit, "the limit holds before the content is made"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"abc",
        gzip.compress(b"abc", mtime=0)[:-3],
        gzip.compress(b"abc", mtime=0) + b"x",
        zlib.compress(b"abc")[:-1],
    ],
)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_what_is_not_compressed_is_refused(body: bytes, encoding: str) -> None:
    with pytest.raises(Unfit, match=f"no {encoding} data"):
        inflate(body, encoding, 100)
