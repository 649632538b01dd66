"""One model's queued requests in the order of their arrival, for policies that look at no deadline.

The core keeps the requests of a model by deadline (`scheduler.requests.DeadlineQueue`); this is the same
queue by arrival. Requests can be put behind all others, among which they keep the order of their arrival.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from mainspring.cluster.requests import Request

BEHIND_NS = 1 << 61
"""Added to the rank of a request that was put behind all others: later than every arrival."""


class FifoQueue:
    """Requests by rank: the instant of their arrival, later by `BEHIND_NS` for those behind all others."""

    __slots__ = ("_items", "_ranks", "rows")

    def __init__(self) -> None:
        self._items: list[Request] = []
        self._ranks: list[int] = []
        self.rows = 0
        """Rows of all requests."""

    def __len__(self) -> int:
        return len(self._items)

    @property
    def head(self) -> Request:
        """The request that is the next; the queue must not be empty."""
        return self._items[0]

    @property
    def head_rank_ns(self) -> int:
        """The rank of the request that is the next; the queue must not be empty."""
        return self._ranks[0]

    def add(self, request: Request) -> None:
        """Put a request into its place: the last, unless it was dispatched before in vain."""
        self._insert(request.arrived_ns, request)

    def put_behind(self) -> None:
        """Put the first request behind all those that are not behind yet; the queue must not be empty."""
        request = self._items[0]
        self._delete(0)
        self._insert(request.arrived_ns + BEHIND_NS, request)

    def remove(self, request: Request) -> None:
        """Take a request out; raise KeyError if it is not queued."""
        items = self._items
        self._delete(0 if items and items[0] is request else self._index(request))

    def first(self, rows: int) -> list[Request]:
        """Return the requests at the front that fit so many rows together, and the first in any case."""
        if self.rows == len(self._items):
            return self._items[: max(rows, 1)]
        taken: list[Request] = []
        for request in self._items:
            rows -= request.rows
            if rows < 0 and taken:
                break
            taken.append(request)
        return taken

    def filled_ns(self, rows: int) -> int:
        """Return the rank of the request with which the queue came to so many rows; it must have them."""
        if self.rows == len(self._items):
            return self._ranks[rows - 1]
        for rank, request in zip(self._ranks, self._items, strict=True):
            rows -= request.rows
            if rows <= 0:
                return rank
        raise ValueError(f"{self.rows} rows are queued, too few by {rows}")

    def _insert(self, rank: int, request: Request) -> None:
        """Put a request where its rank, and then its id, has it."""
        ranks, items = self._ranks, self._items
        index = bisect_right(ranks, rank)
        while index and ranks[index - 1] == rank and items[index - 1].id > request.id:
            index -= 1
        ranks.insert(index, rank)
        items.insert(index, request)
        self.rows += request.rows

    def _delete(self, index: int) -> None:
        self.rows -= self._items[index].rows
        del self._items[index], self._ranks[index]

    def _index(self, request: Request) -> int:
        """Return where a request stands; raise KeyError if it is not queued."""
        for rank in (request.arrived_ns, request.arrived_ns + BEHIND_NS):
            index = bisect_left(self._ranks, rank)
            while index < len(self._ranks) and self._ranks[index] == rank:
                if self._items[index] is request:
                    return index
                index += 1
        raise KeyError(request.id)
