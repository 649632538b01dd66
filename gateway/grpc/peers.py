"""The client connections that have calls in flight, so that limits count for each connection."""

from __future__ import annotations

from collections.abc import Callable

from mainspring.gateway.core.effects import Connection
from mainspring.gateway.core.validation import BadRequest
from mainspring.gateway.memory import Budget, no_room_for_answer
from mainspring.messages.codes import Reason


class _Peer:
    """One client connection, while it has calls."""

    __slots__ = ("answers", "calls", "connection")

    def __init__(self, connection: Connection, answers: Budget) -> None:
        self.connection = connection
        self.answers = answers
        """Bytes that its answers hold."""
        self.calls = 0


class Peers:
    """Connections by gRPC's name of the client, which holds its address and port."""

    def __init__(
        self,
        new: Callable[[], Connection],
        answers: Budget,
        per_connection_bytes: int,
        asks: Callable[[str], None],
    ) -> None:
        """``new`` returns a connection that no other client has; ``asks`` is told who had no call in flight.

        ``answers``: what all answers may hold; those of one connection may hold ``per_connection_bytes``.
        """
        self._new = new
        self._answers = answers
        self._per_connection_bytes = per_connection_bytes
        self._asks = asks
        self._peers: dict[str, _Peer] = {}

    def __len__(self) -> int:
        """Return how many clients have calls in flight."""
        return len(self._peers)

    def call(self, name: str) -> Call:
        """Count a call of this client, until `Call.end`."""
        peer = self._peers.get(name)
        if peer is None:
            peer = self._peers[name] = _Peer(self._new(), Budget(self._per_connection_bytes))
            self._asks(name)
        peer.calls += 1
        return Call(self, name, peer)

    def hold(self, peer: _Peer, count: int) -> None:
        """Do as `Call.hold`."""
        own = peer.answers
        if own.held_bytes and own.held_bytes + count > own.limit_bytes:
            raise BadRequest(Reason.OVERLOADED, no_room_for_answer(own, count, "on this connection"))
        if not self._answers.take(count):
            raise BadRequest(Reason.OVERLOADED, no_room_for_answer(self._answers, count))
        own.held_bytes += count

    def let_go(self, peer: _Peer, count: int) -> None:
        """Do as `Call.let_go`."""
        peer.answers.give(count)
        self._answers.give(count)

    def leave(self, name: str, peer: _Peer) -> None:
        """Do as `Call.end`."""
        peer.calls -= 1
        if not peer.calls:
            del self._peers[name]


class Call:
    """A call in flight."""

    __slots__ = ("_held_bytes", "_name", "_peer", "_peers")

    def __init__(self, peers: Peers, name: str, peer: _Peer) -> None:
        self._peers = peers
        self._name = name
        self._peer = peer
        self._held_bytes = 0

    @property
    def way(self) -> bytes:
        """Return the name of its client's connection, the same for all calls of that connection."""
        return self._name.encode()

    @property
    def connection(self) -> Connection:
        """Return the request table's connection for the client; all of its calls share it."""
        return self._peer.connection

    def hold(self, count: int) -> None:
        """Note what an answer will hold; raise `BadRequest` if there is no room.

        On a connection without others there is for one of any size.
        """
        self._peers.hold(self._peer, count)
        self._held_bytes += count

    def let_go(self, count: int) -> None:
        """An answer is read, or never will be."""
        self._held_bytes -= count
        self._peers.let_go(self._peer, count)

    def end(self, *_: object) -> None:
        """The call is over, and so is what it holds; to be called once."""
        self.let_go(self._held_bytes)
        self._peers.leave(self._name, self._peer)
