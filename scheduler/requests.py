"""Requests as the scheduler sees them, and the queue of one model's requests by deadline."""

from __future__ import annotations

import enum
from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mainspring.scheduler.mirror import Model


class Place(enum.Enum):
    """Where a request is; it is in exactly one place."""

    QUEUED = "queued"
    DISPATCHED = "dispatched"
    GONE = "gone"


class Request:
    """One request that was admitted.

    ``due_ns`` is when EXEC must have ended: the deadline less the response margin; None for best effort.
    """

    __slots__ = ("arrived_ns", "cold", "due_ns", "failures", "id", "model", "order", "place", "rows")

    def __init__(
        self, id_: int, model: Model, rows: int, arrived_ns: int, due_ns: int | None, cold: bool
    ) -> None:
        self.id = id_
        self.model = model
        self.rows = rows
        self.arrived_ns = arrived_ns
        self.due_ns = due_ns
        self.cold = cold
        self.failures = 0
        self.place = Place.QUEUED
        self.order = (0, 0)

    def __repr__(self) -> str:
        due = "best effort" if self.due_ns is None else f"due {self.due_ns}"
        return (
            f"request {self.id} ({self.model.name}, {self.rows} rows, arrived {self.arrived_ns}, {due}, "
            f"{self.place.value}, {self.failures} failures)"
        )


_ORDER = attrgetter("order")


class DeadlineQueue:
    """One model's queued requests, ordered by (due_ns, id).

    Additions mostly come at the end and removals at the front, so a list with a binary search is both
    the simplest and the fastest structure for the lengths that deadlines allow.
    """

    __slots__ = ("_items", "rows")

    def __init__(self) -> None:
        self._items: list[Request] = []
        self.rows = 0
        """Rows of all queued requests."""

    def __len__(self) -> int:
        return len(self._items)

    def __bool__(self) -> bool:
        return bool(self._items)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._items)

    @property
    def head_due_ns(self) -> int:
        """The nearest due instant; the queue must not be empty."""
        return self._items[0].order[0]

    def add(self, request: Request) -> None:
        """Put a request with a deadline into its place."""
        assert request.due_ns is not None
        request.order = (request.due_ns, request.id)
        self.rows += request.rows
        items = self._items
        if not items or items[-1].order < request.order:
            items.append(request)
        else:
            insort(items, request, key=_ORDER)

    def remove(self, request: Request) -> None:
        """Take a request out; raise KeyError if it is not queued."""
        items = self._items
        index = 0
        if not items or items[0] is not request:
            index = bisect_left(items, request.order, key=_ORDER)
            if index == len(items) or items[index] is not request:
                raise KeyError(request.id)
        del items[index]
        self.rows -= request.rows

    def first_feasible(self, due_ns: int, size: int) -> int:
        """Return the index of the first request due at or after an instant that fits ``size`` rows.

        It is the queue's length if there is none.
        """
        items = self._items
        index = 0
        if items and items[0].order[0] < due_ns:
            index = bisect_left(items, (due_ns, 0), key=_ORDER)
        while index < len(items) and items[index].rows > size:
            index += 1
        return index

    def rows_at(self, index: int) -> int:
        """Return the rows of the request at an index."""
        return self._items[index].rows

    def due_at(self, index: int) -> int:
        """Return the due instant of the request at an index."""
        return self._items[index].order[0]

    def rows_due_from(self, due_ns: int) -> int:
        """Return the rows of the requests due at or after an instant."""
        rows = self.rows
        for request in self._items:
            if request.order[0] >= due_ns:
                break
            rows -= request.rows
        return rows

    def rows_from(self, index: int, limit: int) -> int:
        """Return the rows from an index on, counted no further than ``limit``."""
        items = self._items
        rows = 0
        end = min(len(items), index + limit)
        for position in range(index, end):
            rows += items[position].rows
            if rows >= limit:
                return limit
        return rows

    def fill(self, index: int, size: int) -> list[Request]:
        """Return requests from an index on, in order, that fit a batch of ``size`` rows.

        A request that no longer fits is passed over; the search ends after ``4 * size`` requests.
        """
        taken = []
        room = size
        for request in self._items[index : index + 4 * size]:
            if request.rows <= room:
                taken.append(request)
                room -= request.rows
                if room == 0:
                    break
        return taken
