"""The controller's one socket: takes messages from every peer, never blocks, never raises because of one."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Sequence
from typing import Any

from mainspring.messages.roles import Role, may_connect
from mainspring.transport.bounds import Delivery, Limits
from mainspring.transport.greeting import Pass
from mainspring.transport.hub import Hub
from mainspring.transport.listener import Listener

BACKLOG_BYTES = 256 << 20
"""Bytes that may wait for one peer, beside the bound in messages."""
MOST_TENSORS = 4
WATCHING_BYTES = 64 << 10
"""Size of one incoming message of those that only watch or operate."""


class Router:
    """Listens at one address, with a precise timed wait."""

    def __init__(
        self,
        address: str,
        backlog_messages: int,
        message_max_bytes: int,
        linger_ms: float,
        on_violation: Callable[[str], object],
        secret: bytes | None = None,
    ) -> None:
        """Listen. Raises OSError that names the address if that is not possible.

        ``on_violation`` is told what a peer has sent that is no message at all, and who was refused; its
        connection is ended. ``secret``: the run's; without one, only this user's processes of this host.
        """
        self._linger_ns = round(linger_ms * 1e6)
        self._hub = Hub()
        served = _limits(message_max_bytes, backlog_messages)
        watching = _limits(min(message_max_bytes, WATCHING_BYTES), backlog_messages)
        limits = {
            str(role): watching if role in (Role.OBSERVER, Role.OPERATOR) else served
            for role in may_connect(Role.CONTROLLER)
        }
        try:
            self._listener = Listener(self._hub, address, limits, Pass(Role.CONTROLLER, secret))
        except (OSError, ValueError) as error:
            self._hub.close()
            number = getattr(error, "errno", None) or errno.EINVAL
            why = getattr(error, "strerror", None) or str(error)
            raise OSError(
                number, f"the controller can't listen on {address}: {why}; choose another --address"
            ) from error
        self._listener.on_violation = on_violation

    @property
    def address(self) -> str:
        """Where peers connect, the real port included."""
        return self._listener.address

    def receive(self) -> list[Any] | None:
        """Return the next message's parts, the sender (``ROLE/NAME``) first; None if none is waiting."""
        received = self._listener.receive()
        return None if received is None else [received[0], *received[1]]

    def send(self, peer: bytes, payload: bytes) -> Delivery:
        """Send one message of one part."""
        return self._listener.send(peer, (payload,))

    def send_parts(self, peer: bytes, parts: Sequence[bytes]) -> Delivery:
        """Send one message of several parts."""
        return self._listener.send(peer, parts)

    def backlog_bytes(self, peer: bytes) -> int:
        """Return how much waits for a peer; 0 if there is no connection to it."""
        return self._listener.backlog_bytes(peer)

    def disconnect(self, peer: bytes, why: str) -> None:
        """End the connection to a peer, if there is one; what waits for it is forgotten."""
        self._listener.disconnect(peer, why)

    def wait(self, until_ns: int) -> bool:
        """Wait until a message comes or an instant of the monotonic clock; say whether one may be there."""
        while True:
            left_ns = until_ns - time.monotonic_ns()
            if self._hub.wait(max(0, left_ns)):
                return True
            if left_ns <= 0:
                return False

    def close(self) -> None:
        """Close; what is still unsent has ``linger_ms`` to leave."""
        self._hub.close(self._linger_ns)


def _limits(message_bytes: int, backlog_messages: int) -> Limits:
    """A message to the controller has no tensors: one with a few is answered, one with more is not read."""
    return Limits(message_bytes, BACKLOG_BYTES, backlog_messages, message_bytes, MOST_TENSORS)
