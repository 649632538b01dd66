"""The history of each worker beside the fold: its actions, and how well predictions held."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

import msgspec

from mainspring.cluster.placements import State
from mainspring.cluster.workers import Worker
from mainspring.console.view.actions import LANE_SECONDS, LOST, Action, Lane
from mainspring.console.view.series import SECOND_NS, Ring

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
        """Model that was loaded into one of its pages next."""


class Run(msgspec.Struct, frozen=True):
    """Adjacent pages of one owner."""

    first: int
    count: int
    model: str
    """Empty for free pages."""
    loading: bool = False
    last_used_ns: int = 0


class Standing(msgspec.Struct, frozen=True):
    """The resources of a worker and the models on it."""

    name: str
    device_kind: str
    pages: int
    pages_free: int
    prepared: int
    """Models that it could run or load."""
    resident: tuple[str, ...]


class Session(Standing, frozen=True):
    """A worker as it was when it was found to be gone."""

    left_ns: int
    why: str
    runs: tuple[Run, ...]


def standing(worker: Worker) -> Standing:
    """Return what a worker has now."""
    return Standing(*_has(worker))


def left(worker: Worker, left_ns: int, why: str) -> Session:
    """Return what a worker has as it leaves."""
    return Session(*_has(worker), left_ns, why, tuple(runs(worker)))


def _has(worker: Worker) -> tuple[str, str, int, int, int, tuple[str, ...]]:
    pages = worker.pages
    return worker.name, worker.device_kind, pages.size, pages.free, worker.prepared, tuple(worker.lru)


def runs(worker: Worker) -> list[Run]:
    """Return a worker's pages as runs of one owner each, in the order of pages."""
    found: list[Run] = []
    owner, size = worker.pages.owner, worker.pages.size
    first = 0
    while first < size:
        model = owner(first)
        end = first + 1
        while end < size and owner(end) == model:
            end += 1
        placement = None if model is None else worker.placements.get(model)
        if placement is None:
            found.append(Run(first, end - first, model or ""))
        else:
            loading = placement.state is State.LOADING
            found.append(Run(first, end - first, placement.model.name, loading, placement.last_used_ns))
        first = end
    return found


class History:
    """The history under one worker's name, over all its sessions."""

    def __init__(self, worker: str, evictions: int) -> None:
        """Remember at most ``evictions`` of them."""
        self.exec, self.load, self.other = self.lanes = tuple(Lane(worker, each) for each in EXECUTORS)
        """Its lanes in the order of `EXECUTORS`."""
        self.evictions: deque[Evicted] = deque(maxlen=evictions)
        """The newest last."""
        self.failed: Counter[str] = Counter()
        """Actions that did not end well, by kind and status."""
        self.errors_ns: deque[int] = deque(maxlen=ERRORS)
        """|predicted - actual| duration of its last INFERs that ended well."""
        self.load_errors_ns: deque[int] = deque(maxlen=ERRORS)
        """The same of its last LOADs."""
        self.worst: deque[list[int]] = deque(maxlen=WORST_SECONDS)
        """Worst prediction errors by second in which actions ended, the newest last: the second, and the
        longest that an INFER and a LOAD took beyond their predictions in it, or the shortest if none took
        longer."""
        self.batches, self.rows = Ring(LANE_SECONDS), Ring(LANE_SECONDS)
        """INFERs that ended well, and their rows, by second of the controller's clock."""
        self.last_result_ns: int | None = None
        self.joined_ns = 0
        """Instant at which its present session, or its last one, began; 0 if that is not known."""
        self.stopping = False
        """True if it said that it begins nothing more."""
        self._vacated: dict[int, Evicted] = {}
        """Last eviction from each page that another model has not been loaded into since, by page."""

    def lane(self, kind: str) -> Lane:
        """Return the lane that actions of a kind are in."""
        return self.exec if kind in ("INFER", "OPEN") else self.load if kind == "LOAD" else self.other

    def joined(self, now_ns: int) -> None:
        """Begin a session."""
        self.joined_ns = now_ns
        self.stopping = False
        self._vacated.clear()

    def ended(self, now_ns: int, action: Action) -> None:
        """Remember an action that has ended; ``now_ns`` is when its result came."""
        self.lane(action.kind).end(action)
        if action.status == LOST:
            return
        self.last_result_ns = now_ns
        if action.status not in ("ok", "not_open"):
            self.failed[f"{action.kind} {action.status}"] += 1
        elif action.kind in ("INFER", "LOAD"):
            error_ns = action.end_ns - action.begin_ns - action.predicted_duration_ns
            self._erred(now_ns, error_ns, load=action.kind == "LOAD")
            if action.kind == "INFER":
                self.batches.add(now_ns // SECOND_NS, 1)
                self.rows.add(now_ns // SECOND_NS, action.rows)

    def unloaded(self, now_ns: int, model: str, pages: Iterable[int]) -> None:
        """Remember that a model gives its pages up."""
        evicted = Evicted(now_ns, model, len(pages := [*pages]))
        if pages:
            self.evictions.append(evicted)
        for page in pages:
            self._vacated[page] = evicted

    def loading(self, model: str, pages: Iterable[int]) -> None:
        """Remember for which model others gave its pages up."""
        for page in pages:
            evicted = self._vacated.pop(page, None)
            if evicted is not None and not evicted.for_model:
                evicted.for_model = model

    def _erred(self, now_ns: int, error_ns: int, *, load: bool) -> None:
        """Remember by how much longer an INFER, or a LOAD, took than was predicted."""
        (self.load_errors_ns if load else self.errors_ns).append(abs(error_ns))
        second = now_ns // SECOND_NS
        if not self.worst or self.worst[-1][0] != second:
            self.worst.append([second, NO_ERROR, NO_ERROR])
        worst = self.worst[-1]
        worst[1 + load] = max(worst[1 + load], error_ns)
