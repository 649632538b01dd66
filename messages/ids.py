"""The id of a request: its gateway's number and that gateway's own counter, in one integer.

The id of an action likewise: its controller's epoch, and that controller's own counter.

A gateway has a number at each controller, and the controller's own, its shard, is in the upper bits of it.
"""

from __future__ import annotations

_COUNTER_BITS = 40
"""The gateway's number is in the bits above these."""
_SESSION_BITS = 16
"""Width of the session part of a gateway's number, in bits; the shard is in the bits above."""
_SHARD_BITS = 6
MAX_SHARDS = 1 << _SHARD_BITS
MAX_SESSIONS = 1 << _SESSION_BITS
"""Numbers of gateways' sessions at one controller."""
MAX_GATEWAY = 1 << _SESSION_BITS + _SHARD_BITS
"""A gateway's number is below this."""


def first_action_id(epoch: int) -> int:
    """Return the number behind which the ids of an epoch's actions begin."""
    return epoch << _COUNTER_BITS


def epoch_of(action_id: int) -> int:
    """Return the epoch of the controller that an action is of."""
    return action_id >> _COUNTER_BITS


def request_id(gateway: int, counter: int) -> int:
    """Return a request's id by its gateway's number (`peers.Welcome.number`) and a counter below 2**40."""
    return (gateway << _COUNTER_BITS) | counter


def gateway_of(request_id: int) -> int:
    """Return the number of the gateway that a request belongs to."""
    return request_id >> _COUNTER_BITS


def gateway_number(shard: int, session: int) -> int:
    """Return a gateway's number at the controller of a shard, by that of its session there."""
    return (shard << _SESSION_BITS) | session


def shard_of_gateway(number: int) -> int:
    """Return the shard whose controller gave a gateway this number."""
    return number >> _SESSION_BITS


def shard_of(request_id: int) -> int:
    """Return the shard that a request was submitted to."""
    return request_id >> (_COUNTER_BITS + _SESSION_BITS)
