"""One client: requests in, replies out in the order of the requests, nothing without a bound.

The requests that a client sends ahead of their replies run side by side, up to a number; those beyond it
wait their turn. A client that is gone takes its requests with it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from time import monotonic_ns
from typing import Any, Protocol, cast

from mainspring.gateway.config import TRITON, GatewayConfig, milliseconds
from mainspring.gateway.core.effects import Connection
from mainspring.gateway.http.exchange import CONTINUE, UNKNOWN_BYTES, Exchange, Fault, HalfClosed, attempt
from mainspring.gateway.http.receiver import Heads, Receiver, too_large
from mainspring.gateway.memory import Budget, Memory, Reading, Uploads


class Limits:
    """The configuration's, in the units that are used here."""

    def __init__(self, config: GatewayConfig) -> None:
        self.header_bytes = config.http_max_header_bytes
        self.body_bytes = config.http_max_body_bytes
        self.pipelined = config.http_max_pipelined
        self.head_ns = milliseconds(config.http_header_timeout_ms)
        self.body_idle_ns = milliseconds(config.http_body_idle_ms)
        self.body_ns = milliseconds(config.http_body_timeout_ms)
        self.idle_ns = milliseconds(config.http_idle_timeout_ms)
        self.write_ns = milliseconds(config.http_write_timeout_ms)
        self.age_ns = milliseconds(config.max_connection_age_ms)
        self.answer_bytes = config.max_answer_bytes_per_connection
        self.triton = config.compatibility == TRITON

    @property
    def shortest_ns(self) -> int:
        """The nearest time-out."""
        return min(self.head_ns, self.body_idle_ns, self.body_ns, self.idle_ns, self.write_ns)


class Host(Protocol):
    """The server, as its connections see it."""

    limits: Limits
    budget: Budget
    """The bytes that bodies may hold."""
    memory: Memory
    """The memory that large bodies are received in."""
    uploads: Uploads
    """The turns in which large bodies are read."""
    answers: Budget
    shared: bytearray
    """The buffer that all connections read to."""
    heads: Heads
    """Those that its connections have had."""

    def goes_ns(self) -> int:
        """Return the instant at which a connection that begins now is told to go."""

    def read_at_ns(self) -> int:
        """Return the instant at which what is being read now was there to be read."""

    def admit(self, connection: HttpConnection) -> bool:
        """Count a new connection; return whether there is room."""

    def gone(self, connection: HttpConnection) -> None:
        """Forget a connection."""

    def forget(self, peer: Connection) -> None:
        """Give up the requests of a client that is gone."""

    def route(self, exchange: Exchange) -> bool:
        """Set the handler of a request whose head is there; return whether its body is wanted."""


_JOINED_BYTES = 1 << 15
"""Replies up to here are joined before they are sent, which costs less than to send their parts."""
_DISCARDED_BYTES = 1 << 30
"""Read and thrown away behind a refusal, for as long as a body may take to come, so that a client that sends
all before it reads gets to read why."""
_UNSENT_BYTES = 1 << 16
"""Bytes of replies to one client that the kernel has not taken; beyond it no more of its requests are read or
begun, and what their answers hold counts until it has."""
_LINGER_NS = 2_000_000_000
NEVER_NS = 1 << 61


