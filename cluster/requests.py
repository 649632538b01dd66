"""Requests and queries, and the queues in which requests wait: by deadline, or for idle time."""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import msgspec

from mainspring.messages.events import QueryArrived, RequestArrived
from mainspring.messages.queries import Chosen, QueryStep

if TYPE_CHECKING:
    from mainspring.cluster.models import Model


class Place(enum.Enum):
    """The place of a request; it is in exactly one place."""

    UNDECIDED = "undecided"
    """It came, or came back from a failed INFER, and was neither queued nor rejected yet."""
    QUEUED = "queued"
    DISPATCHED = "dispatched"
    GONE = "gone"


TRANSITIONS: Final = {
    Place.UNDECIDED: (Place.QUEUED, Place.DISPATCHED, Place.GONE),
    Place.QUEUED: (Place.DISPATCHED, Place.UNDECIDED, Place.GONE),
    Place.DISPATCHED: (Place.UNDECIDED, Place.GONE),
    Place.GONE: (),
}
"""The places that may follow each place; asserted where one is entered. UNDECIDED follows where an INFER
failed, or a queue is cleared."""


class Request:
    """One request.

    ``due_ns`` is when EXEC must have ended: the deadline less the response margin; None for best effort.
    """

    __slots__ = (
        "arrived_ns",
        "charged_ns",
        "cold",
        "due_ns",
        "event",
        "failures",
        "fatal",
        "id",
        "model",
        "place",
        "query",
        "rows",
        "spoilt",
        "suspect",
        "turn_ns",
    )

    def __init__(
        self, event: RequestArrived, model: Model, arrived_ns: int, due_ns: int | None, cold: bool
    ) -> None:
        self.id = event.request_id
        self.model = model
        self.rows = event.rows
        self.arrived_ns = arrived_ns
        self.due_ns = due_ns
        self.cold = cold
        self.turn_ns = arrived_ns
        """Instant that orders it among best-effort requests, as if it had arrived then."""
        self.event = event
        """Its arrival, for a snapshot."""
        self.place = _UNDECIDED
        self.query: Query | None = None
        """The query that it is a piece of; None if it is of none, or if that was not known when it came."""
        self.failures = self.charged_ns = 0
        """The scheduler's notes: how many actions failed on it, and what its tenant was charged for it so far
        (`scheduler.tenants`)."""
        self.fatal = 0
        """The scheduler's note: how many workers were lost while they ran it."""
        self.spoilt = 0
        """The scheduler's note: batches with others that failed for what one of their requests may have
        caused."""
        self.suspect = False
        """The scheduler's note: whether it may have caused that, or a worker's loss; then it runs alone."""

    def __repr__(self) -> str:
        due = "best effort" if self.due_ns is None else f"due {self.due_ns}"
        return (
            f"request {self.id} ({self.model.name}, {self.rows} rows, arrived {self.arrived_ns}, {due}, "
            f"{self.place.value}, {self.failures} failures)"
        )


_ID: Final = attrgetter("id")
_UNDECIDED: Final = Place.UNDECIDED


def add_to_backlog(backlog: deque[Request], request: Request) -> None:
    """Put a best-effort request behind those whose turn comes no later."""
    if backlog and request.turn_ns < backlog[0].turn_ns:
        backlog.appendleft(request)
    elif request.turn_ns < request.arrived_ns:
        index = 0
        for each in backlog:
            if each.turn_ns > request.turn_ns:
                break
            index += 1
        backlog.insert(index, request)
    else:
        backlog.append(request)


