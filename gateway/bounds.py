"""What the request table has no room for. Pure."""

from __future__ import annotations

from mainspring.gateway.config import GatewayConfig
from mainspring.messages.codes import Reason

Refusal = tuple[Reason, str]
"""Why a request can't be taken, as a code and for a person."""


def no_room(
    config: GatewayConfig, *, on_connection: int, in_flight: int, held_bytes: int, more_bytes: int
) -> Refusal | None:
    """Return why there is no room for one more request with ``more_bytes`` of inputs, or None.

    ``on_connection`` and ``in_flight`` are the requests without an answer of its connection and of all;
    ``held_bytes`` are the inputs of all.
    """
    if on_connection >= config.max_in_flight_per_connection:
        return (
            Reason.OVERLOADED,
            f"{on_connection} requests are in flight on this connection, the most it may have",
        )
    if in_flight >= config.max_in_flight:
        return Reason.OVERLOADED, f"{in_flight} requests are in flight, the most the gateway takes"
    if held_bytes + more_bytes > config.max_in_flight_bytes:
        return (
            Reason.OVERLOADED,
            f"requests in flight hold {held_bytes:,} bytes of inputs, the most allowed",
        )
    return None
