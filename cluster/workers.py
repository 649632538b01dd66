"""Workers: their pages, their executors' timelines, and what they hold (Clockwork, section 5.3)."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from mainspring.cluster.pages import PageTable
from mainspring.cluster.placements import NO_BUCKETS, Placement
from mainspring.cluster.timeline import ExecTimeline, Timeline
from mainspring.messages.actions import Action, Load, Prepare, Release, Unload
from mainspring.messages.targets import device_kind_of, targets_in

if TYPE_CHECKING:
    from mainspring.cluster.deferred_join import Joining


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
        """Placements that may be plain by now (`residency_bits.tidy`); the cluster's, once it has a seat."""
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
