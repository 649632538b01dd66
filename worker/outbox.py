"""Ends of actions on their way from the executors to the network thread."""

from __future__ import annotations

import contextlib
import os
from collections import deque

from mainspring.messages.actions import Result
from mainspring.worker.core.jobs import Reservation


class Outbox:
    """Ends of actions on their way from the executors to the network thread, with a bell that wakes it."""

    def __init__(self) -> None:
        self.bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._ends: deque[tuple[Result | None, Reservation | None]] = deque()

    def put(self, result: Result | None, io: Reservation | None) -> None:
        """Add an end (`executors.Report`)."""
        self._ends.append((result, io))

    def ring(self) -> None:
        """Wake the network thread if there is something for it."""
        if self._ends:
            os.eventfd_write(self.bell, 1)

    def pop(self) -> tuple[Result | None, Reservation | None] | None:
        """Remove and return the oldest end, or None."""
        return self._ends.popleft() if self._ends else None

    def silence(self) -> None:
        """Stop ringing."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.bell)

    def close(self) -> None:
        """Close the bell."""
        os.close(self.bell)
