"""Who waits for an INFER, and how much slack they have: what a schedule shows behind its plan."""

from __future__ import annotations

from itertools import islice

from mainspring.cluster.placements import State
from mainspring.cluster.requests import Place
from mainspring.console.payloads import Waiting
from mainspring.console.queries.models import commonest_kind, where
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
    for request in islice(view.cluster.requests.values(), LOOKED_AT):
        if request.place is not Place.DISPATCHED:
            group = found.setdefault(request.model.name, [0, _FAR_NS])
            group[0] += 1
            deadline_ns = request.event.deadline_ns
            group[1] = min(group[1], _FAR_NS if deadline_ns is None else deadline_ns)
    kind = commonest_kind(view)
    lines = [_line(view, kind, model, *group) for model, group in found.items()]
    if workers:
        lines = [each for each in lines if not each.workers or set(workers) & set(each.workers)]
    lines.sort(key=lambda each: _FAR_NS if each.slack_ns is None else each.slack_ns)
    return lines[:LINES]


def _line(view: View, kind: str, name: str, requests: int, deadline_ns: int) -> Waiting:
    model = view.cluster.models.get(name)
    places = [] if model is None else where(model, State.RESIDENT, State.LOADING)
    slack_ns = None
    if deadline_ns != _FAR_NS:
        slack_ns = deadline_ns - view.now_ns
        if model is not None and kind in model.infer_times:
            slack_ns -= model.infer_times[kind].ns[0]
            if not places:
                slack_ns -= model.load_times[kind].ns
    return Waiting(name, requests, None if deadline_ns == _FAR_NS else deadline_ns, slack_ns, places)
