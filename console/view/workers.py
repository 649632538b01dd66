"""Workers: their pages and executors, and who gave pages up for whom."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from mainspring.console.view.actions import Lane
from mainspring.console.view.limits import SECOND_NS
from mainspring.console.view.models import Placement

MOST_PAGES = 1 << 20
"""A worker that names a page beyond this is not believed: 16 TiB of weights."""
EXECUTORS = ("EXEC", "LOAD", "OTHER")
"""An executor's name by the lane that its actions are in; UNLOAD, PREPARE and RELEASE are in the last."""
WORST_SECONDS = 300
"""Seconds of which the worst prediction error is remembered, of each worker."""
NO_ERROR = -(1 << 62)
"""Nothing of the kind ended in a second."""
ERRORS = 1_000
"""INFERs whose prediction error is remembered, of each worker."""


class Evicted:
    """A model that gave its pages up."""

    __slots__ = ("at_ns", "for_model", "model", "pages")

    def __init__(self, at_ns: int, model: str, pages: int) -> None:
        self.at_ns = at_ns
        self.model = model
        self.pages = pages
        self.for_model = ""
        """What was loaded into one of its pages next."""


class History:
    """What is remembered under one worker's name, whichever session it was in."""

    __slots__ = (
        "errors_ns",
        "evictions",
        "exec",
        "failed",
        "last_result_ns",
        "load",
        "load_errors_ns",
        "other",
        "worst",
    )

    def __init__(self, worker: str, evictions: int) -> None:
        self.exec, self.load, self.other = (Lane(worker, executor) for executor in EXECUTORS)
        self.evictions: deque[Evicted] = deque(maxlen=evictions)
        """The newest last."""
        self.failed: Counter[str] = Counter()
        """Actions that did not end well, by kind and status."""
        self.errors_ns: deque[int] = deque(maxlen=ERRORS)
        """|predicted - actual| duration of its last INFERs that ended well."""
        self.load_errors_ns: deque[int] = deque(maxlen=ERRORS)
        """The same of its last LOADs."""
        self.worst: deque[list[int]] = deque(maxlen=WORST_SECONDS)
        """By second in which actions ended, the newest last: the second, and the longest that an INFER and a
        LOAD took beyond their predictions in it, or the shortest if none took longer."""
        self.last_result_ns: int | None = None

    def erred(self, now_ns: int, error_ns: int, *, load: bool) -> None:
        """Remember by how much longer an INFER, or a LOAD, took than was predicted."""
        (self.load_errors_ns if load else self.errors_ns).append(abs(error_ns))
        second = now_ns // SECOND_NS
        if not self.worst or self.worst[-1][0] != second:
            self.worst.append([second, NO_ERROR, NO_ERROR])
        worst = self.worst[-1]
        worst[1 + load] = max(worst[1 + load], error_ns)

    def lanes(self) -> tuple[Lane, Lane, Lane]:
        """Return its lanes in the order of `EXECUTORS`."""
        return self.exec, self.load, self.other


class WorkerState:
    """One session of a worker, from its joining on."""

    def __init__(
        self,
        name: str,
        device_kind: str,
        pages: int,
        joined_ns: int,
        joined_seq: int,
        history: History,
    ) -> None:
        self.name = name
        self.device_kind = device_kind
        """Empty if the stream never told of it."""
        self.pages = pages
        self.history = history
        self.joined_ns = joined_ns
        self.joined_seq = joined_seq
        """Which record of the stream that was (`View.seq`)."""
        self.left_ns: int | None = None
        """When it was found to be gone."""
        self.left_seq = 0
        self.detail = ""
        self.stopping_seq = 0
        """Which record said that it begins nothing more; 0 if none did."""
        self.placements: dict[str, Placement] = {}
        self.states: Counter[str] = Counter()
        """How many of them are in each state."""
        self.used = 0
        """Pages that have an owner."""
        self.inputs_seen_ns = 0
        """When the way of its inputs was last seen free."""
        self._owners: list[Placement | None] = [None] * min(pages, MOST_PAGES)
        self._vacated: dict[int, Evicted] = {}
        """By page, who had it last and was not followed by anybody."""

    def strike(self, placement: Placement) -> None:
        """Take a placement out."""
        if self.placements.pop(placement.model.name, None) is placement:
            self.states[placement.state] -= 1

    def had(self, seq: int) -> bool:
        """Return whether a record of the stream came while the session lasted."""
        return seq >= self.joined_seq and (self.left_ns is None or seq <= self.left_seq)

    def owner(self, page: int) -> Placement | None:
        """Return what owns a page."""
        return self._owners[page] if page < len(self._owners) else None

    def take(self, placement: Placement, pages: Iterable[int]) -> None:
        """Give pages to a model; another that is still there loses them."""
        owners = self._owners
        placement.pages = tuple([page for page in pages if 0 <= page < MOST_PAGES])
        for page in placement.pages:
            if page >= len(owners):
                owners.extend([None] * (page + 1 - len(owners)))
                self.pages = max(self.pages, page + 1)
            self.used += owners[page] is None
            owners[page] = placement

    def give_back(self, placement: Placement) -> None:
        """Free a model's pages."""
        owners = self._owners
        for page in placement.pages:
            if owners[page] is placement:
                owners[page] = None
                self.used -= 1
        placement.pages = ()

    def vacate(self, now_ns: int, placement: Placement) -> None:
        """Free a model's pages, and remember it."""
        if placement.pages:
            evicted = Evicted(now_ns, placement.model.name, len(placement.pages))
            self.history.evictions.append(evicted)
            for page in placement.pages:
                self._vacated[page] = evicted
        self.give_back(placement)

    def fill(self, placement: Placement, pages: Iterable[int]) -> None:
        """Give pages to a model that is loaded, and remember for whom others gave them up."""
        self.take(placement, pages)
        for page in placement.pages:
            evicted = self._vacated.pop(page, None)
            if evicted is not None and not evicted.for_model:
                evicted.for_model = placement.model.name
