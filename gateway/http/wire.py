"""Heads of replies as bytes."""

from __future__ import annotations

import functools
import http
from email.utils import formatdate
from time import time

from mainspring.messages.clients import Timing

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


def server_timing(timing: Timing, render_ns: int) -> bytes:
    """Return W3C's Server-Timing, which says where a request's time went, in milliseconds.

    ``render_ns``: what it took to write the answer, which is a part of the total, too.
    """
    return (
        b"server-timing: receive;dur=%.3f, queue;dur=%.3f, input;dur=%.3f, load;dur=%.3f, wait;dur=%.3f, "
        b"exec;dur=%.3f, output;dur=%.3f, render;dur=%.3f, total;dur=%.3f\r\n"
        % (
            timing.receive_ns / 1e6,
            timing.queue_ns / 1e6,
            timing.input_ns / 1e6,
            timing.load_ns / 1e6,
            timing.wait_ns / 1e6,
            timing.execute_ns / 1e6,
            timing.output_ns / 1e6,
            render_ns / 1e6,
            (timing.total_ns + render_ns) / 1e6,
        )
    )


@functools.lru_cache(1)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()


BEGIN = b"HTTP/1.1 "
"""Of every reply."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
