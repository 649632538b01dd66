"""Requests made by hand."""

from __future__ import annotations

from mainspring.cluster.models import Model
from mainspring.cluster.requests import Request
from mainspring.messages.events import RequestArrived


def request(id_: int, model: Model, rows: int, arrived_ns: int, due_ns: int | None) -> Request:
    """Return a request whose model was resident, and which is in no queue yet."""
    return Request(RequestArrived(id_, model.name, rows, due_ns), model, arrived_ns, due_ns, cold=False)
