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
_LEVEL = 1
"""Tensors hardly shrink further at higher ones, which take several times as long."""


class TooLarge(Unfit):
    """A body has more bytes than it may have."""

    def __init__(self, what: str, limit_bytes: int) -> None:
        super().__init__(Reason.BAD_MESSAGE, f"{what} has more than {limit_bytes:,} bytes, the most allowed")


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
    inflater = zlib.decompressobj(window_bits)
    content = inflater.decompress(body, limit_bytes + 1)
    if len(content) > limit_bytes:
        raise TooLarge("the inflated body", limit_bytes)
    if not inflater.eof:
        raise zlib.error("it ends early")
    if inflater.unused_data:
        raise zlib.error("something follows it")
    return content


def deflate(parts: Sequence[Any], encoding: str) -> bytes:
    """Return a body's parts compressed, as one."""
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_BITS if encoding == "gzip" else zlib.MAX_WBITS)
    return b"".join([*map(compressor.compress, parts), compressor.flush()])
