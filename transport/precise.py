"""Waiting for an epoll object by the nanosecond, which Python's own does by whole milliseconds.

Python's own takes a third of the processor time, so a wait that something mostly ends before its time begins
with that; a signal is noticed only when that has ended.

``epoll_pwait2`` (epoll_wait(2); Linux 5.11, glibc 2.35) takes a timespec, so one system call does what
otherwise takes up to three: ``epoll_wait`` for the whole milliseconds, ``select`` on its descriptor for the
rest, and ``epoll_wait`` again for what has come.
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
from typing import Any, Final

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