class HttpConnection:
    """See the module's docstring. It has the methods of `asyncio.BufferedProtocol`, which is all that uvloop
    asks for; compiled, it can't have that as a base class."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._limits = host.limits
        self._transport: asyncio.Transport | None = None
        self.triton = host.limits.triton
        """True if texts of errors are Triton's."""
        limits = host.limits
        self._receiver = Receiver(
            self,
            host.budget,
            limits.header_bytes,
            limits.body_bytes,
            host.shared,
            host.memory,
            host.heads,
        )
        self._queue: deque[Exchange] = deque()
        """Requests without a reply on the wire, in their order."""
        self._running = 0
        """Number of these that were begun: the first ones."""
        self._held_bytes = 0
        """Bytes that answers to them hold, or will, and those that the client has yet to read."""
        self._unread_bytes = 0
        """Bytes among these that the client has yet to read."""
        self._beginning = False
        """True while one of them is being begun."""
        self._discarding = -1
        """Bytes read since a refusal that ended the connection; -1 before."""
        self._broken_ns = 0
        """Instant of that refusal."""
        self._ending = False
        """True if the gateway ends."""
        self._closes = False
        """True if the last request that was read says, of the gateway's own accord, that the connection ends
        with its reply: nothing more is read, and so the client knows which requests were not taken."""
        self._half_closed: HalfClosed | None = None
        """Once the client has closed its side."""
        self._writing = True
        """True if the client reads fast enough."""
        self._unsent_bytes = 0
        """Bytes that waited to be sent when last looked at."""
        self._since_ns = monotonic_ns()
        """Instant since which it has been idle, or ending."""
        self._goes_ns = host.goes_ns()
        """Instant from which a reply says that the connection ends with it."""
        self._reading = Reading(host.uploads)
        self.peer: Connection | None = None
        """The client's name in the request table, once it has asked for something."""
        self.user: int | None = None
        """Id of the client's user, once that is known."""

    @property
    def silent_since_ns(self) -> int:
        """Return the instant since which the client has sent nothing; `NEVER_NS` while it waits for an
        answer."""
        if self._queue:
            return NEVER_NS
        return self._receiver.last_ns if self._receiver.in_body else self._since_ns

    # --- the loop's side ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        # uvloop's transports are of no class of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(_UNSENT_BYTES)
        self._reading.begin(self._transport)
        if not self._host.admit(self):
            self._break(Fault(503, "overloaded: as many clients are connected as may be; try again"))

    def connection_lost(self, _exc: Exception | None) -> None:
        """It is gone."""
        self._transport = self._half_closed = None
        self._reading.end()
        self._receiver.close()
        self._let_go(self._held_bytes)
        for exchange in self._queue:
            exchange.abandoned = True
        self._queue.clear()
        self._host.gone(self)
        if self.peer is not None:
            self._host.forget(self.peer)
            self.peer = None

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Return where to read to."""
        return self._reading.limited(self._receiver.buffer(), self._receiver.missing)

    def buffer_updated(self, nbytes: int) -> None:
        """Something was read."""
        if self._discarding >= 0:
            self._discard(nbytes)
            return
        try:
            self._receiver.feed(nbytes, self._host.read_at_ns())
            self._reading.took(nbytes, self._receiver.missing)
        except Fault as fault:
            self._break(fault)

    def eof_received(self) -> bool:
        """The client sends nothing more; what it asked for is answered if it is there to read that."""
        transport = self._transport
        if transport is None or not transport.can_write_eof():
            # Over TLS there are no connections of which one side is closed.
            return False
        if self._discarding < 0 and (self._receiver.in_body or self._receiver.began_ns):
            self._break(Fault(400, "the connection ended in the midst of a request"))
        if not self._queue:
            return False
        self._reading.end()
        self._half_closed = HalfClosed(transport)
        self._half_closed.begin()
        return True

    def pause_writing(self) -> None:
        """The client reads too slowly: take nothing more of it."""
        self._writing = False
        self._since_ns = monotonic_ns()
        self._pause()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._writing = True
        self._since_ns = monotonic_ns()
        self._let_go(self._unread_bytes)
        self._unread_bytes = 0
        if len(self._queue) > self._running:
            asyncio.get_running_loop().call_soon(self._run_next)
        else:
            self._resume()

    # --- the handlers' side ---

    def holds(self, exchange: Exchange, count: int) -> bool:
        """Note what a request's answer will hold; return False if there is no room among all connections'."""
        exchange.answer_bytes = 0
        if self._transport is None:
            return True
        if not self._host.answers.take(count):
            return False
        exchange.answer_bytes = count
        self._held_bytes += count
        if len(self._queue) > self._running and not self._beginning:
            asyncio.get_running_loop().call_soon(self._run_next)
        return True

    def told(self, name: str) -> Any:
        """Return what the transport tells of the connection by this name; None once it is gone."""
        return None if self._transport is None else self._transport.get_extra_info(name)

    # --- the receiver's side ---

    def begun(self, exchange: Exchange, body_bytes: int) -> bool:
        """A request's head is there; return whether its body is wanted."""
        if body_bytes > self._limits.body_bytes:
            fault = too_large(self._limits.body_bytes)
            self._host.route(exchange)
            fault.extra = exchange.extra
            raise fault
        wanted = self._host.route(exchange)
        expect = exchange.headers.get(b"expect") if exchange.version != "1.0" else None
        if expect is not None and not self._queue and self._transport is not None:
            if expect.lower() != b"100-continue":
                raise Fault(417, "the only expectation that can be met is 100-continue")
            self._transport.write(CONTINUE)
        return wanted

    def received(self, exchange: Exchange) -> None:
        """A request is there whole."""
        if self._closes and self._queue:
            # It was read together with the one that was to be the last.
            before = self._queue[-1]
            if before.reply_parts is not None:
                return
            before.keeps_alive, self._closes = True, False
        self._queue.append(exchange)
        if self._running == len(self._queue) - 1 and self._may_begin():
            self._run(exchange)
        else:
            self._pause()

    def replied(self, exchange: Exchange) -> None:
        """A request has its reply: send it, and those behind it, once it is their turn."""
        queue = self._queue
        if not queue or queue[0] is not exchange:
            return
        while queue and queue[0].reply_parts is not None:
            done = queue.popleft()
            self._running -= 1
            self._send(done)
            if not done.keeps_alive:
                self._end()
                return
        self._since_ns = monotonic_ns()
        if not queue and (self._ending or self._half_closed is not None):
            self._end()
        elif self._beginning:
            # What begins it looks for the next one.
            pass
        elif len(queue) > self._running:
            # Not at once: other clients come first.
            asyncio.get_running_loop().call_soon(self._run_next)
        elif not self._reading.wanted:
            self._resume()

    # --- the server's side ---

    def check(self, now_ns: int) -> bool:
        """End the connection if something has taken too long; return whether to look again."""
        if self._transport is None:
            return False
        limits, receiver = self._limits, self._receiver
        if self._discarding >= 0 or not self._writing or self._transport.is_closing():
            self._check_leaving(now_ns)
        elif not self._reading.wanted:
            # It waits for its own earlier requests.
            pass
        elif receiver.in_body:
            if now_ns - receiver.last_ns > limits.body_idle_ns:
                self._break(Fault(408, f"nothing came of the body for {limits.body_idle_ns / 1e9:g} s"))
            elif now_ns - receiver.began_ns > limits.body_ns:
                self._break(Fault(408, f"the body took longer than {limits.body_ns / 1e9:g} s to come"))
        elif receiver.began_ns:
            if now_ns - receiver.began_ns > limits.head_ns:
                self._break(Fault(408, f"the head took longer than {limits.head_ns / 1e9:g} s to come"))
        elif not self._queue and now_ns - self._since_ns > limits.idle_ns:
            self._end()
        return True

    def tell_to_go(self) -> None:
        """Have the next reply say that the connection ends with it, or that of the last request so far."""
        self._goes_ns = 0
        if self._queue:
            self._close_behind(self._queue[-1])

    def shut_down(self) -> None:
        """Take no further request; end once those that were taken have their replies."""
        self._ending = True
        if self._queue:
            self._close_behind(self._queue[-1])
        else:
            self._end()

    def abort(self) -> None:
        """End at once, whatever was not sent."""
        if self._transport is not None:
            self._transport.abort()

    # --- inside ---

    def _check_leaving(self, now_ns: int) -> None:
        """Abort if the client has taken nothing of its replies for too long, or not closed behind them."""
        assert self._transport is not None
        unsent = self._transport.get_write_buffer_size()
        if unsent != self._unsent_bytes or (self._queue and not unsent):
            self._since_ns = now_ns
        elif now_ns - self._since_ns > (self._limits.write_ns if unsent else _LINGER_NS):
            self.abort()
        self._unsent_bytes = unsent

    def _discard(self, count: int) -> None:
        """Throw away what came behind a refusal; end at once if that is too much, or takes too long."""
        self._discarding += count
        self._since_ns = monotonic_ns()
        if self._discarding > _DISCARDED_BYTES or self._since_ns - self._broken_ns > self._limits.body_ns:
            self.abort()

    def _may_begin(self) -> bool:
        """Return whether one more request may run beside those that do."""
        running = self._running
        if not running:
            return True
        if running >= self._limits.pipelined or self._held_bytes >= self._limits.answer_bytes:
            return False
        # Of the one before it must be known how much it will hold.
        before = self._queue[running - 1]
        return before.answer_bytes != UNKNOWN_BYTES or before.reply_parts is not None

    def _let_go(self, count: int) -> None:
        self._held_bytes -= count
        self._host.answers.give(count)

    def _run(self, exchange: Exchange) -> None:
        self._running += 1
        if (self._ending or exchange.arrived_ns >= self._goes_ns) and exchange is self._queue[-1]:
            self._close_behind(exchange)
        assert exchange.handler is not None, "a request that was not routed"
        self._beginning = True
        attempt(exchange.handler, exchange)
        self._beginning = False

    def _close_behind(self, last: Exchange) -> None:
        """Have the reply of the last request say that the connection ends with it, and read nothing more.

        If the client said so itself, it sends nothing more, and the connection is closed as always.
        """
        if last.keeps_alive:
            last.say_close()
            self._closes = True
            self._pause()

    def _run_next(self) -> None:
        """Begin the next request that waits its turn, unless the client has yet to read what it was sent."""
        if self._transport is None or not self._writing:
            return
        if self._running < len(self._queue) and self._may_begin():
            self._run(self._queue[self._running])
        if self._running < len(self._queue) and self._may_begin():
            asyncio.get_running_loop().call_soon(self._run_next)
        elif len(self._queue) <= self._running:
            self._resume()

    def _send(self, exchange: Exchange) -> None:
        parts = exchange.reply_parts
        transport = self._transport
        assert parts is not None
        if transport is None or transport.is_closing():
            return
        if self._half_closed is not None:
            parts = self._half_closed.rest(parts)
        if len(parts) == 2 and len(parts[1]) < _JOINED_BYTES:
            transport.write(parts[0] + parts[1])
        elif sum(map(len, parts)) < _JOINED_BYTES:
            transport.write(b"".join(parts))
        else:
            transport.writelines(parts)
        if exchange.answer_bytes <= 0:
            return
        if self._writing:
            self._let_go(exchange.answer_bytes)
        else:
            self._unread_bytes += exchange.answer_bytes

    def _break(self, fault: Fault) -> None:
        """Answer what came with what is wrong with it, behind the replies that are due, and end."""
        exchange = Exchange(self, b"", b"", {}, monotonic_ns())
        exchange.keeps_alive = False
        exchange.extra = fault.extra
        exchange.handler = lambda exchange: exchange.fail(fault.status, fault.detail)
        self._discarding = 0
        self._receiver.close()
        self._since_ns = self._broken_ns = monotonic_ns()
        self.received(exchange)

    def _end(self) -> None:
        """Close, once what was sent has left."""
        self._since_ns = monotonic_ns()
        for exchange in self._queue:
            exchange.abandoned = True
        self._queue.clear()
        transport = self._transport
        if transport is None:
            return
        if self._closes and self._discarding < 0:
            # What the client sent meanwhile was not read.
            self._discarding, self._broken_ns = 0, self._since_ns
            self._receiver.close()
        if self._discarding >= 0 and self._half_closed is None and transport.can_write_eof():
            # To close with bytes unread would take the reply from the client.
            # A transport of uvloop is closed for a turn before it says so.
            with contextlib.suppress(RuntimeError):
                transport.write_eof()
                self._closes = False
                self._resume()
        else:
            transport.close()

    def _pause(self) -> None:
        self._reading.pause()

    def _resume(self) -> None:
        if self._writing and not self._closes and self._transport is not None and self._reading.resume():
            self._receiver.resume(monotonic_ns())
