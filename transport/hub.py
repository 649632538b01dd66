"""Waits for all sockets of one thread at once, and connects, accepts and sends for them.

`Hub.wait` returns the ports that may have a message: a `Listener`, a `Link`, or a token given to `watch`. Its
caller then calls their ``receive`` until that returns None, or leaves messages for the next turn: `Hub.wait`
does not sleep while it knows of one. A socket is read only in ``receive``, so what a peer sends too fast
waits in the kernel, and then at the peer.
"""

from __future__ import annotations

import select
import time
from typing import Protocol

from mainspring.transport.precise import PreciseWait


class Port(Protocol):
    """An owner of sockets in a hub."""

    def pending(self) -> bool:
        """Say whether a message may have been read already, so that `Hub.wait` need not wait."""

    def event(self, fd: int, mask: int) -> bool:
        """Serve a socket that is ready; return whether there may be a message to receive."""

    def tick(self, now_ns: int) -> int:
        """Do what is due; return the instant of the next call."""

    def close(self, until_ns: int) -> None:
        """Close the port's sockets; what waits to be sent may leave until then."""


class Hub:
    """All sockets of the one thread that uses it; see the module's docstring."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self._precise = PreciseWait(self.epoll)
        self._ports: dict[int, Port] = {}
        """The owner of each descriptor."""
        self._timed: list[Port] = []
        self._watched: dict[int, object] = {}
        self._found: list[Port] = []
        self.due_ns = 0
        """The instant of the next `wait`, for a caller that waits for ``epoll`` in its own loop."""

    def watch(self, fd: int, token: object) -> None:
        """Have `wait` return ``token`` once each time that something is written to this descriptor.

        Nobody has to read it, which would be a system call more.
        """
        self._watched[fd] = token
        self.epoll.register(fd, select.EPOLLIN | select.EPOLLET)

    def add(self, port: Port) -> None:
        """Call this port's `tick` from now on."""
        self._timed.append(port)
        self.due(0)

    def drop(self, port: Port) -> None:
        """Remove a port that is closed."""
        self._timed.remove(port)
        if port in self._found:
            self._found.remove(port)

    def own(self, fd: int, port: Port) -> None:
        """Note a descriptor's owner, which registers it with ``epoll`` itself."""
        self._ports[fd] = port

    def disown(self, fd: int) -> None:
        """Remove a descriptor that is closed."""
        self._ports.pop(fd, None)

    def pending(self) -> bool:
        """Say whether `wait` would return a port with messages that were read already."""
        return any(port.pending() for port in self._found)

    def due(self, at_ns: int) -> None:
        """Call the ports' `tick` at an instant at the latest."""
        self.due_ns = min(self.due_ns, at_ns)

    def wait(self, timeout_ns: int) -> list[object]:
        """Wait at most this long; return the ports and tokens that may have something."""
        now_ns = time.monotonic_ns()
        if now_ns >= self.due_ns:
            self.due_ns = 1 << 62
            for port in tuple(self._timed):
                self.due(port.tick(now_ns))
        self._found = [port for port in self._found if port.pending()]
        found: list[object] = [*self._found]
        if found:
            timeout_ns = 0
        for fd, mask in self._precise.wait(min(timeout_ns, self.due_ns - now_ns)):
            owner = self._ports.get(fd)
            if owner is None:
                if fd in self._watched:
                    found.append(self._watched[fd])
            elif owner.event(fd, mask) and owner not in found:
                found.append(owner)
                self._found.append(owner)
        return found

    def close(self, linger_ns: int = 0) -> None:
        """Close all ports; what waits to be sent has ``linger_ns`` to leave."""
        until_ns = time.monotonic_ns() + linger_ns
        for port in tuple(self._timed):
            port.close(until_ns)
        self.epoll.close()
