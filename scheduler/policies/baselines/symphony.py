"""Deferred batch scheduling, after Symphony (Chen et al., arXiv 2308.07470).

A batch is not dispatched as soon as an executor is idle, but in its *schedulable window*: from the last
instant at which it could still have grown (the deadline of its first request less the duration of the next
larger batch; at once if there is no larger one) to its latest start (that deadline less its own duration).
An executor takes, of the batches whose window is open, the one with the earliest latest start; where several
are idle the one of the lowest number does, so that few devices do the work of a light load. Requests at a
queue's head that the largest possible batch would make late are passed over.

One timer over all models opens windows, at lower bounds of their beginnings; only then is a model entered
into the ready queues of its workers, which are in the order of latest starts.

Symphony takes all models to be in memory: what to load and what to evict is as in Clockwork (`DemandLoads`).
Batch sizes between the compiled ones are padded.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, ClassVar, cast

import msgspec

from mainspring.cluster.timeline import NEVER_NS
from mainspring.scheduler.alarms import Alarm
from mainspring.scheduler.config import milliseconds
from mainspring.scheduler.policies.base import Batch
from mainspring.scheduler.policies.batching import largest_batch, largest_index
from mainspring.scheduler.policies.demand import DemandLoads
from mainspring.scheduler.policies.options import SymphonyOptions
from mainspring.scheduler.policies.ready_queue import PUT_OFF, ReadyQueuePolicy, ready_by_ns

if TYPE_CHECKING:
    from mainspring.cluster.models import Model
    from mainspring.cluster.placements import Placement
    from mainspring.cluster.requests import Request
    from mainspring.cluster.workers import Worker
    from mainspring.scheduler.placing import LoadPlan
    from mainspring.scheduler.state import SchedulerState


SWEPT_FROM = 1_024
"""A heap of fewer entries is not swept."""


class Deferral:
    """A model with queued requests: when its window opens, or for what it was offered to workers."""

    __slots__ = ("head_due_ns", "index", "opens_ns")

    def __init__(self) -> None:
        self.opens_ns = NEVER_NS
        """The instant in the model's heap entry; NEVER without one."""
        self.head_due_ns = NEVER_NS
        """The first due instant when the model was last offered to workers; NEVER if it is not."""
        self.index = -1
        """The index of the largest batch that it could have filled then."""


