"""Query ``recent``: the newest requests of some outcome."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from mainspring.console.payloads import RequestLine
from mainspring.console.queries.asking import BadQuery
from mainspring.console.queries.lines import request_line
from mainspring.console.view.requests import CANCELLED, IN_TIME, LOST, NOTABLE, Request
from mainspring.console.view.view import View

OUTCOMES = (*NOTABLE, LOST, IN_TIME, CANCELLED)
LIMIT = 1_000
"""Lines that one answer holds at most."""


def recent(
    view: View,
    *,
    outcomes: tuple[str, ...] = ("rejected", "late", "lost"),
    model: str = "",
    limit: int = 100,
    from_ns: int | None = None,
    to_ns: int | None = None,
) -> list[RequestLine]:
    """Return at most ``limit`` requests that ended so, newest first; of one ``model`` if one is named.

    With ``from_ns`` and ``to_ns`` only those that ended in ``[from_ns, to_ns)``.
    """
    for outcome in outcomes:
        if outcome not in OUTCOMES:
            raise BadQuery(f"there is no outcome {outcome!r}: choose of {', '.join(OUTCOMES)}")
    if not 0 <= limit <= LIMIT:
        raise BadQuery(f"limit is {limit}; it must be from 0 to {LIMIT}")
    found: Iterator[Request] = view.traffic.ended.newest(outcomes, model)
    if LOST in outcomes:
        found = chain(view.lost(model), found)
    if from_ns is not None and to_ns is not None:
        found = (each for each in found if from_ns <= each.ended_ns < to_ns)
    return [request_line(each) for each in islice(found, limit)]
