"""Mainspring's own clients on the gateway's host, over framed connections as between processes.

They connect by a name that the gateway's ZeroMQ address gives (`transport.addresses`), past ZeroMQ and TCP,
and the kernel says of each end that the other is a process of its own user (`transport.greeting`). From the
hello on nothing differs: the front end for ZeroMQ's clients serves them, with sessions, tokens and bounds.

What ZeroMQ's listener bounds beside, this does too: clients, bytes of messages that have not wholly come,
which have to grow, what waits for a client that does not read, and for how long.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from time import monotonic_ns
from typing import Any, Final

from mainspring.gateway.config import GatewayConfig, milliseconds
from mainspring.gateway.descriptors import file_limit, local_share
from mainspring.gateway.driver import GatewayDriver
from mainspring.gateway.memory import Budget, Memory
from mainspring.gateway.zeromq import ZeroMqFrontEnd
from mainspring.messages.roles import Role
from mainspring.transport.addresses import NAME_PREFIX, PREFIX
from mainspring.transport.bounds import Delivery, Limits
from mainspring.transport.greeting import Pass
from mainspring.transport.hub import Hub
from mainspring.transport.listener import Listener

log = logging.getLogger("mainspring.gateway")

NAME = "local"
_SWEEP_NS: Final = 250_000_000
"""Nanoseconds between two looks at clients that do not read."""
_NEVER_NS: Final = 1 << 61


def serve_local(
    config: GatewayConfig,
    driver: GatewayDriver,
    hub: Hub,
    address: str,
) -> ZeroMqFrontEnd | None:
    """Serve clients of this host and user by the name of ``address``, where ZeroMQ is served.

    Returns None if that is switched off, or the name is taken: clients then use ZeroMQ.
    """
    if not config.local_clients:
        return None
    named = NAME_PREFIX + address.removeprefix(PREFIX)
    listen = partial(_listen, hub, named, config, driver.memory)
    try:
        return ZeroMqFrontEnd(config, driver, hub, name=NAME, listen=listen)
    except OSError as error:
        log.info("clients of this host connect over ZeroMQ: %s can't be had (%s)", named, error.strerror)
        return None


def _listen(
    hub: Hub, address: str, config: GatewayConfig, memory: Memory, front_end: ZeroMqFrontEnd
) -> LocalClients:
    return LocalClients(hub, address, config, front_end, memory)


class LocalClients:
    """Their connections, as the front end wants them."""

    def __init__(
        self, hub: Hub, address: str, config: GatewayConfig, owner: ZeroMqFrontEnd, memory: Memory
    ) -> None:
        """Listen; raise OSError if the name is taken. Large tensors are received in ``memory``."""
        limits = Limits(
            part_bytes=config.max_message_bytes,
            backlog_bytes=config.reply_backlog_bytes,
            backlog_messages=config.reply_backlog_messages,
            message_bytes=config.max_message_bytes,
            descriptors=1 if config.client_memory_bytes else 0,
            room=Budget(config.max_in_flight_bytes),
            memory=memory,
        )
        most = min(config.max_connections, local_share(file_limit()))
        self._listener = Listener(hub, address, {Role.CLIENT: limits}, Pass(Role.GATEWAY), most=most)
        self._listener.on_end = self._ended
        self._listener.on_violation = owner.violated
        self.address = self._listener.address
        self._hub = hub
        self._owner = owner
        self._write_ns = milliseconds(config.zeromq_write_timeout_ms)
        self._most_waiting_bytes = config.max_answer_bytes
        self._waiting: dict[bytes, tuple[int, int]] = {}
        """Clients that have replies to read: the bytes of those that they have taken, and since when."""
        hub.add(self)

    def pending(self) -> bool:
        """Return whether a message may have come."""
        return self._listener.pending()

    def receive(self) -> tuple[bytes, list[Any], str] | None:
        """Return the next message's sender and parts, with which nothing is wrong; clients take turns."""
        received = self._listener.receive()
        return None if received is None else (received[0], received[1], "")

    def send(self, name: bytes, parts: Sequence[Any], *, beyond: bool = False) -> Delivery:
        """Send a message; ``beyond``: even if more than is allowed waits for that client already."""
        delivery = self._listener.send(name, parts, beyond=beyond)
        if delivery is Delivery.SENT and self._listener.backlog_bytes(name):
            self._waits(name)
        return delivery

    def descriptor(self, name: bytes) -> int | None:
        """Return the oldest descriptor that came along with a client's messages, for the caller to close."""
        return self._listener.descriptor(name)

    def welcome(self, name: bytes, known: bool) -> None:
        """Do nothing: who gets as far as a hello is a process of the gateway's own user."""

    def dismiss(self, name: bytes, parts: Sequence[Any]) -> None:
        """Send a last message, though more than is allowed waits for that client already."""
        self.send(name, parts, beyond=True)

    # --- the hub's side ---

    def event(self, fd: int, mask: int) -> bool:
        """Never called: it has no descriptors of its own."""
        raise AssertionError(f"an event {mask} of descriptor {fd}, which is the listener's")

    def tick(self, now_ns: int) -> int:
        """End the connections of clients that have read nothing for too long."""
        for name, (before, since_ns) in list(self._waiting.items()):
            if not self._listener.backlog_bytes(name):
                del self._waiting[name]
            elif (taken := self._listener.taken_bytes(name)) != before:
                self._waiting[name] = taken, now_ns
            elif now_ns - since_ns > self._write_ns:
                self._cut_off(name, "it reads nothing of its replies")
        return now_ns + _SWEEP_NS if self._waiting else _NEVER_NS

    def close(self, until_ns: int) -> None:  # noqa: ARG002
        """Have nothing more to do; the hub closes the listener."""
        self._hub.drop(self)

    # --- inside ---

    def _waits(self, name: bytes) -> None:
        """Note that replies wait for a client; end the worst one's connection if all have too many."""
        if name not in self._waiting:
            self._waiting[name] = self._listener.taken_bytes(name), monotonic_ns()
            self._hub.due(monotonic_ns() + _SWEEP_NS)
        waiting = {each: self._listener.backlog_bytes(each) for each in self._waiting}
        if sum(waiting.values()) > self._most_waiting_bytes:
            worst = max(waiting, key=lambda each: waiting[each])
            self._cut_off(worst, "it reads too slowly, and all that waits to be read is too much")

    def _cut_off(self, name: bytes, why: str) -> None:
        bytes_left = self._listener.backlog_bytes(name)
        log.warning("ended the connection of a client of this host: %s (%d bytes wait)", why, bytes_left)
        self._listener.disconnect(name, why)

    def _ended(self, name: bytes) -> None:
        self._waiting.pop(name, None)
        self._owner.gone(name)
