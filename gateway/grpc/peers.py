"""The client connections that have calls in flight, so that limits count for each connection. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mainspring.gateway.sends import Connection


class Peers:
    """Connections by gRPC's name of the client, which holds its address and port."""

    def __init__(self, new: Callable[[], Connection]) -> None:
        """``new`` returns a connection that no other client has."""
        self._new = new
        self._calls: dict[str, tuple[Connection, int]] = {}

    def __len__(self) -> int:
        """Return how many clients have calls in flight."""
        return len(self._calls)

    @contextmanager
    def call(self, peer: str) -> Iterator[Connection]:
        """Count a call while it is in flight; gives the connection that all calls of this client share."""
        connection, calls = self._calls.get(peer) or (self._new(), 0)
        self._calls[peer] = connection, calls + 1
        try:
            yield connection
        finally:
            calls = self._calls[peer][1] - 1
            if calls:
                self._calls[peer] = connection, calls
            else:
                del self._calls[peer]
