"""One request over HTTP and its one reply."""

from __future__ import annotations

import asyncio
import functools
import http
import logging
import socket
from collections.abc import Callable, Sequence
from email.utils import formatdate
from time import time
from typing import Any, Final, Protocol, TypeVar

import msgspec

from mainspring.gateway.core.validation import BadRequest
from mainspring.gateway.http import openai
from mainspring.gateway.oip import json_data
from mainspring.gateway.oip.compression import TooLarge
from mainspring.gateway.oip.datatypes import Unserved, Withheld
from mainspring.gateway.oip.errors import ErrorBody, error_body, http_status, retry_after_ns, sentence
from mainspring.gateway.oip.spans import RegionError
from mainspring.gateway.oip.triton_texts import worded
from mainspring.messages.clients import Timing
from mainspring.messages.codes import Reason

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


def reply_head(status: int, content_type: bytes, length: int, connection: bytes, more: bytes) -> bytes:
    """Return a reply's head for a body of ``length`` bytes.

    ``connection`` is the value of that header, empty for none; ``more`` are whole further lines.
    """
    date = _date(int(time()))
    return b"%s%d\r\ndate: %s\r\n%s\r\n" % (_begin(status, content_type, connection), length, date, more)


def closing_head(head: bytes) -> bytes:
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


REPLY_BEGIN = b"HTTP/1.1 "
"""The beginning of every reply."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


log = logging.getLogger("mainspring.gateway")

MOST_ASKED_BYTES = 1 << 16
"""Most bytes of a body that is not an inference request's: those are a few names and settings."""
UNKNOWN_BYTES = -1
INFER, GENERATE, GENERATE_STREAM = "infer", "generate", "generate_stream"
"""The styles of an inference request and its answer: tensors, values by name, and these as an event."""
_ENCODER = msgspec.json.Encoder()
Value = TypeVar("Value")


class Fault(Exception):
    """A fault of a request that no reason code is about: an HTTP status, and what is right."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.extra = b""
        """Further headers, as `Exchange.extra`."""


class Sender(Protocol):
    """The connection that a request came on."""

    triton: bool
    """True if texts of errors are Triton's."""

    def replied(self, exchange: Exchange) -> None:
        """The exchange has its reply: send it when it is its turn."""


Handler = Callable[["Exchange"], None]


class Exchange:
    """A request as it was received; `reply` ends it."""

    __slots__ = (
        "abandoned",
        "answer_bytes",
        "arguments",
        "arrived_ns",
        "body",
        "extra",
        "handler",
        "headers",
        "keeps_alive",
        "method",
        "reply_parts",
        "sender",
        "style",
        "target",
        "version",
    )

    def __init__(
        self, sender: Sender, method: bytes, target: bytes, headers: dict[bytes, bytes], arrived_ns: int
    ) -> None:
        self.sender = sender
        self.method = method
        self.target = target
        """Path and query as they came."""
        self.headers = headers
        """The headers by lower-case name."""
        self.arrived_ns = arrived_ns
        """Instant at which its first bytes were read, on this process's clock."""
        self.abandoned = False
        """True if the client is gone: nobody would get the reply."""
        self.answer_bytes = 0
        """Bytes that its answer will hold, about; `UNKNOWN_BYTES` until that is known, 0 for a short one."""
        self.extra = b""
        """Whole lines for the head of its reply, whatever that is."""
        self.version = "1.1"
        self.keeps_alive = True
        """True if the connection takes another request after this one."""
        self.handler: Handler | None = None
        self.arguments: tuple[str, ...] = ()
        """The variable parts of its path."""
        self.style = INFER
        """The style of an inference's request and answer."""
        self.body: memoryview = memoryview(b"")
        self.reply_parts: list[Any] | None = None
        """The parts of the reply that is to be sent, once it is known."""

    def header(self, name: bytes) -> str | None:
        """Return a header's value as text."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def decoded(self, kind: type[Value]) -> Value:
        """Return what the body says as JSON; an empty one says what an empty object does.

        Raises `BadRequest`, and `Fault` for a body that would take long to read: others are to be served.
        """
        if len(self.body) > MOST_ASKED_BYTES:
            raise Fault(413, f"the body has more than {MOST_ASKED_BYTES:,} bytes, the most allowed here")
        try:
            return json_data.decode(self.body, kind)
        except json_data.UNREADABLE as error:
            detail = f"the request's JSON can't be read: {json_data.explained(error, self.body)}"
            raise BadRequest(Reason.BAD_MESSAGE, detail) from None

    def reply(
        self,
        status: int,
        parts: Sequence[Any],
        content_type: bytes = JSON_TYPE,
        more: bytes = b"",
    ) -> None:
        """Send a reply with this body, given in parts; nothing happens if there was one."""
        if self.reply_parts is not None:
            return
        connection = b""
        if not self.keeps_alive:
            connection = b"close"
        elif self.version == "1.0":
            connection = b"keep-alive"
        if self.extra:
            more += self.extra
        head = reply_head(status, content_type, sum(map(len, parts)), connection, more)
        self.reply_parts = [head] if self.method == b"HEAD" else [head, *parts]
        self.sender.replied(self)

    def say_close(self) -> None:
        """Have its reply say that the connection ends with it, also if that waits for those before it."""
        self.keeps_alive = False
        if self.reply_parts is not None:
            self.reply_parts[0] = closing_head(self.reply_parts[0])

    def reply_json(self, value: Any, status: int = 200) -> None:
        """Send a value as JSON."""
        self.reply(status, (_ENCODER.encode(value),))

    def refuse(self, reason: Reason, detail: str, earliest_finish_left_ns: int | None = None) -> None:
        """Send why there is no answer."""
        status = http_status(reason)
        more = b"www-authenticate: Bearer\r\n" if status == 401 else b""
        again_ns = retry_after_ns(reason, earliest_finish_left_ns)
        if self.target.startswith(openai.ROOT):
            detail = sentence(reason, detail, earliest_finish_left_ns)
            self._fail_openai(openai.status_of(reason, status), detail, more, reason.value, again_ns)
            return
        if again_ns is not None:
            more += b"retry-after: %d\r\n" % -(-again_ns // 1_000_000_000)
        triton = self.sender.triton
        body = _ENCODER.encode(error_body(reason, detail, earliest_finish_left_ns, triton=triton))
        self.reply(status, (body,), more=more)

    def fail(self, status: int, detail: str, more: bytes = b"") -> None:
        """Send what is wrong with a request that none of the reasons is about."""
        if self.target.startswith(openai.ROOT):
            self._fail_openai(status, detail, more)
            return
        self.reply(status, (_ENCODER.encode(ErrorBody(detail)),), more=more)

    def _fail_openai(
        self, status: int, detail: str, more: bytes, reason: str = "", again_ns: int | None = None
    ) -> None:
        """Send what is wrong in the form of OpenAI's API."""
        if (again_s := openai.retry_after_s(status, again_ns)) is not None:
            more += b"retry-after: %d\r\n" % again_s
        self.reply(status, (openai.error(status, detail, reason),), more=more)


