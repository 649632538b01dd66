"""The id of a request: its gateway's number and that gateway's own counter, in one integer."""

from __future__ import annotations

_COUNTER_BITS = 40
"""The gateway's number is in the bits above these."""


def request_id(gateway: int, counter: int) -> int:
    """Return a request's id by its gateway's number (`peers.Welcome.number`) and a counter below 2**40."""
    return (gateway << _COUNTER_BITS) | counter


def gateway_of(request_id: int) -> int:
    """Return the number of the gateway that a request belongs to."""
    return request_id >> _COUNTER_BITS
