"""Bytes of one connection to its requests: httptools' parser, and bodies beside it.

Small requests come whole in one read, and their body is cut out of it. What does not is read by the kernel
straight into memory of the body's announced size: nothing of it is copied but what came along with the head,
which is little where the request before was as large: then the first read takes little more than a head.
A head that was parsed before (`heads`) is not parsed again.
That memory is taken page by page as bytes come, so a client that announces much and sends little has little.
Reads go into one buffer that all connections of a loop share: each is worked off before the next begins.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import httptools
from mypy_extensions import mypyc_attr

from mainspring.gateway.http.exchange import Exchange, Fault, Sender
from mainspring.gateway.memory import Budget, Memory
from mainspring.gateway.oip.compression import BODY_KEY, past_limit

MOST = 1_024
"""Heads that are remembered; once there are more, all are forgotten."""
LONGEST_BYTES = 1_024
"""Most bytes of a head that is remembered."""
_END = b"\r\n\r\n"
_VERSIONS = ("1.0", "1.1")
_OTHER_VERSION = (
    "the version of HTTP that this request names is not spoken at this address: use HTTP/1.1 or 1.0; gRPC, "
    "over HTTP/2, is spoken at the gateway's grpc_address"
)
_PASSING = (
    *(b"authorization", b"cookie", b"expect", b"proxy-authorization"),
    *(b"traceparent", b"tracestate", b"transfer-encoding", b"upgrade"),
)
"""Headers that are secret, different in every request, or say that the head alone is not what counts."""


class Head(NamedTuple):
    """The content of a head."""

    method: bytes
    target: bytes
    headers: dict[bytes, bytes]
    """The headers by lower-case name; nobody may change them."""
    version: str
    length: int
    """Bytes of the body."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Heads:
    """The heads that all connections of a server remember."""

    def __init__(self) -> None:
        self._known: dict[bytes, Head] = {}

    def find(self, head: bytes) -> Head | None:
        """Return what is in a head with its last line, if that is remembered."""
        return self._known.get(head)

    def keep(self, head: bytes, found: Head) -> None:
        """Remember what was found in a head, unless it is of a kind that is not."""
        if any(name in found.headers for name in _PASSING):
            return
        if head[:1].isspace() or head.count(b"\n") != head.count(b"\r\n"):
            # Then it may end elsewhere than behind the first empty line.
            return
        if len(self._known) >= MOST:
            self._known.clear()
        self._known[head] = found


def head_of(read: bytearray, count: int) -> bytes:
    """Return the head that what was read begins with, its empty line included; empty if it is too long."""
    end = read.find(_END, 0, min(count, LONGEST_BYTES))
    return b"" if end < 0 else bytes(read[: end + len(_END)])


READ_BYTES = 1 << 16
_LONGER_BYTES = 64
"""Bytes that a head may be longer than the one before: numbers in it vary."""
_BEHIND_BYTES = 1
"""Room behind a body: a read that ends within it has taken all there was, and the loop need not try again."""
_NOTHING = memoryview(b"")


class Sink(Sender, Protocol):
    """The receiver of the requests."""

    def begun(self, exchange: Exchange, body_bytes: int) -> bool:
        """A request's head is there; return whether its body is wanted. ``body_bytes`` as announced, or 0.

        Raises `Fault` if the connection is to end.
        """

    def received(self, exchange: Exchange) -> None:
        """The request is there whole."""


class _Gone:
    """Takes the place of a sink that is gone."""

    triton = False

    def begun(self, exchange: Exchange, body_bytes: int) -> bool:  # noqa: ARG002
        """Want nothing."""
        return False

    def received(self, exchange: Exchange) -> None:
        """Do nothing."""

    def replied(self, exchange: Exchange) -> None:
        """Do nothing."""


_GONE = _Gone()


