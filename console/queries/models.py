"""Query ``models``: the table of models, searched, sorted, and cut."""

from __future__ import annotations

from mainspring.console.payloads import Models
from mainspring.console.view.view import View

SORTS = ("name", "queued", "demand", "in_time", "late", "rejected", "cold", "pages", "resident", "last_load")
"""By which columns the table can be sorted."""


def models(
    view: View,
    *,
    search: str = "",
    sort: str = "name",
    descending: bool = False,
    offset: int = 0,
    limit: int = 100,
) -> Models:
    """Return at most ``limit`` rows from ``offset`` on of the models whose names contain ``search``.

    ``sort`` is one of `SORTS`; models that are equal in it are in the order of their names.
    """
    raise NotImplementedError
