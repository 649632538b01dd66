"""Waits for all sockets of one thread at once, and does what they need beside messages.

`Hub.wait` returns who may have something: a `Listener`, a `Link`, or whatever was given to `watch`. Its
caller then takes messages with their ``receive`` until that returns None, or leaves some for the next turn:
`Hub.wait` does not sleep while it knows of any. Nothing is read before it is asked for, so what a peer sends
too fast waits in the kernel, and then with the peer.
"""

from __future__ import annotations

import select
import time
from typing import Protocol

READY_AT_ONCE = 256
SELECTABLE = 1024
"""Descriptors from here on ``select`` does not take: a hub that was made so late wakes up a little later."""


class Port(Protocol):
    """Somebody with sockets in a hub."""

    def pending(self) -> bool:
        """Whether something may be there that `Hub.wait` need not wait for."""

    def event(self, fd: int, mask: int) -> bool:
        """One of its sockets is ready; return whether something may be there to receive."""

    def tick(self, now_ns: int) -> int:
        """Do what is due; return when it is to be called next."""

    def close(self, until_ns: int) -> None:
        """Close its sockets; what waits to be sent has until then to leave."""


class Hub:
    """See the module's docstring; one thread uses it."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self._ports: dict[int, Port] = {}
        """By descriptor."""
        self._timed: list[Port] = []
        self._watched: dict[int, object] = {}
        self._found: list[Port] = []
        self.due_ns = 0
        """When `wait` is to be called next, for a caller that waits for ``epoll`` by other means."""

    def watch(self, fd: int, token: object) -> None:
        """Have `wait` return ``token`` while this descriptor is readable."""
        self._watched[fd] = token
        self.epoll.register(fd, select.EPOLLIN)

    def add(self, port: Port) -> None:
        """Call this port's `tick` from now on."""
        self._timed.append(port)
        self.due(0)

    def drop(self, port: Port) -> None:
        """Forget a port that is closed."""
        self._timed.remove(port)
        if port in self._found:
            self._found.remove(port)

    def own(self, fd: int, port: Port) -> None:
        """Say whose descriptor it is; whoever owns it registers it with ``epoll``."""
        self._ports[fd] = port

    def disown(self, fd: int) -> None:
        """Forget a descriptor that is closed."""
        self._ports.pop(fd, None)

    def pending(self) -> bool:
        """Whether `wait` would return somebody whose messages were read off its socket already."""
        return any(port.pending() for port in self._found)

    def due(self, at_ns: int) -> None:
        """Have the ports' `tick` called at an instant, or before."""
        self.due_ns = min(self.due_ns, at_ns)

    def wait(self, timeout_ns: int) -> list[object]:
        """Wait at most so long; return who may have something."""
        now_ns = time.monotonic_ns()
        if now_ns >= self.due_ns:
            self.due_ns = 1 << 62
            for port in tuple(self._timed):
                self.due(port.tick(now_ns))
        self._found = [port for port in self._found if port.pending()]
        found: list[object] = [*self._found]
        if found:
            timeout_ns = 0
        for fd, mask in self._poll(min(timeout_ns, self.due_ns - now_ns)):
            owner = self._ports.get(fd)
            if owner is None:
                if fd in self._watched:
                    found.append(self._watched[fd])
            elif owner.event(fd, mask) and owner not in found:
                found.append(owner)
                self._found.append(owner)
        return found

    def _poll(self, timeout_ns: int) -> list[tuple[int, int]]:
        """Wait exactly: ``epoll`` counts whole milliseconds, ``select`` on it microseconds."""
        if timeout_ns <= 0:
            return self.epoll.poll(0, READY_AT_ONCE)
        whole_ms, rest_ns = divmod(timeout_ns, 1_000_000)
        if whole_ms:
            # Half a millisecond less, because the number is rounded up.
            if ready := self.epoll.poll((whole_ms - 0.5) / 1e3, READY_AT_ONCE):
                return ready
            rest_ns = min(rest_ns, 999_999)
        if rest_ns and self.epoll.fileno() < SELECTABLE:
            select.select((self.epoll,), (), (), rest_ns / 1e9)
        elif rest_ns:
            return self.epoll.poll(1e-3, READY_AT_ONCE)
        return self.epoll.poll(0, READY_AT_ONCE)

    def close(self, linger_ns: int = 0) -> None:
        """Close all; what waits to be sent has so long to leave."""
        until_ns = time.monotonic_ns() + linger_ns
        for port in tuple(self._timed):
            port.close(until_ns)
        self.epoll.close()