class Symphony(ReadyQueuePolicy):
    """Batches as late as they can still grow, in the order of their latest starts."""

    name: ClassVar[str] = "symphony"
    Options: ClassVar[type[msgspec.Struct]] = SymphonyOptions
    lookahead_ms: ClassVar[float] = 1.0

    def __init__(self, state: SchedulerState, options: msgspec.Struct) -> None:
        super().__init__(state, options)
        self._pads = bool(state.config.pad_batches)
        self._ahead_ns = state.ns.dispatch_delay + milliseconds(cast(SymphonyOptions, options).guard_ms)
        self._loads = DemandLoads(state)
        self._deferrals: dict[int, Deferral] = {}
        """The deferral of each model with queued requests, by number."""
        self._opening: list[tuple[int, int, Model]] = []
        self._alarm_ns = NEVER_NS

    def queued(self, now_ns: int, request: Request) -> None:
        """Put the opening of the model's window where it is now, and enter the new demand."""
        self._defer(now_ns, request.model)
        self._loads.update(now_ns, request.model)

    def unqueued(self, now_ns: int, request: Request) -> None:
        """Take the request's demand back; a window that opens too early for the others is put off then."""
        if not request.model.queue.dues:
            self._deferrals.pop(request.model.number, None)
        self._loads.refresh(now_ns, request.model)

    def dispatched(self, now_ns: int, batch: Batch) -> None:
        """Defer what is left of the model's queue, and take the batch's demand back."""
        model = batch.placement.model
        self._deferrals.pop(model.number, None)
        if model.queue.dues:
            self._defer(now_ns, model)
        self._loads.refresh(now_ns, model)

    def residency_changed(self, now_ns: int, placement: Placement) -> None:
        """Offer the model to a new holder if its window is open, and allocate its demand again."""
        model = placement.model
        if not placement.usable:
            placement.note = None
        elif model.queue.dues:
            self._deferrals.pop(model.number, None)
            self._defer(now_ns, model)
        self._loads.update(now_ns, model)

    def worker_left(self, now_ns: int, worker: Worker) -> None:
        """Let its models' demand go to the others."""
        super().worker_left(now_ns, worker)
        self._loads.worker_left(now_ns, worker)

    def next_load(self, now_ns: int) -> LoadPlan | None:
        """Return the model of the highest load priority that some worker can take now."""
        return self._loads.next_load(now_ns)

    def on_alarm(self, now_ns: int) -> None:
        """Offer the models whose windows open to their workers."""
        if now_ns < self._alarm_ns:
            # An alarm that a nearer one was set after, and handled before, has nothing left to do.
            return
        self._alarm_ns = NEVER_NS
        opening = self._opening
        while opening:
            opens_ns, number, model = opening[0]
            deferral = self._deferrals.get(number)
            if deferral is None or deferral.opens_ns != opens_ns:
                heapq.heappop(opening)
                continue
            if opens_ns > now_ns + self._ahead_ns:
                self._arm(opens_ns)
                return
            heapq.heappop(opening)
            self._open(now_ns, model, deferral)

    def _defer(self, now_ns: int, model: Model) -> None:
        """Enter a lower bound of when a model's window opens, or offer the model if it is open."""
        deferral = self._deferrals.get(model.number)
        if deferral is None:
            deferral = self._deferrals[model.number] = Deferral()
        head_due_ns, index = model.queue.dues[0], model.index_of[min(model.queue.rows, model.max_rows)]
        if deferral.head_due_ns != NEVER_NS:
            if head_due_ns < deferral.head_due_ns or index > deferral.index:
                self._open(now_ns, model, deferral)
            return
        opens_ns = _opens_ns(model, head_due_ns)
        if opens_ns <= now_ns + self._ahead_ns:
            self._open(now_ns, model, deferral)
        elif opens_ns < deferral.opens_ns:
            self._enter(opens_ns, model, deferral)

    def _put_off(self, opens_ns: int, model: Model) -> None:
        """Enter when the window of a model that was offered too early opens on some worker."""
        deferral = self._deferrals.get(model.number)
        if deferral is not None and opens_ns < deferral.opens_ns:
            deferral.head_due_ns = NEVER_NS
            self._enter(opens_ns, model, deferral)

    def _enter(self, opens_ns: int, model: Model, deferral: Deferral) -> None:
        deferral.opens_ns = opens_ns
        opening = self._opening
        heapq.heappush(opening, (opens_ns, model.number, model))
        if len(opening) > SWEPT_FROM and len(opening) > 2 * len(self._deferrals):
            self._sweep()
        self._arm(opens_ns)

    def _sweep(self) -> None:
        """Drop the entries of windows that moved, or were used."""
        valid: dict[int, tuple[int, int, Model]] = {}
        for entry in self._opening:
            deferral = self._deferrals.get(entry[1])
            if deferral is not None and deferral.opens_ns == entry[0]:
                valid[entry[1]] = entry
        self._opening = list(valid.values())
        heapq.heapify(self._opening)

    def _arm(self, opens_ns: int) -> None:
        """Have `on_alarm` called in time for a window's opening."""
        when_ns = opens_ns - self._ahead_ns
        if when_ns < self._alarm_ns:
            self._alarm_ns = when_ns
            self.state.alarms.set(when_ns, Alarm.POLICY)

    def _open(self, now_ns: int, model: Model, deferral: Deferral) -> None:
        """Offer a model to the workers that hold it, and wake the idle ones in the order of their numbers."""
        index = model.index_of[min(model.queue.rows, model.max_rows)]
        deferral.opens_ns, deferral.head_due_ns, deferral.index = NEVER_NS, model.queue.dues[0], index
        idle_ns = now_ns + self.state.ns.lookahead
        idle = []
        for placement in model.usable.values():
            self.offer(placement)
            if placement.worker.exec.free_ns <= idle_ns:
                idle.append((placement.worker.number, placement.worker))
        idle.sort()
        for _, worker in idle:
            self.state.wants(worker)

    def key(self, placement: Placement) -> int:
        """Return a lower bound of the latest start of a model's batch on a worker."""
        queue, times = placement.model.queue, placement.times
        return queue.dues[0] - times.ns[largest_index(placement.model)]

    def candidate(
        self, now_ns: int, placement: Placement, available_ns: int, inputs_ns: int
    ) -> tuple[int, int, int] | None:
        """Return the latest start of the largest batch that the requests which can still make it fill, or pad
        with profit, if its window is open.
        """
        queue, times = placement.model.queue, placement.times
        begin_ns = ready_by_ns(now_ns, placement, available_ns, inputs_ns + times.transfer_ns[0])
        if begin_ns is None:
            return None
        top = largest_index(placement.model)
        found = largest_batch(queue, times, top, begin_ns, inputs_ns, self._pads)
        if found is None:
            return None
        index, first, rows = found
        due_ns = queue.dues[first]
        grown = index + 1 if rows == times.sizes[index] else index
        if grown < len(times.sizes):
            opens_ns = due_ns - times.ns[grown]
            if opens_ns > max(available_ns, now_ns + self._ahead_ns):
                self._put_off(opens_ns, placement.model)
                return PUT_OFF
        return due_ns - times.ns[index], index, first


def _opens_ns(model: Model, head_due_ns: int) -> int:
    """Return a lower bound of when a model's window opens on any kind of device; 0 for at once."""
    rows = model.queue.rows
    if rows >= model.max_rows:
        return 0
    grown = model.index_of[rows + 1]
    slowest_ns = 0
    for times in model.infer_times.values():
        slowest_ns = max(slowest_ns, times.ns[grown])
    return head_due_ns - slowest_ns