class DeadlineQueue:
    """One model's queued requests, ordered by (due_ns, id).

    Additions mostly come at the end and removals at the front, so a list with a binary search is both
    the simplest and the fastest structure for the lengths that deadlines allow. The due instants have a
    list of their own: a search among plain integers never leaves C.
    """

    __slots__ = ("_items", "dues", "rows")

    def __init__(self) -> None:
        self._items: list[Request] = []
        self.dues: list[int] = []
        """The due instant of each request, ascending; to be read only."""
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
        return self.dues[0]

    @property
    def first(self) -> Request:
        """The request that is due first; the queue must not be empty."""
        return self._items[0]

    @property
    def last(self) -> Request:
        """The request that is due last; the queue must not be empty."""
        return self._items[-1]

    def add(self, request: Request) -> None:
        """Put a request with a deadline into its place."""
        due_ns = request.due_ns
        assert due_ns is not None
        self.rows += request.rows
        dues, items = self.dues, self._items
        if not dues or dues[-1] < due_ns:
            dues.append(due_ns)
            items.append(request)
        else:
            end = bisect_right(dues, due_ns)
            index = bisect_left(items, request.id, bisect_left(dues, due_ns, 0, end), end, key=_ID)
            dues.insert(index, due_ns)
            items.insert(index, request)

    def remove(self, request: Request) -> None:
        """Take a request out; raise KeyError if it is not queued."""
        items = self._items
        index = 0 if items and items[0] is request else self._index(request)
        del items[index], self.dues[index]
        self.rows -= request.rows

    def remove_all(self, requests: list[Request]) -> None:
        """Take several requests out, at once if they stand side by side; raise KeyError as `remove`."""
        items = self._items
        first = requests[0]
        index = 0 if items and items[0] is first else self._index(first)
        end = index + len(requests)
        if not index and end == len(items) and items == requests:
            items.clear()
            self.dues.clear()
            self.rows = 0
            return
        if items[index:end] != requests:
            for request in requests:
                self.remove(request)
            return
        if self.rows == len(items):
            self.rows -= len(requests)
        else:
            self.rows -= sum([request.rows for request in requests])
        del items[index:end], self.dues[index:end]

    def clear(self) -> list[Request]:
        """Take everything out, and return it in order."""
        items, self._items, self.dues, self.rows = self._items, [], [], 0
        return items

    def first_feasible(self, due_ns: int, size: int) -> int:
        """Return the index of the first request due at or after an instant that fits ``size`` rows.

        It is the queue's length if there is none.
        """
        dues, items = self.dues, self._items
        index = bisect_left(dues, due_ns) if dues and dues[0] < due_ns else 0
        if self.rows != len(items):
            while index < len(items) and items[index].rows > size:
                index += 1
        return index

    def rows_at(self, index: int) -> int:
        """Return the rows of the request at an index."""
        return self._items[index].rows

    def rows_before(self, request: Request) -> int:
        """Return the rows of the requests that stand before one, which need not be queued itself."""
        due_ns, dues, items = request.due_ns, self.dues, self._items
        assert due_ns is not None
        if items and items[0] is request:
            return 0
        if items and items[-1] is request:
            return self.rows - request.rows
        index = bisect_left(dues, due_ns)
        if index < len(dues) and dues[index] == due_ns:
            index = bisect_left(items, request.id, index, bisect_right(dues, due_ns, index), key=_ID)
        if self.rows == len(items):
            return index
        if 2 * index < len(items):
            return sum([each.rows for each in items[:index]])
        return self.rows - sum([each.rows for each in items[index:]])

    def rows_due_from(self, due_ns: int) -> int:
        """Return the rows of the requests due at or after an instant.

        Where all have one row they need not be read.
        """
        dues = self.dues
        if not dues or dues[0] >= due_ns:
            return self.rows
        index = bisect_left(dues, due_ns)
        if self.rows == len(dues):
            return len(dues) - index
        if 2 * index < len(dues):
            return self.rows - sum([request.rows for request in self._items[:index]])
        return sum([request.rows for request in self._items[index:]])

    def rows_from(self, index: int, limit: int) -> int:
        """Return the rows from an index on, counted no further than ``limit``."""
        items = self._items
        if self.rows == len(items):
            return min(limit, len(items) - index)
        rows = 0
        for request in items[index : index + limit]:
            rows += request.rows
            if rows >= limit:
                return limit
        return rows

    def fill(self, index: int, size: int) -> list[Request]:
        """Return requests from an index on, in order, that fit a batch of ``size`` rows.

        A request that no longer fits is passed over; the search ends after ``4 * size`` requests.
        """
        if self.rows == len(self._items):
            return self._items[index : index + size]
        taken = []
        room = size
        for request in self._items[index : index + 4 * size]:
            if request.rows <= room:
                taken.append(request)
                room -= request.rows
                if room == 0:
                    break
        return taken

    def _index(self, request: Request) -> int:
        """Return where a request stands; raise KeyError if it is not queued."""
        items, dues = self._items, self.dues
        assert request.due_ns is not None
        index = bisect_left(dues, request.due_ns)
        if index == len(items) or items[index] is not request:
            end = bisect_right(dues, request.due_ns, index)
            index = bisect_left(items, request.id, index, end, key=_ID)
            if index == end or items[index] is not request:
                raise KeyError(request.id)
        return index


