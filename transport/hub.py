"""Waits for all sockets of one thread at once, and connects, accepts and sends for them.

`Hub.wait` returns the ports that may have a message: a `Listener`, a `Link`, or a token given to `watch`. Its
caller then calls their ``receive`` until that returns None, or leaves messages for the next turn: `Hub.wait`
does not sleep while it knows of one. A socket is read only in ``receive``, so what a peer sends too fast
waits in the kernel, and then at the peer.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import struct
import sys
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

READY_AT_ONCE: Final = 256
SELECTABLE: Final = 1024
"""``select`` takes only descriptors below this; for a higher one a wait may be 1 ms too long."""
LONG_NS: Final = 8_000_000, 300_000_000
"""A wait from the first on, and up to the second, begins with Python's own."""
_SHORT_OF_NS: Final = 2_000_000
"""Time by which Python's own wait ends earlier: it is rounded up to a millisecond, and may be late."""
_PACKED: Final = os.uname().machine == "x86_64"
"""True on machines where the kernel has an event's fields without a gap between them."""
_EVENT: Final = struct.Struct("=Ii4x" if _PACKED else "=I4xi4x")
_TIMESPEC: Final = struct.Struct("=qq")

Events = list[tuple[int, int]]
"""Descriptors that are ready, each with the mask of what it is ready for."""


class PreciseWait:
    """Waits for one epoll object."""

    def __init__(self, epoll: select.epoll, call: Callable[..., int] | None = None) -> None:
        """``call`` is called in the place of the C library's own."""
        self._epoll = epoll
        self._call = call or library_call()
        self._events = ctypes.create_string_buffer(READY_AT_ONCE * _EVENT.size)
        self._time = ctypes.create_string_buffer(_TIMESPEC.size)
        self._view = memoryview(self._events).cast("B")

    def wait(self, timeout_ns: int) -> Events:
        """Return what is ready, after this time at the latest; nothing, too, if a signal came."""
        if timeout_ns <= 0:
            return self._epoll.poll(0, READY_AT_ONCE)
        if self._call is None:
            return self._in_steps(timeout_ns)
        if LONG_NS[0] <= timeout_ns <= LONG_NS[1]:
            until_ns = time.monotonic_ns() + timeout_ns
            if ready := self._epoll.poll((timeout_ns - _SHORT_OF_NS) / 1e9, READY_AT_ONCE):
                return ready
            timeout_ns = max(0, until_ns - time.monotonic_ns())
        _TIMESPEC.pack_into(self._time, 0, *divmod(timeout_ns, 1_000_000_000))
        count = self._call(self._epoll.fileno(), self._events, READY_AT_ONCE, self._time, None)
        if count >= 0:
            found = _EVENT.iter_unpack(self._view[: count * _EVENT.size])
            return [(fd, mask) for mask, fd in found]
        code = ctypes.get_errno()
        if code == errno.ENOSYS:
            self._call = None
            return self._in_steps(timeout_ns)
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))
        return []

    def _in_steps(self, timeout_ns: int) -> Events:
        """Wait on a system whose ``epoll`` counts in milliseconds: ``select``, in microseconds, waits for the
        rest."""
        whole_ms, rest_ns = divmod(timeout_ns, 1_000_000)
        if whole_ms:
            # ``epoll`` rounds up to whole milliseconds, so wait for half of one less.
            if ready := self._epoll.poll((whole_ms - 0.5) / 1e3, READY_AT_ONCE):
                return ready
            rest_ns = min(rest_ns, 999_999)
        if rest_ns and self._epoll.fileno() < SELECTABLE:
            select.select((self._epoll,), (), (), rest_ns / 1e9)
        elif rest_ns:
            return self._epoll.poll(1e-3, READY_AT_ONCE)
        return self._epoll.poll(0, READY_AT_ONCE)


def library_call() -> Callable[..., Any] | None:
    """Return the C library's ``epoll_pwait2``; None if it has none, or has shorter numbers."""
    if sys.maxsize < 1 << 32:
        return None
    try:
        function = ctypes.CDLL(None, use_errno=True).epoll_pwait2
    except AttributeError:
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
    function.restype = ctypes.c_int
    return function


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
