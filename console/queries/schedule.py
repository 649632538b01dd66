"""Query ``schedule``: what executors did, do and will do."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice

from mainspring.cluster.placements import State
from mainspring.cluster.requests import Place
from mainspring.console.payloads import ActionLine, Lane, Schedule, Waiting
from mainspring.console.queries.asking import BadQuery, Unknown, happenings
from mainspring.console.queries.models import commonest_kind, where
from mainspring.console.queries.moves import why_loaded
from mainspring.console.view.actions import Action
from mainspring.console.view.actions import Lane as Executor
from mainspring.console.view.view import View

LIMIT = 20_000
"""Actions that one answer holds at most."""
NAMES = 16
"""Requests, and evicted models, that an action names at most."""


def schedule(
    view: View,
    from_ns: int,
    to_ns: int,
    *,
    after: int | None = None,
    workers: tuple[str, ...] = (),
    limit: int = 4000,
) -> Schedule:
    """Return the actions that lie in ``[from_ns, to_ns]``, at most ``limit``, the newest of them.

    ``after`` is the ``version`` of a former answer: only what changed since comes, unless that can't be told
    (`Schedule.whole`). ``workers`` are those to show, all if empty. Raises `Unknown` for an unknown worker,
    and `BadQuery` for a span that ends before it begins and a limit beyond `LIMIT`.
    """
    if from_ns > to_ns:
        raise BadQuery(f"from_ns is {from_ns} and to_ns is {to_ns}: the span ends before it begins")
    if not 1 <= limit <= LIMIT:
        raise BadQuery(f"limit is {limit}; it must be from 1 to {LIMIT}")
    lanes = _lanes(view, workers)
    whole = after is None or not view.reset_seq <= after <= view.seq
    since = 0 if whole or after is None else after
    found = heapq.merge(
        *[_newest(view, index, lane, from_ns, to_ns, since) for index, lane in enumerate(lanes)],
        key=lambda each: each[0],
        reverse=True,
    )
    actions: list[ActionLine] = []
    truncated = False
    for _, index, action in found:
        if len(actions) == limit:
            truncated = True
            break
        actions.append(action_line(index, action))
    return Schedule(
        from_ns=from_ns,
        to_ns=to_ns,
        lanes=[Lane(lane.worker, lane.executor) for lane in lanes],
        actions=actions,
        version=view.seq,
        truncated=truncated,
        whole=whole,
        happenings=[each for each in happenings(view, workers) if whole or from_ns <= each.at_ns <= to_ns],
        waiting=waiting(view, workers) if to_ns >= view.now_ns else [],
        waiting_requests=view.cluster.queued,
    )


def action_line(lane: int, action: Action) -> ActionLine:
    """Return an action as a track of a picture shows it."""
    ended = action.status != "" and action.began
    return ActionLine(
        id=action.id,
        lane=lane,
        kind=action.kind,
        model=action.model,
        batch_size=action.batch_size,
        rows=action.rows,
        requests=[str(request_id) for request_id in action.requests[:NAMES]],
        sent_ns=action.sent_ns,
        earliest_ns=action.earliest_ns,
        latest_ns=action.latest_ns,
        predicted_begin_ns=action.predicted_begin_ns,
        predicted_end_ns=action.predicted_end_ns,
        begin_ns=action.begin_ns if ended else None,
        end_ns=action.end_ns if ended else None,
        status=action.status,
        detail=action.detail,
        why=why_loaded(action),
        evicted=list(action.evicted[:NAMES]),
        device_ns=action.device_ns or None,
    )


def _lanes(view: View, workers: tuple[str, ...]) -> list[Executor]:
    histories = view.histories
    for worker in workers:
        if worker not in histories:
            there = ", ".join(sorted(histories)) or "none"
            raise Unknown(f"there is no worker {worker!r}; there are: {there}")
    names = workers or tuple(sorted(histories, key=in_order))
    return [lane for name in names for lane in histories[name].lanes]


def in_order(name: str) -> tuple[str, int, str]:
    """Return what to sort names by so that ``worker-2`` comes before ``worker-10``."""
    stem = name.rstrip("0123456789")
    number = name[len(stem) :]
    return stem, int(number[:18] or 0), name


def _newest(
    view: View, index: int, lane: Executor, from_ns: int, to_ns: int, since: int
) -> Iterator[tuple[int, int, Action]]:
    """Yield a lane's actions with the record that they last changed with, the newest first."""
    sent = ((lane.sent.get(each.id, view.reset_seq), index, each) for each in view.outstanding(lane))
    waiting = sorted([each for each in sent if each[0] > since], key=lambda each: each[0], reverse=True)
    ended = ((each.done_seq, index, each) for each in lane.ended_in(from_ns, to_ns, since))
    for entry in heapq.merge(waiting, ended, key=lambda each: each[0], reverse=True):
        if _lies_in(entry[2], from_ns, to_ns):
            yield entry


def _lies_in(action: Action, from_ns: int, to_ns: int) -> bool:
    """Return whether any part of an action, planned or real, is in a span of time."""
    begin_ns, end_ns = action.predicted_begin_ns, action.predicted_end_ns
    if action.began:
        begin_ns, end_ns = min(begin_ns, action.begin_ns), max(end_ns, action.end_ns)
    elif action.kind in ("INFER", "LOAD", "OPEN"):
        # It has not ended, so it takes longer than was predicted, or waits within its window.
        end_ns = max(end_ns, action.latest_ns)
    else:
        end_ns = max(end_ns, to_ns)
    return begin_ns <= to_ns and end_ns >= from_ns


LOOKED_AT = 4_000
"""Most open requests that are read; the oldest come first."""
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
    places = [] if model is None else where(view.cluster, model, State.RESIDENT, State.LOADING)
    slack_ns = None
    if deadline_ns != _FAR_NS:
        slack_ns = deadline_ns - view.now_ns
        if model is not None and kind in model.infer_times:
            slack_ns -= model.infer_times[kind].ns[0]
            if not places:
                slack_ns -= model.load_times[kind].ns
    return Waiting(name, requests, None if deadline_ns == _FAR_NS else deadline_ns, slack_ns, places)
