"""Query ``memory``: who owns the pages of one worker."""

from __future__ import annotations

from mainspring.console.payloads import Memory
from mainspring.console.view.view import View


def memory(view: View, worker: str, *, evictions: int = 100) -> Memory:
    """Return a worker's pages and at most so many evictions; raise `Unknown` if there is no such worker."""
    raise NotImplementedError
