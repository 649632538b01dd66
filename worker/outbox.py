"""Ends of actions on their way from the executors' threads to the network thread."""

from __future__ import annotations

import os
from collections import deque

from mainspring.messages.actions import Result
from mainspring.worker.core.jobs import Reservation


class Outbox:
    """The ends in their order, with a bell that wakes the network thread."""

    def __init__(self) -> None:
        self.bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._ends: deque[tuple[Result | None, Reservation | None]] = deque()

    def put(self, result: Result | None, io: Reservation | None) -> None:
        """Add the end of an action; the caller holds the core's lock.

        ``result`` is None if the action was abandoned. ``io`` is where the outputs of an Infer that ended OK
        are: `WorkerCore.outputs_sent` has to follow.
        """
        self._ends.append((result, io))

    def ring(self) -> None:
        """Wake the network thread if there is something for it."""
        if self._ends:
            os.eventfd_write(self.bell, 1)

    def call(self) -> None:
        """Wake the network thread."""
        os.eventfd_write(self.bell, 1)

    @property
    def empty(self) -> bool:
        """Return whether there is nothing for the network thread."""
        return not self._ends

    def pop(self) -> tuple[Result | None, Reservation | None] | None:
        """Remove and return the oldest end, or None."""
        return self._ends.popleft() if self._ends else None

    def close(self) -> None:
        """Close the bell."""
        os.close(self.bell)
