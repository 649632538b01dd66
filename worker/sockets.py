"""A worker's sockets: a listener for gateways, and the connection to its controller, or to several."""

from __future__ import annotations

import errno
import os
import secrets
import socket
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from mainspring.messages.roles import Role, may_connect
from mainspring.transport import addresses
from mainspring.transport.addresses import Address
from mainspring.transport.bounds import Controllers, Limits, Listening, Waits
from mainspring.transport.controllers import addresses_of, connect
from mainspring.transport.greeting import Pass, present
from mainspring.transport.handshake import Identity
from mainspring.transport.hub import Hub
from mainspring.transport.link import Link
from mainspring.transport.listener import Listener
from mainspring.transport.local import PREFIX as LOCAL
from mainspring.worker.config import WorkerConfig

CONTROLLER_BACKLOG_BYTES = 64 << 20
SEND_LIMIT = 10_000
"""Messages that may wait for a peer that reads slowly; further ones are dropped and counted."""
WAITING_DESCRIPTORS = 4
"""Descriptors of a gateway that may have come with messages that are not worked off."""


class Sockets(NamedTuple):
    """A worker's connections; the hub waits for both, and for the outbox's bell."""

    hub: Waits
    controller: Controllers
    data: Listening
    """Listener for the tensors of gateways."""
    data_address: str
    """Address at which gateways connect to it."""
    greet: Callable[[str], Controllers]
    """Begins to connect to another controller; raises OSError if it is not an address."""


def open_sockets(hub: Hub, config: WorkerConfig) -> Sockets:
    """Listen for gateways, connect to the controller; raise `OSError` that names an unusable address."""
    shows = present(Role.WORKER, config.keys)
    limits = Limits(
        config.max_message_bytes,
        config.output_backlog_bytes,
        SEND_LIMIT,
        descriptors=WAITING_DESCRIPTORS,
        more_descriptors=True,
    )
    data = _data_listener(hub, config, limits, shows)
    # The link keeps nothing without a connection: what is sent belongs to the session that ends.
    greet = partial(connect, hub, begin=partial(_link, config, shows))
    where = _reachable(data.address, config.data_host, addresses_of(config.controller)[0])
    return Sockets(hub, greet(config.controller), data, where, greet)


def _data_listener(hub: Hub, config: WorkerConfig, limits: Limits, shows: Pass) -> Listener:
    name = config.name
    if config.data_address:
        return _listener(hub, config.data_address, limits, shows, name)
    if not config.controller.startswith(LOCAL):
        return _listener(hub, "tcp://127.0.0.1:*", limits, shows, name)
    folder = addresses_of(config.controller)[0].rpartition("/")[0]
    try:
        return _listener(hub, f"{folder}/{name}.sock", limits, shows, name)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        # A process of the same name is still there; the controller decides which of the two keeps the name.
        return _listener(hub, f"{folder}/{name}-{os.getpid()}.sock", limits, shows, name)


def _link(config: WorkerConfig, shows: Pass, hub: Hub, address: str) -> Link:
    """Begin to connect to a controller; raise `OSError` if it is not an address."""
    identity = f"worker:{config.name}:{secrets.token_hex(4)}".encode()
    limits = Limits(config.max_message_bytes, CONTROLLER_BACKLOG_BYTES, SEND_LIMIT)
    expects = Identity(Role.CONTROLLER)
    try:
        return Link(hub, address, limits, name=identity, shows=shows, expects=expects)
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


def _reachable(address: str, host: str, controller: str) -> str:
    """Return the address that gateways connect to, for the one that was bound.

    A wildcard is replaced by ``host``, else by this host's address on the way to the controller, which is
    likely to be on the way to the gateways too, else by this host's name.
    """
    bound = addresses.parse(address, listens=True)
    if not isinstance(bound, Address) or not (host or addresses.is_unspecified(bound.host)):
        return address
    return str(Address(host.strip("[]") or _towards(controller) or socket.gethostname(), bound.port))


def _towards(controller: str) -> str:
    """Return this host's numeric address on the way to a controller on another one, else an empty text."""
    try:
        where = addresses.parse(controller)
        source = addresses.source_of(addresses.resolve(where)) if isinstance(where, Address) else ""
    except (OSError, ValueError):
        return ""
    return "" if not source or addresses.is_loopback(source) else source
