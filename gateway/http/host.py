"""What a connection needs of the server that it belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mainspring.gateway.bounds import Budget
from mainspring.gateway.config import TRITON, GatewayConfig, milliseconds
from mainspring.gateway.core.effects import Connection
from mainspring.gateway.http.exchange import Exchange
from mainspring.gateway.http.receiver import Heads
from mainspring.gateway.memory import Memory
from mainspring.gateway.uploads import Uploads

if TYPE_CHECKING:
    from mainspring.gateway.http.connection import HttpConnection


class Limits:
    """The configuration's, in the units that are used here."""

    def __init__(self, config: GatewayConfig) -> None:
        self.header_bytes = config.http_max_header_bytes
        self.body_bytes = config.http_max_body_bytes
        self.pipelined = config.http_max_pipelined
        self.head_ns = milliseconds(config.http_header_timeout_ms)
        self.body_idle_ns = milliseconds(config.http_body_idle_ms)
        self.body_ns = milliseconds(config.http_body_timeout_ms)
        self.idle_ns = milliseconds(config.http_idle_timeout_ms)
        self.write_ns = milliseconds(config.http_write_timeout_ms)
        self.age_ns = milliseconds(config.max_connection_age_ms)
        self.answer_bytes = config.max_answer_bytes_per_connection
        self.triton = config.compatibility == TRITON

    @property
    def shortest_ns(self) -> int:
        """The nearest time-out."""
        return min(self.head_ns, self.body_idle_ns, self.body_ns, self.idle_ns, self.write_ns)


class Host(Protocol):
    """The server, as its connections see it."""

    limits: Limits
    budget: Budget
    """Of bodies."""
    memory: Memory
    """Where large ones are received."""
    uploads: Uploads
    """Where large bodies wait for their turns to be read."""
    answers: Budget
    shared: bytearray
    """Where all connections read to."""
    heads: Heads
    """Those that its connections have had."""

    def goes_ns(self) -> int:
        """When a connection that begins now is told to go."""

    def read_at_ns(self) -> int:
        """When what is being read now was there to be read."""

    def admit(self, connection: HttpConnection) -> bool:
        """Count a new connection; return whether there is room."""

    def gone(self, connection: HttpConnection) -> None:
        """Forget a connection."""

    def forget(self, peer: Connection) -> None:
        """Give up the requests of a client that is gone."""

    def route(self, exchange: Exchange) -> bool:
        """Set the handler of a request whose head is there; return whether its body is wanted."""
