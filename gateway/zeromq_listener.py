"""ZeroMQ's clients: one ROUTER of libzmq, with a bound on everything that waits in it.

Where it listens says who may come in, because libzmq takes in the whole of a multipart message before a
program sees any of it:

* with ``curve_key`` at the TCP address, for clients whose key of CURVE is listed;
* else, with ``keyless_loopback``, at a TCP address of the loopback, for every program of this host;
* else at an ``ipc://`` address in a folder of this user alone, which stands for the TCP address
  (`transport.ipc`); nobody is served at the port, which is held so that nobody else takes it.
"""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from time import monotonic_ns
from typing import Any, Final, Protocol

import zmq

from mainspring.gateway.config import GatewayConfig, milliseconds
from mainspring.gateway.memory import Memory
from mainspring.gateway.zeromq_connections import STRANGER_BYTES, Connections
from mainspring.transport import addresses
from mainspring.transport.bounds import MAX_TENSORS, Delivery
from mainspring.transport.curve import IPC_PREFIX as IPC
from mainspring.transport.curve import KnownClients, ipc_path, make_folder, read_gateway_key, serves
from mainspring.transport.hub import Hub
from mainspring.transport.slab import LEAST_SHARED_BYTES

MOST_PARTS: Final = MAX_TENSORS + 1
"""Frames of a message that are taken."""
_WAITING_IN: Final = 32
"""Messages of one client that libzmq keeps until they are taken; beyond them it reads no more of it."""
_KEEPALIVE: Final = {
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 5,
    zmq.TCP_KEEPALIVE_INTVL: 5,
    zmq.TCP_KEEPALIVE_CNT: 3,
}
"""Settings of a client's connection, as `transport.addresses.prepare`: a failure of its host is noticed after
20 s."""
_TRACKED_BYTES: Final = 64 << 10
"""Size from which on libzmq says when it is done with a message; smaller ones are counted together."""
_SWEEP_NS: Final = 250_000_000
_NEVER_NS: Final = 1 << 61
_SLOW: Final = "too much waits to be read, because it reads too slowly"
_OWN_ROUTE: Final = (
    "a socket's own ZMQ_ROUTING_ID is not taken, since replies could reach another's; leave it unset"
)
_NOBLOCK: Final = int(zmq.NOBLOCK)
_MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)
_POLLIN: Final = int(zmq.POLLIN)


class Owner(Protocol):
    """The front end, as far as a listener and its connections need it (`zeromq_connections.Owner`)."""

    def gone(self, name: bytes) -> None:
        """A connection is over."""

    def busy(self, name: bytes) -> bool:
        """Say whether a connection waits for answers."""

    def flooded(self) -> None:
        """Count a connection that was cut because its host begins too many handshakes of CURVE."""

    def violated(self, why: str) -> Sequence[bytes]:
        """A client broke the protocol: return the message to send it."""


class _Client:
    """The way in which a client is answered, and the part of its answers that waits to be read."""

    __slots__ = ("acknowledged", "bytes", "enveloped", "progress_ns", "route", "small_bytes", "unread")

    def __init__(self, route: bytes, enveloped: bool) -> None:
        self.route = route
        self.enveloped = enveloped
        """True if an empty frame stands before each message, as a REQ has it."""
        self.bytes = 0
        """Bytes that libzmq has not sent, those of small messages at most."""
        self.small_bytes = 0
        """Bytes of the small messages since the last one that is tracked."""
        self.unread: deque[tuple[zmq.MessageTracker, int]] = deque()
        self.acknowledged = 0
        self.progress_ns = 0
        """Instant at which something was last sent of what waits."""