class Receiver:
    """Reads one connection; see the module's docstring."""

    def __init__(
        self,
        sink: Sink,
        budget: Budget,
        max_header_bytes: int,
        max_body_bytes: int,
        shared: bytearray | None = None,
        memory: Memory | None = None,
        heads: Heads | None = None,
    ) -> None:
        """``budget``: what unfinished bodies may hold, of all connections; ``memory``: where they come from.

        ``shared`` is `READ_BYTES` that all receivers of one loop may read to; else it has its own.
        ``heads`` are those that all receivers with these bounds know.
        """
        self._memory = Memory(0) if memory is None else memory
        self._read = bytearray(READ_BYTES) if shared is None else shared
        self._shared = memoryview(self._read)
        self._heads = Heads() if heads is None else heads
        self._first_bytes = 0
        """Bytes of a request's first read behind one with a large body; 0: as much as there is room for."""
        self._head = b""
        """A head that what was read begins with, while it is parsed."""
        self._sink: Sink = sink
        self._budget = budget
        self._max_header_bytes, self._max_body_bytes = max_header_bytes, max_body_bytes
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._ended = False
        """True if no request follows: the client said so of the last one."""
        self._exchange: Exchange | None = None
        """The request whose body is to come."""
        self._repeated = False
        """True if that one's head is known, and the parser sees it only to let its body pass."""
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._hosts = self._header_bytes = self._fed_bytes = 0
        """Of its target and headers; and read of a head that is not whole."""
        self._length = 0
        """Bytes that the head announces for the body; 0 if it comes in chunks."""
        self._wanted = True
        self._pieces, self._piece = bytearray(), b""
        self._direct: memoryview | None = None
        """Memory of the body's size, and `_BEHIND_BYTES`, while it is read into."""
        self._filled = self._held_bytes = 0
        self._fault: Fault | None = None
        self._now_ns = 0
        self.began_ns = 0
        """Instant at which the first bytes of the request under way came; 0 between requests."""
        self.last_ns = 0
        """Instant at which the last bytes came."""

    @property
    def in_body(self) -> bool:
        """Return whether a head is there whole and its body is not."""
        return self._exchange is not None

    @property
    def missing(self) -> int:
        """Bytes that are yet to come of a body with memory of its own."""
        return 0 if self._direct is None else self._length - self._filled

    def buffer(self) -> memoryview:
        """Return where the next bytes are to be read to."""
        if self._direct is not None:
            return self._direct[self._filled :]
        return self._shared[: self._first_bytes] if self._first_bytes and not self.began_ns else self._shared

    def feed(self, count: int, now_ns: int) -> None:
        """Work off what was read to `buffer`; raise `Fault`, after which nothing more may be fed."""
        self.last_ns = self._now_ns = now_ns
        if self._direct is None:
            if self.began_ns or self._ended or self._fault is not None or not self._repeats(count):
                self._parse(self._shared[:count])
                self._head = b""
        else:
            self._filled += count
            self._hold(count)
            if self._filled >= self._length:
                self._end_body(self._direct)

    def resume(self, now_ns: int) -> None:
        """Restart the clock of a request under way: nothing of it could be read for a while."""
        self.last_ns = now_ns
        if self.began_ns:
            self.began_ns = now_ns

    def close(self) -> None:
        """Let go of what is held, and of the owner: this must be freed without the collector."""
        self._release()
        self._exchange = None
        self._parser = None
        self._fault = None
        self._sink = _GONE

    # --- the parser's callbacks ---

    def on_message_begin(self) -> None:
        """A request begins."""
        self._target = b""
        self._headers = {}
        self._header_bytes = self._hosts = 0
        self._wanted = True
        if not self.began_ns:
            self.began_ns = self._now_ns

    def on_url(self, target: bytes) -> None:
        """Some of the request's path and query."""
        self._target += target
        self._count(len(target))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or, behind a body, a trailer: those are let pass."""
        self._count(len(name) + len(value) + 4)
        if self._exchange is None:
            name = name.lower()
            self._hosts += name == b"host"
            known = self._headers.get(name)
            self._headers[name] = value if known is None else b"%s, %s" % (known, value)

    def on_headers_complete(self) -> None:
        """The head is there."""
        parser = self._parser
        if self._fault is not None or parser is None:
            return
        if self._repeated:
            self._repeated = self._wanted = False
            self._fed_bytes = 0
            return
        exchange = Exchange(self._sink, parser.get_method(), self._target, self._headers, self.began_ns)
        exchange.version = parser.get_http_version()
        # Of an older request in chunks proxies may have seen another end.
        coded = exchange.version == "1.0" and b"transfer-encoding" in self._headers
        exchange.keeps_alive = parser.should_keep_alive() and not coded
        length = self._headers.get(b"content-length")
        self._length = 0 if length is None else int(length)
        self._exchange = exchange
        self._fed_bytes = 0
        if self._head:
            head, self._head = self._head, b""
            self._expect(len(head), self._length)
            if exchange.keeps_alive and exchange.method != b"CONNECT" and exchange.version in _VERSIONS:
                found = Head(exchange.method, self._target, self._headers, exchange.version, self._length)
                self._heads.keep(head, found)
        try:
            if exchange.version not in _VERSIONS:
                raise Fault(505, _OTHER_VERSION)
            if (coding := self._headers.get(b"transfer-encoding", b"chunked").lower()) != b"chunked":
                raise Fault(
                    501,
                    f"the transfer coding {coding[:40].decode('latin-1')!r} is not taken: send the body with "
                    "Content-Length or as chunked, and compress it by Content-Encoding",
                )
            if exchange.method == b"CONNECT" or (
                parser.should_upgrade() and b"transfer-encoding" in self._headers
            ):
                raise Fault(400, "only HTTP/1.1 is spoken here; send Content-Length beside Upgrade")
            if exchange.version == "1.1" and self._hosts != 1:
                raise Fault(400, f"an HTTP/1.1 request has one header Host; this one has {self._hosts}")
            self._wanted = self._sink.begun(exchange, self._length)
        except Fault as fault:
            self._fault = fault

    def on_body(self, body: bytes) -> None:
        """Some of the body."""
        if not self._wanted or self._fault is not None:
            return
        if not self._piece and not self._pieces:
            self._piece = body
            return
        if not self._pieces:
            self._pieces += self._piece
        self._pieces += body
        if len(self._pieces) > self._max_body_bytes:
            self._fault = too_large(self._max_body_bytes)

    def on_message_complete(self) -> None:
        """The request is there whole."""
        parser = self._parser
        if self._fault is None and parser is not None and not (self._length and parser.should_upgrade()):
            self._finish(memoryview(self._pieces or self._piece))

    # --- inside ---

    def _repeats(self, count: int) -> bool:
        """Take a request whose head is known; return False if there was none, or if its body is to pass."""
        self._head = head_of(self._read, count)
        known = self._heads.find(self._head) if self._head else None
        begin = len(self._head)
        if known is None or self._parser is None:
            return False
        self._head = b""
        self.began_ns, self._length = self._now_ns, known.length
        exchange = Exchange(self._sink, known.method, known.target, known.headers, self._now_ns)
        exchange.version = known.version
        self._exchange = exchange
        try:
            self._wanted = self._sink.begun(exchange, known.length)
        except Fault as fault:
            self._fault = fault
            raise
        end = begin + known.length
        self._expect(begin, known.length)
        if end > count:
            self._repeated = not self._wanted
            if self._wanted:
                self._expect_body(self._shared[begin:count])
            return self._wanted
        self._finish(memoryview(bytes(self._shared[begin:end]) if self._wanted else b""))
        if end < count:
            self._parse(self._shared[end:count])
        return True

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self._max_header_bytes and self._fault is None:
            self._fault = self._header_too_large()

    def _header_too_large(self) -> Fault:
        detail = past_limit("the request's head", self._max_header_bytes, "http_max_header_bytes")
        return Fault(431, detail)

    def _parse(self, data: memoryview) -> None:
        while data and self._parser is not None and not self._ended and self._fault is None:
            data = self._parse_some(self._parser, data)
        if self._ended:
            # Nothing more is to come, and what came behind the last request is let pass.
            return
        if self._fault is not None:
            raise self._fault
        if self._exchange is not None:
            self._expect_body(self._pieces or self._piece)
        elif not self.began_ns:
            self._fed_bytes = 0
        elif self._fed_bytes > self._max_header_bytes:
            raise self._header_too_large()

    def _parse_some(self, parser: httptools.HttpRequestParser, data: memoryview) -> memoryview:
        """Work off what came up to a request for another protocol, or all; return the rest."""
        self._fed_bytes += len(data)
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # Other protocols are not spoken here; what follows is HTTP as before.
            if self._parser is not None:
                self._parser = httptools.HttpRequestParser(self)
            return self._behind_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if not self._ended:
                other = any(each in str(error) for each in ("PRI/Upgrade", "HTTP version"))
                fault = Fault(505, _OTHER_VERSION) if other else None
                self._fault = self._fault or fault or Fault(400, f"this is not an HTTP request: {error}")
        return data[:0]

    def _behind_upgrade(self, data: memoryview) -> memoryview:
        """Take the body of a request for another protocol, which the parser leaves; return the rest."""
        exchange, length = self._exchange, self._length
        if exchange is None or self._fault is not None:
            return data
        if not self._wanted:
            exchange.keeps_alive = False
        elif len(data) < length:
            self._piece = bytes(data)
            return data[:0]
        self._finish(memoryview(bytes(data[:length])))
        return data[length:]

    def _expect(self, head_bytes: int, body_bytes: int) -> None:
        """Take the next request for one like this, as most clients send: of a large body the kernel is to
        write as much as possible to where it stays."""
        self._first_bytes = min(head_bytes + _LONGER_BYTES, READ_BYTES) if body_bytes > READ_BYTES else 0

    def _expect_body(self, have: memoryview | bytearray | bytes) -> None:
        """Prepare for the rest of a body of which this came along with its head."""
        self._fed_bytes = 0
        if not self._wanted:
            return
        if not self._length:
            self._hold(len(have) - self._held_bytes)
            return
        try:
            self._direct = self._memory.take(self._length + _BEHIND_BYTES)
        except MemoryError:
            raise Fault(503, f"there is no memory for a body of {self._length:,} bytes") from None
        self._filled = len(have)
        self._direct[: self._filled] = have
        self._hold(self._filled)
        self._pieces, self._piece = bytearray(), b""

    def _end_body(self, memory: memoryview) -> None:
        """Take a body that is there, and what was read behind it."""
        behind = bytes(memory[self._length : self._filled])
        self._finish(memory[: self._length])
        # The parser has not seen the body.
        self._parser = None if self._sink is _GONE else httptools.HttpRequestParser(self)
        if behind:
            self._shared[: len(behind)] = behind
            self._parse(self._shared[: len(behind)])

    def _hold(self, count: int) -> None:
        if not self._budget.take(count):
            raise Fault(503, "overloaded: bodies on their way hold as much memory as they may; try again")
        self._held_bytes += count

    def _release(self) -> None:
        self._budget.give(self._held_bytes)
        self._held_bytes = 0
        self._direct = None
        self._pieces, self._piece = bytearray(), b""

    def _finish(self, body: memoryview) -> None:
        exchange = self._exchange
        assert exchange is not None
        exchange.body = body if self._wanted else _NOTHING
        self._exchange = None
        self._ended = not exchange.keeps_alive
        self.began_ns = 0
        # What follows in the same read is counted by the next one, if it is not a whole head.
        self._fed_bytes = 0
        self._release()
        self._sink.received(exchange)


def too_large(limit_bytes: int) -> Fault:
    """Return the fault of a body that is larger than it may be."""
    return Fault(413, past_limit("the request's body", limit_bytes, BODY_KEY))
