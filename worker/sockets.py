"""A worker's connections, as its network thread sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from mainspring.transport.bounds import Delivery
from mainspring.transport.hub import Hub


class ToController(Protocol):
    """The connection to the controller: a `Link`."""

    opened: int

    @property
    def connected(self) -> bool:
        """Say whether there is a connection."""

    def send(self, parts: Sequence[Any], keeps: bool = True) -> Delivery:
        """Same as `Link.send`."""

    def receive(self) -> list[Any] | None:
        """Same as `Link.receive`."""

    def close(self, until_ns: int) -> None:
        """Same as `Link.close`."""


class ToGateways(Protocol):
    """The connections of gateways: a `Listener`."""

    ended: int
    on_end: Callable[[bytes], object]

    def send(self, peer: bytes, parts: Sequence[Any], volatile: bool = False) -> Delivery:
        """Same as `Listener.send`."""

    def send_descriptor(self, peer: bytes, parts: Sequence[Any], descriptor: int) -> Delivery:
        """Same as `Listener.send_descriptor`."""

    def descriptor(self, peer: bytes) -> int | None:
        """Same as `Listener.descriptor`."""

    def receive(self) -> tuple[bytes, list[Any]] | None:
        """Same as `Listener.receive`."""


class Sockets(NamedTuple):
    """A worker's connections; the hub waits for both, and for the outbox's bell."""

    hub: Hub
    controller: ToController
    data: ToGateways
    """Listener for the tensors of gateways."""
    data_address: str
    """Address at which gateways connect to it."""
    greet: Callable[[str], ToController]
    """Begins to connect to another controller; raises OSError if it is not an address."""
