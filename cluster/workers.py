"""Workers: their pages, their executors' timelines, and what they hold (Clockwork, section 5.3)."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from mainspring.cluster.placements import NO_BUCKETS, Placement
from mainspring.cluster.timeline import ExecTimeline, Timeline
from mainspring.messages.actions import Action, Load, Prepare, Release, Unload
from mainspring.messages.targets import device_kind_of, targets_in


class PageTable:
    """The controller's page table of one worker: which pages are free, and where a model can go.

    A page has at most one owner. A model needs its *extents*: runs of adjacent pages. Single pages are taken
    from the low end of the cache and longer extents from the shortest run that holds them, the highest first,
    so that models of single pages do not cut up the room that the others need.
    """

    def __init__(self, pages: int) -> None:
        self.size = pages
        self._owner: list[str | None] = [None] * pages
        self._free: list[int] = list(range(pages))

    @property
    def free(self) -> int:
        """Number of pages without an owner."""
        return len(self._free)

    def owner(self, page: int) -> str | None:
        """Return the model that owns a page."""
        return self._owner[page]

    def owners(self, pages: Iterable[int]) -> set[str | None]:
        """Return the models that own pages, None among them if a page is free."""
        owner = self._owner
        return {owner[page] for page in pages}

    def take(self, model: str, pages: Iterable[int]) -> None:
        """Give free pages to a model; raise ValueError on a page that is not free."""
        owner, free, taken = self._owner, self._free, list(pages)
        for page in taken:
            if not 0 <= page < self.size or owner[page] is not None:
                raise ValueError(f"page {page} is not free for {model}")
            owner[page] = model
        first = bisect_left(free, taken[0]) if taken else 0
        if free[first : first + len(taken)] == taken:
            # Mostly they are neighbours among the free ones.
            del free[first : first + len(taken)]
        else:
            for page in taken:
                del free[bisect_left(free, page)]

    def give_back(self, model: str, pages: Iterable[int]) -> None:
        """Free a model's pages; raise ValueError on a page that is not its own."""
        owner, free, given = self._owner, self._free, sorted(pages)
        for page in given:
            if owner[page] != model:
                raise ValueError(f"page {page} is owned by {owner[page]}, not by {model}")
            owner[page] = None
        first = bisect_left(free, given[0]) if given else len(free)
        if first == len(free) or free[first] > given[-1]:
            free[first:first] = given
        else:
            for page in given:
                insort(free, page)

    def place(self, extents: Sequence[int], also_free: Sequence[int] = ()) -> tuple[int, ...] | None:
        """Return pages for the extents, in their order, or None if there is no room.

        ``also_free`` are pages that count as free although they still have an owner; models of single
        pages use them only when the free ones run out.
        """
        need = sum(extents)
        if need > len(self._free) + len(also_free):
            return None
        if need == len(extents):
            pages = self._free[:need]
            return (*pages, *also_free[: need - len(pages)])
        return _place_runs(extents, _runs(sorted((*self._free, *also_free))))

    def validate(self, owned: dict[str, tuple[int, ...]]) -> None:
        """Check the table against each model's pages; raise AssertionError with the story."""
        seen: dict[int, str] = {}
        for model, pages in owned.items():
            for page in pages:
                assert page not in seen, f"page {page} belongs to {seen[page]} and to {model}"
                assert self._owner[page] == model, f"page {page} of {model} is owned by {self._owner[page]}"
                seen[page] = model
        assert len(seen) + len(self._free) == self.size, (
            f"{len(seen)} owned + {len(self._free)} free pages are not {self.size}"
        )


def _place_runs(extents: Sequence[int], runs: list[list[int]]) -> tuple[int, ...] | None:
    """Put each extent, the longest first, at the high end of the shortest run that holds it."""
    chosen: list[tuple[int, ...]] = [()] * len(extents)
    for index in sorted(range(len(extents)), key=lambda i: (-extents[i], i)):
        need = extents[index]
        fitting = [run for run in runs if run[1] >= need]
        if not fitting:
            return None
        run = min(fitting, key=lambda run: (run[1], -run[0]))
        run[1] -= need
        first = run[0] + run[1]
        chosen[index] = tuple(range(first, first + need))
    return tuple(page for extent in chosen for page in extent)


def _runs(free: Iterable[int]) -> list[list[int]]:
    """Return ascending free pages as [first page, length] runs."""
    runs: list[list[int]] = []
    for page in free:
        if runs and runs[-1][0] + runs[-1][1] == page:
            runs[-1][1] += 1
        else:
            runs.append([page, 1])
    return runs


