"""Heads of replies as bytes."""

from __future__ import annotations

import functools
import http
from email.utils import formatdate
from time import time

JSON_TYPE = b"application/json"
EVENTS_TYPE = b"text/event-stream; charset=utf-8"
BINARY_TYPE = b"application/octet-stream"


@functools.lru_cache(1_024)
def _begin(status: int, content_type: bytes, connection: bytes) -> bytes:
    try:
        phrase = http.HTTPStatus(status).phrase.encode()
    except ValueError:
        phrase = b"Client Closed Request"
    return b"HTTP/1.1 %d %s\r\n%scontent-type: %s\r\ncontent-length: " % (
        status,
        phrase,
        b"connection: %s\r\n" % connection if connection else b"",
        content_type,
    )


def head(status: int, content_type: bytes, length: int, connection: bytes, more: bytes) -> bytes:
    """Return a reply's head for a body of ``length`` bytes.

    ``connection`` is the value of that header, empty for none; ``more`` are whole further lines.
    """
    date = _date(int(time()))
    return b"%s%d\r\ndate: %s\r\n%s\r\n" % (_begin(status, content_type, connection), length, date, more)


@functools.lru_cache(1)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()


CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
