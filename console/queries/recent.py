"""Query ``recent``: the newest requests of some outcome."""

from __future__ import annotations

from mainspring.console.payloads import RequestLine
from mainspring.console.view.view import View


def recent(
    view: View, *, outcomes: tuple[str, ...] = ("rejected", "late", "lost"), model: str = "", limit: int = 100
) -> list[RequestLine]:
    """Return at most ``limit`` requests that ended so, newest first; of one ``model`` if one is named."""
    raise NotImplementedError