class Joining:
    """A worker's prepared models that are yet to be entered (`cluster.deferred_join.DeferredJoin`)."""

    __slots__ = ("worker",)

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def enter(self, name: str) -> None:
        """Enter what the worker has of a model's name, unless it was entered before."""
        raise NotImplementedError

    def some(self) -> None:
        """Enter a part; after the last one the worker is no longer joining."""
        raise NotImplementedError

    def early(self) -> Iterator[int]:
        """Enter everything before its turn as the generator goes on, a part at a time; yield after each."""
        raise NotImplementedError

    def end(self) -> None:
        """Enter nothing more: all is entered, or the worker is gone."""
        raise NotImplementedError

    def unwelcome(self) -> list[Placement]:
        """Return, once, what has had its turn and has yet to be taken off the worker."""
        raise NotImplementedError


class Worker:
    """One worker: its pages, its executors' timelines, and what it holds."""

    __slots__ = (
        "bit",
        "draining",
        "exec",
        "fleeting",
        "joining",
        "kind",
        "lead_ns",
        "load",
        "lru",
        "name",
        "note",
        "number",
        "others",
        "owner",
        "pages",
        "placements",
        "prepare_queue",
        "prepared",
        "prepares",
        "retiring",
        "stalled",
        "stopping",
    )

    def __init__(self, name: str, number: int, kind: str, pages: int, grace_ns: int = 0) -> None:
        """``grace_ns`` is how long results are on their way."""
        self.name = name
        self.number = number
        self.bit = 1 << number
        """Stands for the worker in sets of workers, which are ints; `Cluster.seat` assigns a low one."""
        self.kind = kind
        """Kind of worker: those of a kind run the same artifacts on such a device (`kind_of`)."""
        self.pages = PageTable(pages)
        self.exec = ExecTimeline(grace_ns)
        self.load: Timeline[Load] = Timeline(grace_ns)
        self.others: dict[int, tuple[Unload | Prepare | Release, int]] = {}
        """Outstanding actions without a window, with the instant they were sent."""
        self.placements: dict[str, Placement] = {}
        """Placements that `Model.prepared` does not describe completely, by model, in no order."""
        self.joining: Joining | None = None
        """Models that it has prepared and that are yet to be entered."""
        self.fleeting: list[Placement] = []
        """Placements that may be plain by now (`residency.tidy`); the cluster's, once it has a seat."""
        self.lru: dict[str, Placement] = {}
        """Resident placements, the least recently used first; a plain dict, because a pass over an
        `OrderedDict` looks each of them up."""
        self.prepare_queue: OrderedDict[str, None] = OrderedDict()
        self.prepares = self.prepared = 0
        """PREPAREs outstanding, and models in one of `PREPARED_STATES`."""
        self.lead_ns = 0
        """Time beyond the lookahead by which EXEC gets work earlier, so that inputs travel meanwhile."""
        self.stopping = False
        """True if it said that it begins nothing more."""
        self.stalled = False
        """True if the action on EXEC takes far longer than predicted (`scheduler.overdue_actions`)."""
        self.draining = False
        """True if nothing more is to be sent to it: an operator wants that, or it is about to be stopped."""
        self.retiring = False
        """True if it is to leave, so that nothing is loaded there any more."""
        self.owner = ""
        """Name of the model that alone runs on it (`cluster.assigning`); empty: those that own no worker."""
        self.note: object = None
        """The policy's own."""

    def find(self, name: str, sizes: tuple[int, ...]) -> Placement:
        """Return the placement of a model that has one, by its name, or of its bucket of these sizes.

        Raises KeyError where there is none.
        """
        placement = self.placements[name]
        if not placement.buckets:
            return placement
        bucket = placement.model.find(sizes)
        return placement if bucket is None else bucket.placements[self.name]

    def has(self, placement: Placement) -> bool:
        """Return whether a placement is still the worker's."""
        return self.placements.get(placement.base.model.name) is placement.base

    @property
    def device_kind(self) -> str:
        """Return its name for its device."""
        return device_kind_of(self.kind)

    @property
    def targets(self) -> tuple[str, ...]:
        """Return the targets of the artifacts that it runs, the best first; empty: any."""
        return targets_in(self.kind)

    def outstanding(self, action_id: int) -> tuple[Action, int] | None:
        """Return an outstanding action with the instant at which it was sent, or None."""
        executed = self.exec.get(action_id)
        if executed is not None:
            return executed.action, executed.action.earliest_ns
        load = self.load.get(action_id)
        if load is not None:
            return load.action, load.action.earliest_ns
        return self.others.get(action_id)

    def forget(self) -> None:
        """Drop the placements of a worker that is gone, and the policy's note.

        They point back to it: without this only a garbage collection would free them.
        """
        for placement in self.placements.values():
            placement.buckets = NO_BUCKETS
        self.placements.clear()
        self.lru.clear()
        self.note = None

    @property
    def open(self) -> bool:
        """Return whether it takes new work."""
        return not self.stopping and not self.draining
