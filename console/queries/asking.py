"""The queries' common ground: errors with a text for the one who asked, and the head of every picture."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from mainspring.console.payloads import HappeningLine, Head, RequestLine
from mainspring.console.view.happenings import REFUSED
from mainspring.console.view.requests import CANCELLED, IN_TIME, LOST, NOTABLE, Request
from mainspring.console.view.view import View


class BadQuery(ValueError):
    """A parameter is not what the query takes; the text says what would be right."""


class Unknown(LookupError):
    """The worker, model or request that a query names is not there, or not remembered any more."""

    def __str__(self) -> str:
        """Return the text as it is, without `LookupError`'s quotes."""
        return str(self.args[0]) if self.args else ""


def head(
    view: View, state: str, operable: bool = False, *, shard: int = 0, shards: tuple[str, ...] = ()
) -> Head:
    """Return the head of a picture; all but ``view`` as `Head` says."""
    return Head(
        now_ns=view.now_ns,
        unix_ns=view.unix_ns(view.now_ns),
        state=state,
        policy=view.policy,
        first_ns=view.first_ns,
        operable=operable,
        shard=shard,
        shards=shards,
    )


OUTCOMES = (*NOTABLE, LOST, IN_TIME, CANCELLED)
LIMIT = 1_000
"""Lines that one answer holds at most."""
HAPPENINGS = 50
"""Things that happened which a picture shows at most."""


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

    With ``from_ns`` and ``to_ns`` only those that ended in ``[from_ns, to_ns)``. Raises `BadQuery` for an
    outcome that does not exist, and a limit beyond `LIMIT`.
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


def request_line(request: Request) -> RequestLine:
    """Return one request in a list."""
    latency_ns = request.latency_ns
    return RequestLine(
        id=str(request.id),
        model=request.model,
        arrived_ns=request.arrived_ns,
        outcome=request.outcome,
        reason=request.reason,
        detail=request.detail,
        latency_ms=None if latency_ns is None else latency_ns / 1e6,
    )


def happenings(view: View, workers: tuple[str, ...] = ()) -> list[HappeningLine]:
    """Return the newest of what happened to the controller and to these workers; if empty, of all."""
    found = (
        HappeningLine(at_ns, each.kind, each.worker, each.said)
        for at_ns, each in view.happened()
        if not workers or each.worker in workers or not (each.worker or each.kind == REFUSED)
    )
    return list(islice(found, HAPPENINGS))
