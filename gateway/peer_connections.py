"""The connections to the controller and to the workers' data addresses; nothing here ever waits."""

from __future__ import annotations

import os
import secrets
import socket as sockets
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.memory import Memory
from mainspring.gateway.shared import Shared
from mainspring.messages.codec import encode
from mainspring.messages.peers import Output
from mainspring.messages.roles import Role
from mainspring.transport.bounds import Delivery, Limits
from mainspring.transport.greeting import Pass, present
from mainspring.transport.handshake import Identity
from mainspring.transport.hub import Hub
from mainspring.transport.link import Link

CONTROLLER_BACKLOG_BYTES = 256 << 20
OnViolation = Callable[[str], object]


class ControllerLink:
    """The connection to the controller."""

    def __init__(self, hub: Hub, config: GatewayConfig, address: str, on_violation: OnViolation) -> None:
        """Begin to connect; raise OSError if it is not an address, or secret or keys can't be used."""
        shows = present(Role.GATEWAY, config.secret_file, config.keys)
        named = config.name or (shows.keys.name_of(Role.GATEWAY) if shows.keys is not None else "")
        unique = secrets.token_hex(4)
        self.name = named or f"{sockets.gethostname()[:64]}-{os.getpid()}-{unique}"
        """What the gateway calls itself, at this controller."""
        # A connection's name has at most 255 bytes, and a gateway's as many as controllers take.
        identity = f"gateway:{self.name}".encode()[:200] + f":{unique}".encode()
        limits = Limits(
            config.max_message_bytes, CONTROLLER_BACKLOG_BYTES, config.controller_backlog_messages
        )
        # What can't be sent now is not kept for a controller to come: it would not know this gateway.
        there = Identity(Role.CONTROLLER)
        self.port = connect(hub, address, limits, shows, there, name=identity)
        self.port.on_violation = on_violation

    def send(self, message: msgspec.Struct) -> bool:
        """Send a message; return False if there is no connection or no room."""
        return self.port.send((encode(message),)) is Delivery.SENT

    def receive(self) -> Any:
        """Return the next message's bytes, None if there is none; the controller sends no tensors."""
        parts = self.port.receive()
        return None if parts is None else parts[0]


class WorkerLinks:
    """A connection to each worker's data address, where the worker of that name must prove to be."""

    def __init__(
        self, hub: Hub, config: GatewayConfig, on_violation: OnViolation, memory: Memory | None = None
    ) -> None:
        """Raise OSError if secret or keys can't be used; workers of this host may read ``memory``."""
        self._hub = hub
        self._shows = present(Role.GATEWAY, config.secret_file, config.keys)
        self._limits = Limits(
            config.max_message_bytes,
            config.input_backlog_bytes,
            config.input_backlog_messages,
            descriptors=1,
        )
        self._memory = memory or Memory(0)
        self._on_violation = on_violation
        self._links: dict[str, tuple[str, Link, Shared]] = {}
        self._workers: dict[object, str] = {}

    def connect(self, worker: str, address: str) -> None:
        """Begin to connect to a worker; raise OSError if it is not an address."""
        known = self._links.get(worker)
        if known is not None and known[0] == address:
            return
        self.disconnect(worker)
        there = Identity(Role.WORKER, worker.encode())
        link = connect(self._hub, address, self._limits, self._shows, there, keeps=True)
        link.on_violation = self._on_violation
        self._links[worker] = (address, link, Shared(link, self._memory))
        self._workers[link] = worker

    def disconnect(self, worker: str) -> None:
        """Close the worker's connection, if there is one, with what waits for it."""
        known = self._links.pop(worker, None)
        if known is not None:
            del self._workers[known[1]]
            known[1].close(0)

    def renew_slab(self) -> None:
        """Have another slab, which workers are offered over new connections."""
        self._memory.renew()
        for worker, (address, link, _) in list(self._links.items()):
            if link.local:
                self.disconnect(worker)
                self.connect(worker, address)

    def worker_of(self, port: object) -> str | None:
        """Return whose connection it is; None once it is closed."""
        return self._workers.get(port)

    def link_of(self, worker: str) -> Link | None:
        """Return the connection to a worker."""
        known = self._links.get(worker)
        return None if known is None else known[1]

    def send(self, worker: str, message: msgspec.Struct, frames: Sequence[Any]) -> bool:
        """Send a message with its tensors; return False if the worker is not known or there is no room."""
        known = self._links.get(worker)
        return known is not None and known[2].send(message, frames) is Delivery.SENT

    def outputs(self, worker: str, parts: Sequence[Any]) -> tuple[Output, tuple[Any, ...]] | None:
        """Return the outputs in a message of a worker; None if it has none. Raises `BadMessage`."""
        known = self._links.get(worker)
        return None if known is None else known[2].receive(parts)

    def settle(self) -> None:
        """Tell the workers what of their memory is in use no more; now and then is enough."""
        for _, _, shared in self._links.values():
            shared.settle()


def connect(
    hub: Hub,
    address: str,
    limits: Limits,
    shows: Pass,
    there: Identity,
    *,
    name: bytes = b"",
    keeps: bool = False,
) -> Link:
    """Begin to connect to whom must be there; raise OSError if it is not an address."""
    try:
        return Link(hub, address, limits, name=name, keeps=keeps, shows=shows, expects=there)
    except ValueError as error:
        whom = f"{there.role} {there.name.decode()}".strip()
        raise OSError(f"{address!r} is not an address of the {whom}: {error}") from None
