"""The worker's connections: one to the controller, and one of each gateway, for tensors."""

from __future__ import annotations

import errno
import os
import secrets
import socket

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
"""Messages that may wait for a peer that reads slowly; further ones are dropped and counted."""
CONTROLLER_BACKLOG_BYTES = 64 << 20
UNSENT = {Delivery.GONE: "gateway: gone before its output", Delivery.FULL: "gateway: reads too slowly"}
"""Why an output could not be sent."""


class Sockets:
    """The link to the controller and the listener for gateways; one hub waits for both, and for the bell."""

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
        ``secret``: the run's; without one, only processes of this user on this host may connect.
        """
        self._hub = Hub()
        self._bell = bell
        shows = Pass(Role.WORKER, secret)
        try:
            limits = Limits(max_bytes, backlog_bytes, SEND_LIMIT)
            self.data = _data_listener(self._hub, data_address, controller, limits, shows, name)
            # The link keeps nothing without a connection: what is sent belongs to the session that ends.
            self.controller = _link(self._hub, controller, name, max_bytes, shows)
        except BaseException:
            self._hub.close()
            raise
        self.data_address = _reachable(self.data.address, data_host)
        self._ended = 0
        self._hub.watch(bell, self)

    def poll(self, timeout_ms: int) -> tuple[bool, bool, bool]:
        """Wait; return whether the bell rang, and whether the controller and gateways have sent something."""
        found = self._hub.wait(timeout_ms * 1_000_000)
        return self in found, self.controller in found, self.data in found

    def broken_gateways(self) -> int:
        """Return how many connections of gateways have ended, at either end, since the last call."""
        count = self.data.ended - self._ended
        self._ended = self.data.ended
        return count

    def close(self) -> None:
        """Close all connections; what waits to be sent has `LINGER_NS` to leave."""
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
        # A process of the same name is still there; the controller decides which of the two keeps the name.
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
