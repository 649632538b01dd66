"""Gives memory back to the system that a peak needed, once no request has come for a while.

The heap keeps what was freed in it, and memory that is shared with workers each page that was ever written.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

IDLE_NS: Final = 10_000_000_000
"""How long no request has come before memory is given back."""
WORTH_BYTES: Final = 16 << 20
"""Less of shared memory is not given back: workers are connected to anew for it."""


class Reclaiming:
    """See the module's docstring."""

    def __init__(
        self, shared_bytes: Callable[[], int], renew: Callable[[], object], trim: Callable[[], object]
    ) -> None:
        """``shared_bytes``: what of memory that is shared is this process's; ``renew`` gives it back.

        ``trim`` gives back what is free of the heap.
        """
        self._shared_bytes, self._renew, self._trim = shared_bytes, renew, trim
        self._asked = 0
        self._since_ns = 0
        """Since when no request has come."""
        self._done = True
        """Whether memory was given back since then."""

    def consider(self, now_ns: int, *, asked: int, in_flight: int) -> None:
        """Give memory back if this is a time for it; to be called now and then.

        ``asked`` counts requests, ``in_flight`` those without an answer.
        """
        if asked != self._asked or in_flight:
            self._asked, self._since_ns, self._done = asked, now_ns, False
        elif not self._done and now_ns - self._since_ns >= IDLE_NS:
            self._done = True
            if self._shared_bytes() >= WORTH_BYTES:
                self._renew()
            self._trim()


def of_this_process(renew: Callable[[], object]) -> Reclaiming:
    """Return what gives this process's memory back; the heap's, if the C library can (malloc_trim(3))."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return Reclaiming(shared_bytes, renew, (lambda: trim(0)) if trim is not None else lambda: None)


def shared_bytes() -> int:
    """Return how many bytes of shared memory this process has touched; 0 where the system doesn't tell."""
    try:
        found = re.search(r"^RssShmem:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return 0 if found is None else int(found[1]) << 10