def step_of(request: Request) -> str:
    """Return the step of a graph that a request is a piece of, such as ``read_text.find``; else empty."""
    if request.query is None or not request.query.event.graph:
        return ""
    event = request.query.event
    return f"{event.graph}.{event.steps[request.event.step].name}"


def choice_of(request: Request) -> str:
    """Return in words why a piece is of the member of a family that it is of; empty of other requests."""
    query = request.query
    found = None if query is None else query.choices.get(request.event.step)
    if found is None:
        return ""
    step, chosen = found
    offered = ", ".join(f"{name} ({score:g})" for name, score in zip(step.members, step.scores, strict=True))
    return f"{chosen.model} chosen among {offered}, at a price of {chosen.price:.3g} for a device's second"


class Query:
    """A query that has neither been answered nor rejected.

    ``due_ns`` is when the last EXEC must have ended: the deadline less the response margin; None for best
    effort.
    """

    __slots__ = ("arrived_ns", "choices", "done", "due_ns", "ended_ns", "event", "id", "open")

    def __init__(self, event: QueryArrived, arrived_ns: int, due_ns: int | None) -> None:
        self.id = event.query_id
        self.event = event
        self.arrived_ns = arrived_ns
        self.due_ns = due_ns
        self.open: dict[int, Request] = {}
        """Its pieces that have no end yet, by id."""
        self.done = [0] * len(event.steps)
        """Rows of each step that have ended."""
        self.ended_ns: dict[int, int] = {}
        """The scheduler's note: when each step that has ended did."""
        self.choices: dict[int, tuple[QueryStep, Chosen]] = {}
        """The steps of which a member was chosen as they were before, with the choice."""

    def __repr__(self) -> str:
        due = "best effort" if self.due_ns is None else f"due {self.due_ns}"
        steps = ", ".join(
            f"{done} of {step.rows} rows of {step.model}"
            for done, step in zip(self.done, self.event.steps, strict=True)
        )
        return f"query {self.id} (arrived {self.arrived_ns}, {due}, {len(self.open)} open, {steps})"

    def ended(self, index: int) -> bool:
        """Return whether all of a step has ended, as far as its rows are known."""
        if self.done[index] < self.event.steps[index].rows:
            return False
        return index not in [piece.event.step for piece in self.open.values()]

    def learn(self, steps: tuple[QueryStep, ...]) -> bool:
        """Take what is known now of the steps without a piece so far; return False if these are others."""
        known = self.event.steps
        if len(steps) != len(known):
            return False
        if any(
            new.model != old.model and old.model not in new.members
            for old, new in zip(known, steps, strict=True)
        ):
            return False
        began = {piece.event.step for piece in self.open.values()}
        merged = [
            old if done or index in began else _with_choice(old, new)
            for index, (done, old, new) in enumerate(zip(self.done, known, steps, strict=True))
        ]
        self.event = msgspec.structs.replace(self.event, steps=tuple(merged))
        return True

    def choose(self, chosen: Chosen) -> None:
        """Have a step be of one of its members from now on."""
        steps = list(self.event.steps)
        if chosen.step < len(steps):
            if steps[chosen.step].members:
                self.choices[chosen.step] = steps[chosen.step], chosen
            step = msgspec.structs.replace(steps[chosen.step], model=chosen.model, members=(), scores=())
            steps[chosen.step] = step
            self.event = msgspec.structs.replace(self.event, steps=tuple(steps))

    @property
    def over(self) -> bool:
        """True if nothing of it is left to do."""
        left = [step for step, done in zip(self.event.steps, self.done, strict=True) if done < step.rows]
        return not self.open and not left


def _with_choice(old: QueryStep, new: QueryStep) -> QueryStep:
    """Return what is known of a step now, of the model that was chosen for it before, if one was."""
    if old.members or not new.members:
        return new
    return msgspec.structs.replace(new, model=old.model, members=(), scores=())
