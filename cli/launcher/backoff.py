"""When a process that died may be started again."""

from __future__ import annotations

import msgspec


class Backoff(msgspec.Struct):
    """Delay before the next start: doubles with each death in a row, forgotten after a long life."""

    first_ns: int
    longest_ns: int
    """The delay grows no further; a process that lived longer than this starts afresh."""
    deaths: int = 0
    """Deaths in a row."""

    def died(self, lived_ns: int) -> int:
        """Count a death after a life of ``lived_ns``; return how long to wait before the next start."""
        self.deaths = 1 if lived_ns > self.longest_ns else self.deaths + 1
        return min(self.longest_ns, self.first_ns << min(self.deaths - 1, 32))
