"""Query ``model``: one model in full."""

from __future__ import annotations

from mainspring.console.payloads import ModelPage
from mainspring.console.view.view import View


def model(view: View, name: str) -> ModelPage:
    """Return one model by the scheduler's name; raise `Unknown` for a model that there is not."""
    raise NotImplementedError
