"""The worker's connections: one to the controller, and those of the gateways, for tensors."""

from __future__ import annotations

import errno
import os
import secrets
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from mainspring.messages.roles import Role, may_connect
from mainspring.transport.bounds import Delivery, Limits
from mainspring.transport.greeting import Pass
from mainspring.transport.handshake import Identity
from mainspring.transport.hub import Hub
from mainspring.transport.link import Link
from mainspring.transport.listener import Listener
from mainspring.transport.local import PREFIX as LOCAL

LINGER_NS = 500_000_000
SEND_LIMIT = 10_000
"""Messages that may wait for one peer that reads slowly; beyond, they are dropped and counted."""
CONTROLLER_BACKLOG_BYTES = 64 << 20
GONE = "gateway: gone before its output"
SLOW = "gateway: reads too slowly"


class Sockets:
    """All connections, waited for together with the executors' bell."""

    def __init__(
        self,
        name: str,
        controller: str,
        data_address: str,
        *,
        data_host: str,
        max_bytes: int,
        backlog_bytes: int,
        bell: int,
        secret: bytes | None = None,
    ) -> None:
        """Raise `OSError` that names the address if one can't be used.

        An empty ``data_address`` stands for a socket beside the controller's, or any port if that has none.
        ``secret``: the run's; without one, only this user's processes of this host are let in.
        """
        self._hub = Hub()
        self._bell = bell
        shows = Pass(Role.WORKER, secret)
        try:
            limits = Limits(max_bytes, backlog_bytes, SEND_LIMIT)
            self._data = _data_listener(self._hub, data_address, controller, limits, shows, name)
            # Nothing is kept for a controller that isn't there: it would be of a session that is over.
            self._controller = _link(self._hub, controller, name, max_bytes, shows)
        except BaseException:
            self._hub.close()
            raise
        self.data_address = _reachable(self._data.address, data_host)
        self._ended = 0
        self._hub.watch(bell, self)

    def poll(self, timeout_ms: int) -> tuple[bool, bool, bool]:
        """Wait; return whether the bell rang, the controller wrote, a gateway wrote."""
        found = self._hub.wait(timeout_ms * 1_000_000)
        return self in found, self._controller in found, self._data in found

    @property
    def connected(self) -> bool:
        """Whether there is a connection to the controller."""
        return self._controller.connected

    @property
    def opened(self) -> int:
        """The number of connections to the controller so far."""
        return self._controller.opened

    def from_controller(self, limit: int) -> Iterator[list[Any]]:
        """Yield at most ``limit`` messages that are there."""
        for _ in range(limit):
            message = self._controller.receive()
            if message is None:
                return
            yield message

    def from_data(self, limit: int) -> Iterator[list[Any]]:
        """Yield at most ``limit`` messages that are there: sender, message, tensors."""
        for _ in range(limit):
            received = self._data.receive()
            if received is None:
                return
            yield [received[0], *received[1]]

    def to_controller(self, data: bytes) -> bool:
        """Send without waiting; return whether it was possible."""
        return self._controller.send((data,)) is Delivery.SENT

    def to_gateway(self, receiver: bytes, header: bytes, frames: Sequence[memoryview]) -> str:
        """Send without waiting; return why that was not possible, or "".

        What waits for one gateway is bounded in messages and in bytes. The frames' memory may change as soon
        as this returns.
        """
        match self._data.send(receiver, (header, *frames), volatile=True):
            case Delivery.FULL:
                return SLOW
            case Delivery.GONE:
                return GONE
        return ""

    def broken_gateways(self) -> int:
        """Return how many connections of gateways have ended since the last call, whoever ended them."""
        count = self._data.ended - self._ended
        self._ended = self._data.ended
        return count

    def close(self) -> None:
        """Close all; what was sent still gets `LINGER_NS` to leave."""
        self._hub.close(LINGER_NS)


def _data_listener(
    hub: Hub, address: str, controller: str, limits: Limits, shows: Pass, name: str
) -> Listener:
    if address:
        return _listener(hub, address, limits, shows, name)
    if not controller.startswith(LOCAL):
        return _listener(hub, "tcp://127.0.0.1:*", limits, shows, name)
    folder = controller.rpartition("/")[0]
    try:
        return _listener(hub, f"{folder}/{name}.sock", limits, shows, name)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        # A process of the same name is still there: the controller settles whose name it is.
        return _listener(hub, f"{folder}/{name}-{os.getpid()}.sock", limits, shows, name)


def _link(hub: Hub, address: str, name: str, max_bytes: int, shows: Pass) -> Link:
    identity = f"worker:{name}:{secrets.token_hex(4)}".encode()
    try:
        limits = Limits(max_bytes, CONTROLLER_BACKLOG_BYTES, SEND_LIMIT)
        return Link(hub, address, limits, name=identity, shows=shows, expects=Identity(Role.CONTROLLER))
    except ValueError as error:
        raise OSError(errno.EINVAL, f"controller {address}: {error}") from error


def _listener(hub: Hub, address: str, limits: Limits, shows: Pass, name: str) -> Listener:
    accepted = {str(role): limits for role in may_connect(Role.WORKER) if role is not Role.CONTROLLER}
    try:
        return Listener(hub, address, accepted, shows, name.encode())
    except ValueError as error:
        raise OSError(errno.EINVAL, f"data_address {address}: {error}") from error
    except OSError as error:
        what = "is taken by another process" if error.errno == errno.EADDRINUSE else str(error.strerror)
        raise OSError(error.errno, f"data_address {address}: {what}") from error


def _reachable(address: str, host: str) -> str:
    """The address that gateways connect to, for the one that was bound."""
    if address.startswith(LOCAL):
        return address
    bound_host, _, port = address.removeprefix("tcp://").rpartition(":")
    if not host and bound_host not in ("0.0.0.0", "[::]"):
        return address
    return f"tcp://{host or socket.gethostname()}:{port}"
