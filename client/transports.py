"""The transports between a client and a gateway: ZeroMQ, or a framed connection on the same host.

Over either go the same messages. The local way is a framed connection like those between processes
(`transport`), found by a name that the gateway's address gives: the kernel says of each end that the other is
a process of its own user. ZeroMQ has a thread of its own in each client, and two more wake-ups a message.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from enum import Enum
from math import ceil
from time import monotonic_ns
from typing import Any, Final, NamedTuple, Protocol

import zmq

from mainspring.messages.roles import Role
from mainspring.transport import addresses, curve
from mainspring.transport.bounds import Delivery, Limits
from mainspring.transport.curve import ClientKeys
from mainspring.transport.greeting import Pass
from mainspring.transport.handshake import Identity
from mainspring.transport.hub import Hub
from mainspring.transport.link import Link

# Plain integers: combining pyzmq's enumerations costs some microseconds for each frame.
_NOBLOCK: Final = int(zmq.NOBLOCK)
_NOBLOCK_MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)
_POLLIN: Final = int(zmq.POLLIN)

_HEARTBEAT_MS: Final = 2_000
_GREETING_NS: Final = 1_000_000_000
"""Time within which a gateway on this host must greet; then ZeroMQ is tried."""
_COPIED_BYTES: Final = 1 << 16
"""Size below which callers may change a buffer once it is sent."""
_ANY_BYTES: Final = 1 << 40
"""The gateway is trusted with the size of what it sends, as it is over ZeroMQ."""
_WOKEN: Final = object()


class Event(Enum):
    """An event of a transport."""

    OPENED = "opened"
    """The gateway is there: say hello."""
    ENDED = "ended"
    FAILED = "failed"
    """There is no gateway that way after all."""
    RETRIES = "retries"
    """Nobody answers yet."""
    DENIED = "denied"
    """The gateway does not know this client's key of CURVE, or there is none."""


_OTHER_MECHANISM: Final = int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
_MEANINGS: Final = {
    int(zmq.EVENT_HANDSHAKE_SUCCEEDED): Event.OPENED,
    int(zmq.EVENT_DISCONNECTED): Event.ENDED,
    int(zmq.EVENT_CONNECT_RETRIED): Event.RETRIES,
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH): Event.DENIED,
    int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL): Event.DENIED,
}


class Transport(Protocol):
    """See the module's docstring."""

    is_local: bool

    def poll(self, timeout_ms: float) -> bool:
        """Wait until there is something; return whether there is."""

    def descriptors(self) -> list[int]:
        """Return the descriptors that a caller's own poller is to wait for."""

    def ready(self) -> bool:
        """Say whether there is something, to be asked before each wait for `descriptors`."""

    def send(self, encoded: bytes, views: Sequence[Any]) -> bool:
        """Send a message and its tensors, or keep it; return False if too many are kept."""

    def send_descriptor(self, encoded: bytes, descriptor: int) -> bool:
        """Send a message with a descriptor at once; return False if that can't be, or not now."""

    def receive(self) -> list[Any]:
        """Return the next message's parts, none if there is none."""

    def grew(self) -> bool:
        """Say whether anything has come since this was last asked, if only a part of a message."""

    def follow(self) -> Event | None:
        """Return what happened since, once there is nothing to receive."""

    def close(self) -> None:
        """Close it; what waits to be sent is dropped."""


class ZeroMqSettings(NamedTuple):
    """The address of a gateway, and the bounds of a connection to it."""

    address: str
    send_queue: int
    """Messages that may wait to be sent."""
    longest_retry_ms: int
    """Longest time between two attempts to connect."""
    wakes: int | None
    """A descriptor that ends `Transport.poll`, too."""
    vigilance: int = 1
    """Divisor of the times that the gateway may be silent."""
    keys: ClientKeys | None = None
    """The keys of CURVE; None: what is said over ZeroMQ is not encrypted."""

    def in_folder(self) -> str:
        """Return the address of the gateway's socket in this user's folder; empty if there is none there."""
        try:
            path = None if self.keys is not None else curve.ipc_path(addresses.parse_tcp(self.address))
        except ValueError:
            return ""
        return f"{curve.IPC_PREFIX}{path}" if path is not None and curve.serves(path) else ""


