"""A check whether a gateway that sends nothing is still there. Pure.

The kernel ends a connection with the process at its other end, but not while that process only stands still:
it is stopped, or its machine has nothing left to run it with. ZeroMQ asks for a sign of life by itself; over
a connection by name the client does, when nothing has come for a while.
"""

from __future__ import annotations

from typing import Final

QUIET_NS: Final = 2_000_000_000
"""Time without a message after which the gateway is pinged."""
PATIENCE_NS: Final = 4_000_000_000
"""Time within which the gateway must answer the ping."""


class Heartbeat:
    """The heartbeat of one connection; all instants are on the client's monotonic clock."""

    def __init__(self, now_ns: int) -> None:
        self._heard_ns = now_ns
        self._asked_ns: int | None = None

    def heard(self, now_ns: int) -> None:
        """Note that something came."""
        self._heard_ns = now_ns
        self._asked_ns = None

    def due(self, now_ns: int) -> bool:
        """Return whether the gateway is to be asked now."""
        return self._asked_ns is None and now_ns - self._heard_ns >= QUIET_NS

    def asked(self, now_ns: int) -> None:
        """Note that it was asked."""
        self._asked_ns = now_ns

    def silent(self, now_ns: int) -> bool:
        """Return whether it was asked and has not answered in time.

        To be asked once all that came has been taken: the client itself may have stood still.
        """
        return self._asked_ns is not None and now_ns - self._asked_ns >= PATIENCE_NS

    def next_ns(self) -> int:
        """Return when `due` or `silent` becomes true if nothing comes."""
        return self._heard_ns + QUIET_NS if self._asked_ns is None else self._asked_ns + PATIENCE_NS
