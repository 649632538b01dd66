"""Who waits for an INFER, and how much slack they have: what a schedule shows behind its plan."""

from __future__ import annotations

from itertools import islice

from mainspring.console.payloads import Waiting
from mainspring.console.queries.models import commonest_kind
from mainspring.console.view.models import LOADING, RESIDENT
from mainspring.console.view.requests import WAITING
from mainspring.console.view.view import View

LOOKED_AT = 4_000
"""Open requests that are looked at; the oldest come first."""
LINES = 50
"""Models that are named."""
_FAR_NS = 1 << 62


def waiting(view: View, workers: tuple[str, ...] = ()) -> list[Waiting]:
    """Return the models whose requests wait, the least slack first.

    With ``workers`` those alone that they hold or load, or that no worker does.
    """
    found: dict[str, list[int]] = {}
    for request in islice(view.traffic.book.open.values(), LOOKED_AT):
        if request.outcome == WAITING:
            group = found.setdefault(request.model, [0, _FAR_NS])
            group[0] += 1
            group[1] = min(group[1], _FAR_NS if request.deadline_ns is None else request.deadline_ns)
    kind = commonest_kind(view)
    lines = [_line(view, kind, model, *group) for model, group in found.items()]
    if workers:
        lines = [each for each in lines if not each.workers or set(workers) & set(each.workers)]
    lines.sort(key=lambda each: _FAR_NS if each.slack_ns is None else each.slack_ns)
    return lines[:LINES]


def _line(view: View, kind: str, name: str, requests: int, deadline_ns: int) -> Waiting:
    model = view.fleet.models.get(name)
    places = [] if model is None else model.where(RESIDENT, LOADING)
    slack_ns = None
    if deadline_ns != _FAR_NS:
        slack_ns = deadline_ns - view.now_ns
        if model is not None and model.spec is not None and kind:
            durations = view.fleet.durations
            slack_ns -= durations.infers(kind, model.spec).times.ns[0]
            if not places:
                slack_ns -= durations.loads(kind, model.spec).time.ns
    return Waiting(name, requests, None if deadline_ns == _FAR_NS else deadline_ns, slack_ns, places)
