"""The newest of what operators asked for and was granted; what they set is in the fold."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import msgspec

from mainspring.messages.operating import OperatorCommand


class Operation(msgspec.Struct, frozen=True):
    """One command of an operator that was granted."""

    at_ns: int
    who: str
    command: OperatorCommand


class Operations:
    """Commands in the order in which they were granted."""

    def __init__(self, most: int) -> None:
        """Remember at most ``most``."""
        self._log: deque[Operation] = deque(maxlen=most)

    def newest(self) -> Iterator[Operation]:
        """Yield the commands, the newest first."""
        return reversed(self._log)

    def add(self, operation: Operation) -> None:
        """Put a command into its place; a snapshot repeats what was granted before it."""
        if operation in self._log:
            return
        later = []
        while self._log and self._log[-1].at_ns > operation.at_ns:
            later.append(self._log.pop())
        if self._log or len(later) < (self._log.maxlen or 0):
            self._log.append(operation)
        self._log.extend(reversed(later))

    def clear(self) -> None:
        """Forget everything."""
        self._log.clear()