def attempt(handler: Handler, exchange: Exchange) -> None:
    """Have a request handled; whatever that raises becomes its reply."""
    try:
        handler(exchange)
    except Exception as error:
        reply_to_error(exchange, error)


def reply_to_error(exchange: Exchange, error: Exception) -> None:
    """Send what a handler raised; to be called while that is being handled, for the log."""
    match error:
        case TooLarge():
            exchange.fail(413, error.detail)
        case RegionError():
            exchange.fail(error.status, error.detail)
        case BadRequest():
            exchange.refuse(error.reason, worded(error, triton=exchange.sender.triton), error.again_ns)
        case Fault():
            exchange.fail(error.status, error.detail)
        case Withheld():
            exchange.fail(503, str(error))
        case Unserved():
            exchange.fail(501, str(error))
        case _:
            log.exception("no reply to %s %s", exchange.method, exchange.target[:200])
            exchange.fail(500, "internal: the gateway failed at this request; its log says how")


_FIRST_S: Final = 0.01
_LONGEST_S: Final = 1.0
"""Most seconds between two looks whether there was a reset, which the loop does not notice by itself any
more."""
_CLOSED: Final = 7
"""The kernel's ``TCP_CLOSE``, as the first byte of ``TCP_INFO``."""


class HalfClosed:
    """A client that has closed its side of a connection, while requests of it have no reply yet.

    It may still read, as ``nc -N`` does, or be gone: TCP says the same of both. So the first bytes of the
    reply that is due next, which all replies have in common, are sent at once: the host of a client that is
    gone answers them with a reset.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._begun = False
        """True if the beginning of a reply was sent before the rest of it."""
        self._pause_s = _FIRST_S

    def begin(self) -> None:
        """Send the beginning of the next reply, and see whether the client is there to get it."""
        self._begun = True
        self._transport.write(REPLY_BEGIN)
        asyncio.get_running_loop().call_later(self._pause_s, self._look)

    def rest(self, parts: list[Any]) -> list[Any]:
        """Return what is yet to be sent of a reply."""
        if not self._begun:
            return parts
        self._begun = False
        return [parts[0][len(REPLY_BEGIN) :], *parts[1:]]

    def _look(self) -> None:
        transport = self._transport
        if transport.is_closing():
            return
        connected = transport.get_extra_info("socket")
        if connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _CLOSED:
            transport.abort()
            return
        self._pause_s = min(2 * self._pause_s, _LONGEST_S)
        asyncio.get_running_loop().call_later(self._pause_s, self._look)
