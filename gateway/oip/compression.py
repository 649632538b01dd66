"""Bodies in gzip or deflate, as ``Content-Encoding`` and ``Accept-Encoding`` name them.

Nothing is inflated past a bound that is known before: a few kilobytes may stand for gigabytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from mainspring.gateway.oip.datatypes import Unfit
from mainspring.messages.codes import Reason

ENCODINGS = ("gzip", "deflate")
_GZIP_BITS = zlib.MAX_WBITS | 16
_MOST_MEMBERS = 4_096
_READ_BYTES = 1 << 16
_PADDING_BYTES = 64
"""Most zeros behind the last member that are read."""
BODY_KEY, JSON_KEY = "http_max_body_bytes", "http_max_json_bytes"
_LEVEL = 1
"""Tensors hardly shrink further at higher ones, which take several times as long."""


class TooLarge(Unfit):
    """A body has more bytes than it may have."""

    def __init__(self, what: str, limit_bytes: int, key: str, instead: str = "") -> None:
        """``key`` is the configuration's that sets the limit; ``instead`` is what a client may do."""
        super().__init__(Reason.BAD_MESSAGE, past_limit(what, limit_bytes, key, instead))


def past_limit(what: str, limit_bytes: int, key: str, instead: str = "") -> str:
    """Return what is wrong with what has more bytes than it may have, and what would be right."""
    remedy = f"{instead}, or raise" if instead else "raise"
    return f"{what} has more than {limit_bytes:,} bytes, the most allowed: {remedy} {key} of [gateway]"


def inflate(body: Any, encoding: str, limit_bytes: int) -> bytes:
    """Return a compressed body's content; raise `TooLarge` past the limit, and `Unfit` if it is none.

    ``deflate`` is data in zlib's format, or without it, as some clients send it.
    """
    try:
        if encoding == "gzip":
            return _inflate(body, _GZIP_BITS, limit_bytes)
        try:
            return _inflate(body, zlib.MAX_WBITS, limit_bytes)
        except zlib.error:
            return _inflate(body, -zlib.MAX_WBITS, limit_bytes)
    except zlib.error as error:
        raise Unfit(Reason.BAD_MESSAGE, f"the body is no {encoding} data: {error}") from None


def _inflate(body: Any, window_bits: int, limit_bytes: int) -> bytes:
    """Return the content of the members that a body has: several of gzip, zeros behind them."""
    left, found, size = memoryview(body), list[bytes](), 0
    for _ in range(_MOST_MEMBERS if window_bits == _GZIP_BITS else 1):
        inflater = zlib.decompressobj(window_bits)
        while not inflater.eof:
            if not left:
                raise zlib.error("it ends early")
            # Some at a time: what is behind a member is copied.
            some = left[:_READ_BYTES]
            found.append(inflater.decompress(some, limit_bytes - size + 1))
            size += len(found[-1])
            if size > limit_bytes:
                raise TooLarge("the inflated body", limit_bytes, BODY_KEY)
            left = left[len(some) - len(inflater.unused_data) :]
        if not left or (window_bits == _GZIP_BITS and not bytes(left[:_PADDING_BYTES]).strip(b"\0")):
            return found[0] if len(found) == 1 else b"".join(found)
    raise zlib.error("something follows it")


def deflate(parts: Sequence[Any], encoding: str) -> bytes:
    """Return a body's parts compressed, as one."""
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_BITS if encoding == "gzip" else zlib.MAX_WBITS)
    return b"".join([*map(compressor.compress, parts), compressor.flush()])