class ZeroMqListener:
    """See the module's docstring."""

    def __init__(self, hub: Hub, config: GatewayConfig, owner: Owner, *, most: int, memory: Memory) -> None:
        """Listen for at most ``most`` clients at a time; large tensors are kept in ``memory``.

        Raises OSError if that can't be.
        """
        self._hub, self._config, self._memory = hub, config, memory
        self._owner = owner
        self._clients: dict[bytes, _Client] = {}
        self._known: set[bytes] = set()
        """Those with a session."""
        self._waiting: dict[bytes, _Client] = {}
        """Those who may have something to read."""
        self._waiting_bytes = 0
        self._maybe = True
        """True if a message may have come since it was last looked."""
        self._held: list[socket.socket] = []
        self._path: Path | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self._socket, known = self._made()
            self._connections = Connections(self._context, self._socket, self, most=most, known=known)
            self.address = self._listen()
        except BaseException:
            self._context.destroy(0)
            self._release()
            raise
        self._fds = (self._socket.fileno(), *self._connections.descriptors)
        hub.add(self)
        for fd in self._fds:
            hub.own(fd, self)
            hub.epoll.register(fd, 1)
        self.look()

    def _made(self) -> tuple[zmq.Socket[bytes], KnownClients | None]:
        config = self._config
        made = self._context.socket(zmq.ROUTER)
        # Raises for a client that is gone or reads nothing, in the place of dropping the message.
        made.setsockopt(zmq.ROUTER_MANDATORY, 1)
        made.setsockopt(zmq.ROUTER_HANDOVER, 0)
        made.setsockopt(zmq.MAXMSGSIZE, config.max_message_bytes)
        made.setsockopt(zmq.RCVHWM, _WAITING_IN)
        made.setsockopt(zmq.SNDHWM, config.reply_backlog_messages)
        made.setsockopt(zmq.BACKLOG, addresses.BACKLOG)
        made.setsockopt(zmq.HANDSHAKE_IVL, max(1, round(config.zeromq_handshake_timeout_ms)))
        made.setsockopt(zmq.ZAP_DOMAIN, b"mainspring")
        made.setsockopt(zmq.IPC_FILTER_UID, os.geteuid())
        for option, value in _KEEPALIVE.items():
            made.setsockopt(option, value)
        if not config.curve_key:
            return made, None
        made.curve_secretkey = read_gateway_key(config.curve_key)
        made.curve_server = True
        return made, KnownClients(config.curve_key)

    def _listen(self) -> str:
        """Bind; return the TCP address that clients know."""
        config = self._config
        where = addresses.parse_tcp(config.address, listens=True)
        family, target = addresses.resolve(where, socket.AI_PASSIVE)
        if not config.curve_key and not addresses.is_loopback(target[0]):
            raise OSError(
                errno.EACCES,
                "over TCP beyond this host every client needs a key of CURVE: set [gateway] curve_key "
                "(`mainspring keys curve` makes one), or an address of the loopback",
            )
        if config.curve_key or config.keyless_loopback:
            self._socket.setsockopt(zmq.IPV6, family == addresses.IPV6)
            self._bind(str(addresses.Address(target[0], target[1] or "*")))  # type: ignore[arg-type]
            bound = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
            self._connections.port = int(bound.rpartition(":")[2])
            public = addresses.Address(where.host, self._connections.port)
            if (path := ipc_path(public)) is not None and serves(path):
                # A gateway that was killed has left it, and clients would wait there.
                path.unlink()
            return str(public)
        public = addresses.Address(where.host, self._hold(family, target))
        path = ipc_path(public)
        assert path is not None, f"{public} is not of the loopback"
        make_folder(path)
        self._path = path
        self._bind(f"{IPC}{path}")
        return str(public)

    def _hold(self, family: int, target: Any) -> int:
        """Hold a port of TCP, at which nobody listens; return it. Raises OSError if another has it."""
        port = socket.socket(family, socket.SOCK_STREAM)
        name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._held += [port, name]
        try:
            port.bind(target)
        except OSError:
            # It may be in use by connections alone that have ended; then only the name tells gateways apart.
            port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            port.bind(target)
        number: int = port.getsockname()[1]
        name.bind(f"\0mainspring-zeromq/{target[0]}/{number}")
        return number

    def _bind(self, address: str) -> None:
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            raise OSError(error.errno, os.strerror(error.errno or 0)) from None

    # --- the front end's side ---

    def pending(self) -> bool:
        """Say whether a message has come; libzmq says so in its descriptor once only."""
        if self._maybe:
            self._maybe = bool(int(self._socket.get(zmq.EVENTS)) & _POLLIN)
        return self._maybe

    def receive(self) -> tuple[bytes, list[Any], str] | None:
        """Return the next message's sender and parts, and what is wrong with it; None if there is none.

        Of a message with which something is wrong, the first part at most is there. Clients take turns.
        """
        while True:
            try:
                route, *frames = self._socket.recv_multipart(_NOBLOCK, copy=False)
            except zmq.Again:
                self._maybe = False
                return None
            name = self._connections.name_of(frames[0]) if frames else None
            if name is None:
                continue
            client = self._clients.get(name)
            if client is None:
                # A REQ says nothing without an empty frame before it.
                client = _Client(route.bytes, len(frames) > 1 and not len(frames[0].buffer))
                self._clients[name] = client
            if client.route[0]:
                self.send(name, self._owner.violated(_OWN_ROUTE))
            else:
                return (name, *self._taken(name, frames[client.enveloped :]))

    def _taken(self, name: bytes, frames: Sequence[zmq.Frame]) -> tuple[list[Any], str]:
        views = [frame.buffer for frame in frames]
        size = sum(map(len, views))
        most = self._config.max_message_bytes if name in self._known else STRANGER_BYTES
        if not views or len(views) > MOST_PARTS:
            wrong = f"a message has 1 to {MOST_PARTS} frames"
        elif size > most:
            wrong = f"a message of {size:,} bytes; it may have {most:,}"
        else:
            return [self._kept(view) for view in views], ""
        return [bytes(view) for view in views[:1] if len(view) <= STRANGER_BYTES], wrong

    def _kept(self, view: memoryview) -> Any:
        """Return a part's bytes, a large one's where workers of this host read them."""
        if len(view) < LEAST_SHARED_BYTES:
            return bytes(view)
        place = self._memory.share(len(view))
        if place is None:
            return view
        place[:] = view
        return place

    def send(self, name: bytes, parts: Sequence[Any]) -> Delivery:
        """Send a message, unless too much waits for that client already."""
        client = self._clients.get(name)
        if client is None:
            return Delivery.GONE
        now_ns = monotonic_ns()
        if client.unread:
            self._settle(client, now_ns)
        if client.bytes > self._config.reply_backlog_bytes:
            return Delivery.FULL
        # Whatever comes meanwhile is taken note of in this call, and not said by the descriptor.
        self._maybe = True
        try:
            self._socket.send(client.route, _MORE)
        except zmq.Again:
            return Delivery.FULL
        except zmq.ZMQError:
            return Delivery.GONE
        self._send_parts(name, client, parts, now_ns)
        return Delivery.SENT

    def _send_parts(self, name: bytes, client: _Client, parts: Sequence[Any], now_ns: int) -> None:
        sizes = [len(part) for part in parts]
        size, last = sum(sizes), len(parts) - 1
        client.small_bytes += size
        client.bytes += size
        self._waiting_bytes += size
        tracked = client.small_bytes >= _TRACKED_BYTES
        if client.enveloped:
            self._socket.send(b"", _MORE)
        for at, part in enumerate(parts):
            flags = _MORE if at < last else _NOBLOCK
            if tracked and at == last:
                frame = zmq.Frame(part, track=True, copy=False, copy_threshold=0)
                client.unread.append(
                    (self._socket.send(frame, flags, copy=False, track=True), client.small_bytes)
                )
            else:
                self._socket.send(part, flags, copy=sizes[at] < _TRACKED_BYTES)
        if tracked:
            client.small_bytes = 0
            self._wait(name, client, now_ns)

    def descriptor(self, name: bytes) -> int | None:  # noqa: ARG002
        """Return None: no descriptors come along with messages of ZeroMQ's."""
        return None

    def welcome(self, name: bytes, known: bool) -> None:
        """Say whether a client has a session, and so may send messages of any size."""
        (self._known.add if known else self._known.discard)(name)
        self._connections.welcome(name, known)

    def dismiss(self, name: bytes, parts: Sequence[Any]) -> None:  # noqa: ARG002
        """End a client's connection: libzmq has no room for another message to it."""
        self._connections.cut(name, _SLOW)

    # --- the connections' side ---

    def gone(self, name: bytes) -> None:
        """A connection is over."""
        self._known.discard(name)
        self._waiting.pop(name, None)
        client = self._clients.pop(name, None)
        if client is not None:
            self._waiting_bytes -= client.bytes
        self._owner.gone(name)

    def busy(self, name: bytes) -> bool:
        """Return whether a connection waits for answers."""
        return self._owner.busy(name)

    def flooded(self) -> None:
        """Have a connection counted that was cut because its host begins too many handshakes."""
        self._owner.flooded()

    # --- the hub's side ---

    def event(self, fd: int, mask: int) -> bool:  # noqa: ARG002
        """Something has come: take note of connections; `pending` says whether there is a message."""
        self.look()
        return False

    def look(self) -> None:
        """Take what there is of connections."""
        self._connections.look()
        self._maybe = True
        self._hub.due(self._connections.due_ns(monotonic_ns()))

    def tick(self, now_ns: int) -> int:
        """Cut clients that have read nothing for too long, and strangers that send too much."""
        self.look()
        due_ns = self._connections.tick(now_ns)
        write_ns = milliseconds(self._config.zeromq_write_timeout_ms)
        for name, client in list(self._waiting.items()):
            self._settle(client, now_ns)
            acknowledged = self._connections.acknowledged(name)
            if acknowledged != client.acknowledged:
                client.acknowledged, client.progress_ns = acknowledged, now_ns
            if not client.unread:
                del self._waiting[name]
            elif now_ns - client.progress_ns > write_ns:
                self._connections.cut(name, "it reads nothing of its replies")
        return min(due_ns, now_ns + _SWEEP_NS if self._waiting else _NEVER_NS)

    def close(self, until_ns: int) -> None:
        """Close all connections; what waits to be sent has until then to leave."""
        for fd in self._fds:
            self._hub.disown(fd)
            self._hub.epoll.unregister(fd)
        self._socket.disable_monitor()
        self._connections.close()
        self._socket.close(max(0, until_ns - monotonic_ns()) // 1_000_000)
        self._context.term()
        self._release()
        self._hub.drop(self)

    # --- inside ---

    def _settle(self, client: _Client, now_ns: int) -> None:
        """Take off what libzmq is done with."""
        while client.unread and client.unread[0][0].done:
            size = client.unread.popleft()[1]
            client.bytes -= size
            self._waiting_bytes -= size
            client.progress_ns = now_ns

    def _wait(self, name: bytes, client: _Client, now_ns: int) -> None:
        """Note that replies may wait for a client; cut the worst one if all have too many."""
        if name not in self._waiting:
            self._waiting[name] = client
            client.progress_ns = now_ns
            self._hub.due(now_ns + _SWEEP_NS)
        if self._waiting_bytes > self._config.max_answer_bytes:
            for each in self._waiting.values():
                self._settle(each, now_ns)
            if self._waiting_bytes > self._config.max_answer_bytes:
                worst = max(self._waiting, key=lambda each: self._waiting[each].bytes)
                self._connections.cut(worst, _SLOW)

    def _release(self) -> None:
        for each in self._held:
            each.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
