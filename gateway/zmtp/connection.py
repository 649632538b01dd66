"""One client's socket: events in, messages out, nothing that waits and nothing without a bound."""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence
from time import monotonic_ns
from typing import Any, Final, Protocol

from mainspring.gateway.bounds import Budget
from mainspring.gateway.memory import Memory
from mainspring.gateway.uploads import LARGE_BYTES, SLICE_BYTES
from mainspring.gateway.zmtp import wire
from mainspring.gateway.zmtp.limits import Limits
from mainspring.gateway.zmtp.receiver import Event, Receiver
from mainspring.transport.bounds import Delivery, Ended
from mainspring.transport.bounds import Limits as BacklogLimits
from mainspring.transport.channel import READABLE, WRITABLE, Backlog

READ_BYTES: Final = 1 << 14
"""What one read takes at most beside the rest of a large frame."""
STRANGER_BACKLOG_BYTES: Final = 1 << 16
"""What may wait for a peer without a session to read it, before nothing more is read of that peer."""
_DISCARDED_BYTES: Final = 4 << 20
"""Read and thrown away behind a last word, so that a client that still sends gets to read it."""
_LINGER_NS: Final = 2_000_000_000


class Secured(Protocol):
    """A socket over which a client encrypts what it says; its other calls are those of sockets."""

    stranger: bool
    """Whether the client has yet to say hello."""
    grew_ns: int
    """When something last came of the frame under way."""
    began_ns: int
    """When that began."""

    @property
    def under_way(self) -> bool:
        """Whether a frame has begun to come."""


