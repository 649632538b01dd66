"""Heads of replies as bytes."""

from __future__ import annotations

import functools
import http
from email.utils import formatdate
from time import time
from typing import Final

from mainspring.messages.clients import Timing

JSON_TYPE = b"application/json"
EVENTS_TYPE = b"text/event-stream; charset=utf-8"
BINARY_TYPE = b"application/octet-stream"
_WHOLE: Final = [b"%d" % number for number in range(1_000)]
_THOUSANDTHS: Final = [b".%03d" % number for number in range(1_000)]


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


def closing(head: bytes) -> bytes:
    """Return a reply's head that also says that the connection ends behind it."""
    first, kept, rest = head.partition(b"\r\n")
    return first + kept + b"connection: close\r\n" + rest.replace(b"connection: keep-alive\r\n", b"", 1)


def server_timing(timing: Timing, render_ns: int) -> bytes:
    """Return W3C's Server-Timing, which says where a request's time went, in milliseconds.

    ``render_ns``: what it took to write the answer, which is a part of the total, too.
    """
    total = _milliseconds(timing.total_ns + render_ns)
    return (
        b"server-timing: receive;dur=%s, queue;dur=%s, input;dur=%s, load;dur=%s, wait;dur=%s, exec;dur=%s, "
        b"output;dur=%s, render;dur=%s, total;dur=%s\r\n"
        % (
            _milliseconds(timing.receive_ns),
            _milliseconds(timing.queue_ns),
            _milliseconds(timing.input_ns),
            _milliseconds(timing.load_ns),
            _milliseconds(timing.wait_ns),
            _milliseconds(timing.execute_ns),
            _milliseconds(timing.output_ns),
            _milliseconds(render_ns),
            total,
        )
    )


def _milliseconds(duration_ns: int) -> bytes:
    """Return a duration in milliseconds, to the nearest microsecond: from tables, since a float's digits take
    several times as long."""
    whole_us = (duration_ns + 500) // 1_000
    if not 0 <= whole_us < 1_000_000:
        return b"%.3f" % (duration_ns / 1e6)
    return _WHOLE[whole_us // 1_000] + _THOUSANDTHS[whole_us % 1_000]


@functools.lru_cache(1)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()


BEGIN = b"HTTP/1.1 "
"""Of every reply."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
