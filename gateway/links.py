"""The sockets to the controller and to the workers' data sockets; nothing here ever waits."""

from __future__ import annotations

import os
import secrets
import socket as sockets
from collections.abc import Sequence
from typing import Any

import msgspec
import zmq

from mainspring.gateway.backlog import Backlog
from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.multipart import receive, send
from mainspring.messages.codec import encode

Context = zmq.Context[zmq.Socket[bytes]]
Socket = zmq.Socket[bytes]

_RECONNECT_MS = 50
_RECONNECT_MAX_MS = 1_000


class ControllerLink:
    """One DEALER to the controller."""

    def __init__(self, context: Context, config: GatewayConfig) -> None:
        """Begin to connect; raise OSError if the address is none."""
        self.socket = _dealer(context, config.controller_backlog_messages, config.max_message_bytes)
        # What can't be sent now is not kept for a controller to come: it would not know this gateway.
        self.socket.setsockopt(zmq.IMMEDIATE, 1)
        unique = secrets.token_hex(4)
        self.name = config.name or f"{sockets.gethostname()[:64]}-{os.getpid()}-{unique}"
        """What the gateway calls itself."""
        # ZeroMQ takes at most 255 bytes, and controllers at most so long a name.
        identity = f"gateway:{self.name}".encode()[:200] + f":{unique}".encode()
        self.socket.setsockopt(zmq.ROUTING_ID, identity)
        connect(self.socket, config.controller_address, "controller")

    def send(self, message: msgspec.Struct) -> bool:
        """Send a message; return False if there is no connection or no room."""
        try:
            send(self.socket, [encode(message)])
        except zmq.Again:
            return False
        return True

    def receive(self) -> zmq.Frame | None:
        """Return the next message's first frame; the controller sends no tensors."""
        frames = receive(self.socket)
        return None if frames is None else frames[0]


class WorkerLinks:
    """A DEALER to each worker's data socket."""

    def __init__(self, context: Context, config: GatewayConfig, poller: zmq.Poller) -> None:
        self._context = context
        self._config = config
        self._poller = poller
        self._sockets: dict[str, tuple[str, Socket]] = {}
        self._backlogs: dict[str, Backlog] = {}
        self._workers: dict[Socket, str] = {}

    def connect(self, worker: str, address: str) -> None:
        """Begin to connect to a worker; raise OSError if the address is none."""
        known = self._sockets.get(worker)
        if known is not None and known[0] == address:
            return
        self.disconnect(worker)
        socket = _dealer(self._context, self._config.input_backlog_messages, self._config.max_message_bytes)
        connect(socket, address, f"worker {worker}")
        self._sockets[worker] = (address, socket)
        self._backlogs[worker] = Backlog()
        self._workers[socket] = worker
        self._poller.register(socket, zmq.POLLIN)

    def disconnect(self, worker: str) -> None:
        """Close the worker's socket, if there is one, with what waits in it."""
        known = self._sockets.pop(worker, None)
        if known is not None:
            del self._backlogs[worker]
            del self._workers[known[1]]
            self._poller.unregister(known[1])
            known[1].close(0)

    def worker_of(self, socket: Socket) -> str | None:
        """Return whose socket it is; None once it is closed."""
        return self._workers.get(socket)

    def socket_of(self, worker: str) -> Socket | None:
        """Return the socket to a worker."""
        known = self._sockets.get(worker)
        return None if known is None else known[1]

    def send(self, worker: str, message: msgspec.Struct, frames: Sequence[Any]) -> bool:
        """Send a message with its tensors; return False if the worker is not known or there is no room."""
        known = self._sockets.get(worker)
        if known is None:
            return False
        # Not zmq.IMMEDIATE, which would do: with it, outputs are lost that came just before a break.
        parts = self._backlogs[worker].admit(encode(message), frames, self._config.input_backlog_bytes)
        if parts is None:
            return False
        try:
            send(known[1], *parts)
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        """Close every socket."""
        for worker in list(self._sockets):
            self.disconnect(worker)


def connect(socket: Socket, address: str, whom: str) -> None:
    """Begin to connect; close the socket and raise OSError if the address is none."""
    try:
        socket.connect(address)
    except (zmq.ZMQError, ValueError, TypeError) as error:
        socket.close(0)
        raise OSError(
            f"{address!r} is no address of the {whom} ({error}); write it like tcp://127.0.0.1:7401"
        ) from None


def _dealer(context: Context, backlog: int, max_message_bytes: int) -> Socket:
    socket = context.socket(zmq.DEALER)
    socket.set_hwm(backlog)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, max_message_bytes)
    socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
    return socket