class ZmtpConnection:
    """See the module's docstring."""

    def __init__(
        self,
        name: bytes,
        sock: socket.socket,
        limits: Limits,
        budget: Budget,
        memory: Memory | None = None,
        secured: Secured | None = None,
    ) -> None:
        """``secured``: what to speak over in the place of ``sock``, if clients are to encrypt (`curve`)."""
        self.name = name
        """What the gateway calls it: no other connection ever has the same."""
        self.fd = sock.fileno()
        self.queued = False
        """Whether the listener has it among those that may have a message."""
        self.uploading = False
        """Whether it waits for its turn to read a large frame."""
        self.mask = READABLE
        """What its owner waits for."""
        self.used_ns = monotonic_ns()
        """When something last came."""
        self._socket: Any = sock if secured is None else secured
        self._secured = secured
        self._limits = limits
        self._receiver = Receiver(limits.message_bytes, budget, memory)
        self._drained = False
        self._began_ns = self._sent_ns = self.used_ns
        self._ttl_ns = 0
        self._enveloped = False
        self._backlog = self._empty()
        self._broken = False
        self._closing_ns = 0
        """Since when nothing more is wanted of it; 0 before."""
        self._discarded = 0
        self._send_frames([wire.GREETING])

    def _empty(self) -> Backlog:
        return Backlog(BacklogLimits(0, self._limits.backlog_bytes, self._limits.backlog_messages))

    # --- receiving ---

    @property
    def more(self) -> bool:
        """Whether `next` might find something."""
        return not (self._receiver.starved and self._drained)

    @property
    def large(self) -> bool:
        """Whether so much is missing of a frame that it is to be read by turns."""
        return self._receiver.missing > LARGE_BYTES

    @property
    def stuck(self) -> bool:
        """Whether nothing is to be read before the peer has read more."""
        return self._receiver.stranger and self._backlog.bytes > STRANGER_BACKLOG_BYTES

    def welcome(self, known: bool) -> None:
        """Say whether the peer has a session."""
        self._receiver.stranger = not known
        if self._secured is not None:
            self._secured.stranger = not known

    def readable(self) -> None:
        """The kernel has something."""
        self._drained = False

    def next(self, buffer: memoryview) -> Event | None:
        """Return the next event, None if there is none yet; read at most once, to a buffer that all share.

        Raises `Ended` and `wire.Violation`.
        """
        if self._closing_ns:
            self._discard(buffer)
            return None
        receiver = self._receiver
        event = None if receiver.starved else receiver.next()
        if event is None and receiver.starved and not self._drained:
            idle = not receiver.under_way
            self._read(buffer)
            if idle:
                self._began_ns = self.used_ns
            event = receiver.next()
            receiver.keep()
        return event

    def _read(self, buffer: memoryview) -> None:
        receiver = self._receiver
        rest, target = receiver.rest(), receiver.target()
        if rest:
            buffer[: len(rest)] = rest
        room = buffer[len(rest) : READ_BYTES]
        try:
            if target is None:
                wanted, count = len(room), self._socket.recv_into(room)
            else:
                own = target[:SLICE_BYTES]
                wanted = len(own) + len(room)
                count = self._socket.recvmsg_into([own, room])[0]
        except BlockingIOError:
            self._drained = True
            return
        except OSError as error:
            raise Ended(str(error.strerror)) from None
        if not count:
            raise Ended("it closed the connection")
        self.used_ns = monotonic_ns()
        self._drained = count < wanted
        if target is not None:
            of_frame = min(count, len(own))
            receiver.filled(of_frame)
            count -= of_frame
        receiver.feed(buffer[: len(rest) + count])

    def _discard(self, buffer: memoryview) -> None:
        try:
            count = self._socket.recv_into(buffer)
        except BlockingIOError:
            self._drained = True
            return
        except OSError as error:
            raise Ended(str(error.strerror)) from None
        self._discarded += count
        if not count or self._discarded > _DISCARDED_BYTES:
            raise Ended("it was told why")

    # --- sending ---

    @property
    def backlog_bytes(self) -> int:
        """What waits for the peer to read it."""
        return self._backlog.bytes

    def send(self, parts: Sequence[Any], *, beyond: bool = False) -> Delivery:
        """Send a message; ``beyond``: even if more than is allowed waits already."""
        if self._broken or self._closing_ns:
            return Delivery.GONE
        if self._backlog.full and not beyond:
            return Delivery.FULL
        return self._send_frames(wire.frames(parts, self._enveloped))

    def opened(self, enveloped: bool) -> None:
        """The peer's handshake is over: end ours."""
        self._enveloped = enveloped
        self._send_frames([wire.ready()])

    def ping(self, context: bytes, ttl_ns: int) -> None:
        """Answer a PING, unless the peer gets a sign of life anyway."""
        self._ttl_ns = ttl_ns
        if not self._backlog and not self._broken:
            self._send_frames([wire.command(b"PONG", context)])

    def _send_frames(self, frames: list[Any]) -> Delivery:
        backlog = self._backlog
        if not backlog:
            self._sent_ns = monotonic_ns()
        try:
            backlog.send(self._socket, frames, sum([len(frame) for frame in frames]), False)
        except OSError:
            # What came before the break is still to be read: the end shows when there is no more of it.
            self._broken = True
            return Delivery.GONE
        return Delivery.SENT

    @property
    def waits(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._backlog)

    def flush(self) -> bool:
        """There is room again: send what waits; return whether nothing waits any more."""
        before = self._backlog.bytes
        try:
            self._backlog.flush(self._socket)
        except OSError:
            self._broken = True
            self._backlog = self._empty()
        if self._backlog.bytes < before:
            self._sent_ns = monotonic_ns()
        if self._closing_ns and not self._backlog and not self._broken:
            self._say_end()
        return not self._backlog

    # --- the end ---

    def wants(self) -> int:
        """Return what the kernel is to be watched for."""
        mask = 0 if self.uploading or self.stuck else READABLE
        return mask | WRITABLE if self._backlog else mask

    @property
    def timed(self) -> bool:
        """Whether `overdue` may come to say anything."""
        receiver = self._receiver
        return bool(
            self._closing_ns
            or self._ttl_ns
            or self._backlog
            or receiver.under_way
            or not receiver.opened
            or (self._secured is not None and self._secured.under_way)
        )

    def overdue(self, now_ns: int) -> str | None:
        """Return why the connection is to be given up, if it is."""
        limits, receiver = self._limits, self._receiver
        if self._closing_ns:
            return "it was told why" if now_ns - self._closing_ns > _LINGER_NS else None
        if not receiver.opened:
            return "it did not say who it is" if now_ns - self._began_ns > limits.handshake_ns else None
        if self._backlog and now_ns - self._sent_ns > limits.write_ns:
            return "it reads nothing"
        secured = self._secured
        if secured is not None and secured.under_way and not self.stuck:
            if now_ns - secured.grew_ns > limits.message_idle_ns:
                return "nothing more came of its message"
            if now_ns - secured.began_ns > limits.message_ns:
                return "its message took too long to come"
        if receiver.under_way and not self.stuck:
            if now_ns - self.used_ns > limits.message_idle_ns:
                return "nothing more came of its message"
            if now_ns - self._began_ns > limits.message_ns:
                return "its message took too long to come"
        if self._ttl_ns and now_ns - self.used_ns > self._ttl_ns:
            return "it is not heard of any more"
        return None

    def last_word(self, parts: Sequence[Any]) -> bool:
        """Send a message and take nothing more; return False if that is no use."""
        if not self._receiver.opened or self.send(parts, beyond=True) is not Delivery.SENT:
            return False
        self._closing_ns = monotonic_ns()
        self._receiver.close()
        if not self._backlog:
            self._say_end()
        return True

    def _say_end(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self._broken = True

    def close(self, epoll: select.epoll) -> None:
        """End the connection; what the kernel has taken still leaves."""
        self._receiver.close()
        epoll.unregister(self.fd)
        self._socket.close()
