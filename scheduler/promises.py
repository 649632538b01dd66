"""What queries of many pieces were promised on arrival holds against what comes later.

A query is admitted if all its pieces can end in time behind the work that waits (`queries.Whole`). Policies
see its pieces as ordinary requests, and large ones are the least dense: whatever comes later would go first
until a piece is late, and with it the whole. So as soon as what is left of a query takes all the time that is
left, its pieces go before what a policy chooses, those of the query that is due first before others.
"""

from __future__ import annotations

from typing import Final

from mainspring.cluster.execution import Batch
from mainspring.cluster.queries import Query
from mainspring.cluster.requests import Place, Request
from mainspring.cluster.workers import Worker
from mainspring.scheduler.state import SchedulerState

HASTE: Final = 3, 2
"""Factor, as a fraction, by which the time that is left to do counts: with 1 all of a query would hold other
requests up in one piece."""


class Promises:
    """The queries of many pieces, and which of these can't wait."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._made: list[Query] = []
        """Queries in the order in which they are due; some may be over."""

    def made(self, query: Query) -> None:
        """Promise a query whose pieces all come at once, of one model."""
        if query.due_ns is not None and len(query.event.steps) == 1:
            self._made.append(query)
            self._made.sort(key=lambda each: (each.due_ns or 0, each.id))

    def next_batch(self, now_ns: int, worker: Worker, available_ns: int) -> Batch | None:
        """Return the piece that a worker is to run next whatever its policy says; None if all can wait.

        They can while each query's pieces, and those due before, can still be run one after the other by the
        workers that hold their models, if another batch as long as the longest of these goes first.
        """
        if not self._made:
            return None
        first: Batch | None = None
        needed_ns = longest_ns = over = 0
        for query in self._made:
            if self._state.cluster.queries.get(query.id) is not query:
                over += 1
                continue
            left = len(query.open)
            piece = _waiting(query)
            if piece is None or query.due_ns is None or piece.due_ns is None:
                continue
            placement = piece.model.usable.get(worker.name)
            if placement is None:
                continue
            index = piece.model.index_of[piece.rows]
            own_ns = placement.times.ns[index]
            needed_ns += HASTE[0] * own_ns * left // (HASTE[1] * len(piece.model.usable))
            longest_ns = max(longest_ns, own_ns)
            if first is None:
                begin_ns = self._state.begin_ns(now_ns, placement, index, available_ns)
                if begin_ns + own_ns > piece.due_ns:
                    continue
                first = Batch(placement, index, [piece])
            if available_ns + needed_ns + longest_ns > query.due_ns:
                return first
        if over:
            self._made = [each for each in self._made if each.id in self._state.cluster.queries]
        return None


def _waiting(query: Query) -> Request | None:
    """Return the first piece of a query that waits."""
    for piece in query.open.values():
        if piece.place is Place.QUEUED:
            return piece
    return None