class ZeroMqTransport:
    """A DEALER, which connects again by itself."""

    is_local = False

    def __init__(self, settings: ZeroMqSettings, context: zmq.Context[zmq.Socket[bytes]] | None) -> None:
        """Begin to connect; raise `zmq.ZMQError` if it is not an address."""
        self.unknown_host = ""
        """Error in the host's name, if it was unknown."""
        self._owned_context = zmq.Context() if context is None else None
        self.socket: zmq.Socket[bytes] = (context or self._owned_context or zmq.Context()).socket(zmq.DEALER)
        self.socket.set_hwm(settings.send_queue)
        # Not zmq.IMMEDIATE: with it, a break throws away replies that had arrived and were not yet read.
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS // settings.vigilance)
        self.socket.setsockopt(zmq.RECONNECT_IVL, 50)
        self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, settings.longest_retry_ms)
        self._monitor: zmq.Socket[bytes] = self.socket.get_monitor_socket(sum(_MEANINGS))
        if self._is_ipv6(settings.address):
            self.socket.setsockopt(zmq.IPV6, 1)
        self._poller = zmq.Poller()
        self._poller.register(self.socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        if settings.wakes is not None:
            self._poller.register(settings.wakes, zmq.POLLIN)
        if settings.keys is not None:
            self.socket.curve_publickey, self.socket.curve_secretkey = settings.keys[:2]
            self.socket.curve_serverkey = settings.keys.gateway
        self.address = settings.in_folder() or settings.address
        try:
            self.socket.connect(self.address)
        except zmq.ZMQError:
            self.close()
            raise

    def _is_ipv6(self, address: str) -> bool:
        """Say whether ZeroMQ is to use IPv6, which it would otherwise prefer for names that have both."""
        try:
            where = addresses.parse_tcp(address)
            family, _ = addresses.resolve(where)
        except socket.gaierror as error:
            self.unknown_host = f"there is no host {where.host!r} ({error.strerror})"
            return False
        except (OSError, ValueError):
            return False
        return family == addresses.IPV6

    def poll(self, timeout_ms: float) -> bool:
        """Wait in whole milliseconds."""
        return bool(self._poller.poll(ceil(timeout_ms)))

    def descriptors(self) -> list[int]:
        """Return descriptors that show only that something has happened; `ready` says what."""
        return [self.socket.fileno(), self._monitor.fileno()]

    def ready(self) -> bool:
        """Ask both sockets."""
        return any(int(each.get(zmq.EVENTS)) & _POLLIN for each in (self.socket, self._monitor))

    def send(self, encoded: bytes, views: Sequence[Any]) -> bool:
        """Give the frames to ZeroMQ; large ones are not copied."""
        try:
            self.socket.send(encoded, _NOBLOCK_MORE if views else _NOBLOCK)
            for index, view in enumerate(views, 1):
                more = index < len(views)
                self.socket.send(view, _NOBLOCK_MORE if more else _NOBLOCK, copy=False)
        except zmq.Again:
            return False
        return True

    def send_descriptor(self, encoded: bytes, descriptor: int) -> bool:  # noqa: ARG002
        """Return False: no descriptor comes along with a message of ZeroMQ's."""
        return False

    def receive(self) -> list[Any]:
        """Return the next message's frames; checking first costs a third of a failed attempt."""
        frames: list[zmq.Frame] = []
        if not _readable(self.socket):
            return frames
        try:
            while not frames or frames[-1].more:
                frames.append(self.socket.recv(_NOBLOCK, copy=False))
        except zmq.Again:
            pass
        return [frame.buffer for frame in frames]

    def grew(self) -> bool:
        """Say that it has: ZeroMQ has heartbeats of its own."""
        return True

    def follow(self) -> Event | None:
        """Take one event of the link."""
        if not _readable(self._monitor):
            return None
        parts = self._monitor.recv_multipart(_NOBLOCK)
        # zmq.utils.monitor would do the same, and brings asyncio along.
        event, value = struct.unpack("=Hi", parts[0])
        if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value != _OTHER_MECHANISM:
            return Event.RETRIES
        return _MEANINGS[event]

    def close(self) -> None:
        """Close the sockets, and the context if it is this way's own."""
        if not self.socket.closed:
            self.socket.disable_monitor()
            self._monitor.close(0)
            self.socket.close(0)
        if self._owned_context is not None:
            self._owned_context.term()
            self._owned_context = None


def _readable(socket: zmq.Socket[bytes]) -> bool:
    return bool(zmq.zmq_poll([(socket, _POLLIN)], 0))


class LocalTransport:
    """A framed connection to a process of this user on this host, until it ends."""

    is_local = True

    def __init__(self, where: addresses.Named, settings: ZeroMqSettings) -> None:
        """Begin the handshake; raise OSError if no process of this user listens there."""
        self._hub = Hub()
        limits = Limits(_ANY_BYTES, _ANY_BYTES, settings.send_queue, _ANY_BYTES)
        there = Identity(Role.GATEWAY)
        self._link = Link(self._hub, str(where), limits, shows=Pass(Role.CLIENT), expects=there)
        self._until_ns = monotonic_ns() + _GREETING_NS
        self._opened = False
        self._received = 0
        self._woken = False
        """True if ``wakes`` was written to since the last `poll`: the hub says so only once."""
        if self._link.failure:
            self._hub.close()
            raise OSError(self._link.failure)
        if settings.wakes is not None:
            self._hub.watch(settings.wakes, _WOKEN)

    def poll(self, timeout_ms: float) -> bool:
        """Wait precisely."""
        timeout_ns = round(timeout_ms * 1e6)
        if not self._opened:
            timeout_ns = min(timeout_ns, max(0, self._until_ns - monotonic_ns()))
        found = self._look(0 if self._woken else timeout_ns)
        woken, self._woken = self._woken, False
        return found or woken or self._changed()

    def descriptors(self) -> list[int]:
        """Return the one descriptor that is readable when something has happened."""
        return [self._hub.epoll.fileno()]

    def ready(self) -> bool:
        """Check without waiting."""
        return self._link.pending() or self._look(0) or self._woken or self._changed()

    def send(self, encoded: bytes, views: Sequence[Any]) -> bool:
        """Send from the caller's memory; what does not leave at once is kept, small tensors as copies."""
        parts = [
            each if (each := memoryview(view)).nbytes >= _COPIED_BYTES else each.tobytes() for view in views
        ]
        return self._link.send((encoded, *parts)) is not Delivery.FULL

    def send_descriptor(self, encoded: bytes, descriptor: int) -> bool:
        """Send a message with a descriptor, unless something waits to be sent."""
        return self._link.send_descriptor((encoded,), descriptor) is Delivery.SENT

    def receive(self) -> list[Any]:
        """Return the next message's parts: bytes, and memory of their own for large ones."""
        message = self._link.receive()
        if message is None and self._link.connected and self._look(0):
            message = self._link.receive()
        return message or []

    def grew(self) -> bool:
        """Say whether bytes have come."""
        before, self._received = self._received, self._link.received
        return self._received != before

    def follow(self) -> Event | None:
        """Return whether the handshake is complete, or the connection over."""
        if not self._opened:
            if self._link.connected:
                self._opened = True
                return Event.OPENED
            self._look(0)
            if self._link.connected:
                self._opened = True
                return Event.OPENED
            return Event.FAILED if self._over() else None
        return None if self._link.connected else Event.ENDED

    def close(self) -> None:
        """Close the connection."""
        if not self._hub.epoll.closed:
            self._hub.close()

    def _look(self, timeout_ns: int) -> bool:
        """Wait for the sockets; return whether something came, and remember whether the caller is woken."""
        found = self._hub.wait(timeout_ns)
        if _WOKEN in found:
            self._woken = True
        return bool(found)

    def _over(self) -> bool:
        return bool(self._link.failure) or monotonic_ns() >= self._until_ns

    def _changed(self) -> bool:
        """Say whether `follow` would return something."""
        return self._link.connected is not self._opened or (not self._opened and self._over())


def local_transport(settings: ZeroMqSettings) -> LocalTransport | None:
    """Return the way to a gateway of this user on this host at an address; None if none listens there."""
    try:
        where = addresses.parse_tcp(settings.address)
        return LocalTransport(addresses.Named(*where), settings)
    except (OSError, ValueError):
        return None


QUIET_NS: Final = 2_000_000_000
"""Time without a message after which the gateway is pinged."""
PATIENCE_NS: Final = 4_000_000_000
"""Time within which the gateway must answer the ping."""


class Heartbeat:
    """The heartbeat of one connection; all instants are on the client's monotonic clock."""

    def __init__(self, now_ns: int, vigilance: int = 1) -> None:
        """``vigilance`` divides the times that the gateway may be silent."""
        self._quiet_ns, self._patience_ns = QUIET_NS // vigilance, PATIENCE_NS // vigilance
        self._heard_ns = now_ns
        self._asked_ns: int | None = None

    def heard(self, now_ns: int) -> None:
        """Note that something came."""
        self._heard_ns = now_ns
        self._asked_ns = None

    def due(self, now_ns: int) -> bool:
        """Return whether the gateway is to be asked now."""
        return self._asked_ns is None and now_ns - self._heard_ns >= self._quiet_ns

    def asked(self, now_ns: int) -> None:
        """Note that it was asked."""
        self._asked_ns = now_ns

    def silent(self, now_ns: int) -> bool:
        """Return whether it was asked and has not answered in time.

        To be asked once all that came has been taken: the client itself may have stood still.
        """
        return self._asked_ns is not None and now_ns - self._asked_ns >= self._patience_ns

    def next_ns(self) -> int:
        """Return when `due` or `silent` becomes true if nothing comes."""
        if self._asked_ns is None:
            return self._heard_ns + self._quiet_ns
        return self._asked_ns + self._patience_ns
