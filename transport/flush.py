"""The last messages of a process that stops: they leave, unless nobody takes them in time."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from typing import Protocol


class Sender(Protocol):
    """A connection."""

    fd: int

    @property
    def waits(self) -> bool:
        """Whether something waits to be sent."""

    def flush(self) -> bool:
        """Send what the kernel takes; return whether nothing waits any more."""


def flush_all(channels: Sequence[Sender], until_ns: int) -> None:
    """Send what waits on these connections until an instant; then say that nothing more will come."""
    waiting = {channel.fd: channel for channel in channels if channel.waits}
    poller = select.poll()
    for fd in waiting:
        poller.register(fd, select.POLLOUT)
    while waiting and (left_ns := until_ns - time.monotonic_ns()) > 0:
        for fd, _ in poller.poll(left_ns / 1e6):
            if waiting[fd].flush():
                del waiting[fd]
                poller.unregister(fd)
