"""Query ``request``: one request explained."""

from __future__ import annotations

from mainspring.console.payloads import Story
from mainspring.console.view.view import View


def request(view: View, which: str) -> Story:
    """Explain a request.

    ``which`` is its id, the beginning of an id that only one request has, or ``last-rejected``,
    ``last-late``, ``last-lost`` or ``last``. Raises `Unknown` if nothing is remembered of it, and `BadQuery`
    if several fit.
    """
    raise NotImplementedError
