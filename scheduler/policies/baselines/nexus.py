"""The policy of Nexus (SOSP '19, sections 6.1 and 6.3): planned devices and batches, round robin, early drop.

Each epoch the sessions' rates are measured, and `squishy.packed` plans which devices serve which models with
which batches. A device runs its models in turn, each with at most its planned batch; it does not wait for a
batch to fill. *Early drop*: a batch begins at the first request whose deadline allows for a batch of the
planned size, or of all that follow if those are fewer; the requests before it are passed over.

What differs from the paper: a model has one queue here, from which each of its devices takes its batches,
where Nexus's frontends share requests out by planned rates; requests that were passed over stay queued
while a smaller batch could still save them. A model whose first request comes between two plans goes to the
device with the fewest models. LOADs follow the plan; what is evicted is least recently used.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, ClassVar, Final, cast

import msgspec

from mainspring.cluster.residency import at, is_loadable
from mainspring.scheduler.alarms import Alarm
from mainspring.scheduler.config import milliseconds
from mainspring.scheduler.placing import plan_load
from mainspring.scheduler.policies.base import Batch, Policy
from mainspring.scheduler.policies.baselines.nexus_sessions import Session, Sessions
from mainspring.scheduler.policies.baselines.squishy import Node, Planner, saturating
from mainspring.scheduler.policies.batching import largest_batch, largest_index
from mainspring.scheduler.policies.options import NexusOptions
from mainspring.scheduler.policies.ready_queue import ready_by_ns

if TYPE_CHECKING:
    from mainspring.cluster.models import Model
    from mainspring.cluster.placements import Placement
    from mainspring.cluster.requests import Request
    from mainspring.cluster.workers import Worker
    from mainspring.scheduler.placing import LoadPlan
    from mainspring.scheduler.state import SchedulerState


FIRST_EPOCH: Final = 1 / 16
"""Part of an epoch after which the first plan is made; each of the next epochs is twice as long, up to a
whole one. Until a plan exists, a model is served by one device, whatever its rate."""
PLANNED_AT_ONCE = 64
"""Sessions that are planned for in one call."""
PAUSE_NS = 200_000
"""The pause of the plan between two calls, for the events that come meanwhile."""


class Turns:
    """One worker's models with their planned batches, and those that wait for their turn."""

    __slots__ = ("line", "missing", "planned", "waiting", "worker")

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.planned: dict[int, int] = {}
        """The index of the planned batch size, by the model's number."""
        self.line: deque[Model] = deque()
        self.waiting: dict[int, None] = {}
        """The numbers of the models that are in the line."""
        self.missing: dict[int, Model] = {}
        """Models that are planned here and not loaded, by number."""

    def join(self, model: Model) -> None:
        """Put a model at the end of the line, unless it is in it."""
        if model.number not in self.waiting:
            self.waiting[model.number] = None
            self.line.append(model)


class Nexus(Policy):
    """Planned batches in turn on planned devices."""

    name: ClassVar[str] = "nexus"
    Options: ClassVar[type[msgspec.Struct]] = NexusOptions
    lookahead_ms: ClassVar[float] = 1.0

    def __init__(self, state: SchedulerState, options: msgspec.Struct) -> None:
        super().__init__(state, options)
        given = cast(NexusOptions, options)
        self._epoch_ns = milliseconds(given.epoch_ms)
        self._smoothing = given.smoothing
        self._headroom = given.headroom
        self._pads = bool(state.config.pad_batches)
        self._sessions = Sessions()
        self._turns: dict[str, Turns] = {}
        self._homes: dict[int, list[str]] = {}
        """The names of the workers that serve each model, by its number."""
        self._length_ns = 0
        """Length of the current epoch."""
        self._begun_ns = 0
        """Instant at which the current epoch began."""
        self._plan_ns: int | None = None
        """Instant at which the next plan is due; None while nothing is asked for."""
        self._planner: Planner | None = None
        """The plan that is being made, a few sessions at a time, so that no call takes long."""
        self._planned: list[Session] = []
        """The sessions that it is for."""

    def queued(self, now_ns: int, request: Request) -> None:
        """Count the request, and put its model in line where it is served."""
        assert request.due_ns is not None
        self._count(now_ns, request.model, request.rows, request.due_ns - request.arrived_ns)
        self._line_up(request.model)

    def refused(self, now_ns: int, model: Model, rows: int) -> None:
        """Count what was refused: the plan is for all that is asked for."""
        self._count(now_ns, model, rows, 0)

    def worker_left(self, now_ns: int, worker: Worker) -> None:
        """Have its models served elsewhere until the next plan."""
        turns = self._turns.pop(worker.name, None)
        if turns is None:
            return
        for number in turns.planned:
            names = [name for name in self._homes.pop(number, []) if name != worker.name]
            if names:
                self._homes[number] = names
        for model in self.state.cluster.waiting_models():
            for bucket in model.by_bucket:
                if bucket.queue.dues:
                    self._line_up(bucket)

    def on_alarm(self, now_ns: int) -> None:
        """End the epoch and plan for the rates that it had, or go on with the plan."""
        if self._planner is None:
            if self._plan_ns is None or now_ns < self._plan_ns:
                return
            self._begin_plan(now_ns)
        assert self._planner is not None
        nodes = self._planner.advance(PLANNED_AT_ONCE)
        if nodes is None:
            self.state.alarms.set(now_ns + PAUSE_NS, Alarm.POLICY)
            return
        self._apply(nodes)
        self._planner = None
        for session in self._planned:
            if session.model.queue.dues:
                self._line_up(session.model)
        self.state.wants_loads()
        self._plan_ns = None
        if self._sessions:
            self._plan_in(now_ns, min(2 * self._length_ns, self._epoch_ns))

    def next_batch(self, now_ns: int, worker: Worker, available_ns: int) -> Batch | None:
        """Return the planned batch of the model whose turn it is, of those that can run one."""
        turns = self._turns.get(worker.name)
        if turns is None:
            return None
        for _ in range(len(turns.line)):
            model = turns.line.popleft()
            if not model.queue.dues:
                del turns.waiting[model.number]
                continue
            turns.line.append(model)
            placement = model.usable.get(worker.name)
            if placement is not None:
                planned = turns.planned.get(model.number, len(placement.times.sizes) - 1)
                batch = self._batch(now_ns, placement, planned, available_ns)
                if batch is not None:
                    return batch
        return None

    def next_load(self, now_ns: int) -> LoadPlan | None:
        """Return a model that is planned for a worker with room and not there."""
        for name in self.state.load_room:
            turns = self._turns.get(name)
            if turns is None:
                continue
            while turns.missing:
                model = turns.missing.pop(next(iter(turns.missing)))
                if self.state.cluster.serves(model) and is_loadable(model, turns.worker):
                    plan = plan_load(at(self.state.cluster, model.base, turns.worker))
                    if plan is not None:
                        return plan
        return None

    def _plan_in(self, now_ns: int, length_ns: int) -> None:
        """Make the next plan in ``length_ns``."""
        self._length_ns = length_ns
        self._plan_ns = now_ns + length_ns
        self.state.alarms.set(self._plan_ns, Alarm.POLICY)

    def _begin_plan(self, now_ns: int) -> None:
        cluster = self.state.cluster
        sessions = self._sessions.end_epoch(self._smoothing, (now_ns - self._begun_ns) / self._epoch_ns)
        self._begun_ns = now_ns
        sessions = [each for each in sessions if cluster.serves(each.model) and each.slo_ns]
        workers = [worker for worker in cluster.workers.values() if worker.open]
        self._planned = sessions
        self._planner = Planner(sessions, workers, self._homes, self._epoch_ns, self._headroom)

    def _count(self, now_ns: int, model: Model, rows: int, slo_ns: int) -> None:
        self._sessions.count(model, rows, slo_ns - self.state.ns.dispatch_delay)
        if self._plan_ns is None:
            self._begun_ns = now_ns
            self._plan_in(now_ns, max(1, round(FIRST_EPOCH * self._epoch_ns)))

    def _line_up(self, model: Model) -> None:
        """Put a model in the lines of its workers; find it one if it has none."""
        names = self._homes.get(model.number)
        if not names:
            names = self._adopt(model)
        for name in names:
            turns = self._turns[name]
            if model.base.absent & turns.worker.bit:
                continue
            turns.join(model)
            if name not in model.usable and is_loadable(model, turns.worker):
                turns.missing[model.number] = model
                self.state.wants_loads()

    def _batch(self, now_ns: int, placement: Placement, planned: int, available_ns: int) -> Batch | None:
        """Return a batch of the planned size or less, or of the size that its first request needs."""
        inputs_ns = placement.worker.exec.inputs_at_ns(self.state.soonest_ns(now_ns), 0)
        queue, times = placement.model.queue, placement.times
        begin_ns = ready_by_ns(now_ns, placement, available_ns, inputs_ns + times.transfer_ns[0])
        if begin_ns is None:
            return None
        top = max(min(planned, largest_index(placement.model)), times.index_of[queue.rows_at(0)])
        found = largest_batch(queue, times, top, begin_ns, inputs_ns, self._pads)
        if found is None:
            return None
        index, first, _ = found
        return Batch(placement, index, queue.fill(first, times.sizes[index]))

    def _apply(self, nodes: list[Node]) -> None:
        """Serve by a plan from now on; a model that no planned device holds yet is served by a holder."""
        self._turns, self._homes = {}, {}
        workers = self.state.cluster.workers
        nodes = [node for node in nodes if workers.get(node.worker.name) is node.worker]
        for node in nodes:
            turns = self._turns[node.worker.name] = Turns(node.worker)
            for share in node.shares:
                model = share.model
                turns.planned[model.number] = share.index
                self._homes.setdefault(model.number, []).append(node.worker.name)
                if node.worker.name not in model.usable:
                    turns.missing[model.number] = model
        for node in nodes:
            for share in node.shares:
                model = share.model
                homes = self._homes[model.number]
                if not model.usable or any(name in model.usable for name in homes):
                    continue
                holder = next(iter(model.usable))
                if holder in self._turns:
                    homes.append(holder)
                    self._turns[holder].planned[model.number] = share.index

    def _adopt(self, model: Model) -> list[str]:
        """Give a model that no plan knows to the worker with the fewest models, if one can run it."""
        best: tuple[bool, int, int] | None = None
        chosen: Worker | None = None
        for worker in self.state.cluster.workers.values():
            usable = worker.name in model.usable
            if not usable and not is_loadable(model, worker):
                continue
            turns = self._turns.get(worker.name)
            key = not usable, len(turns.planned) if turns else 0, worker.number
            if best is None or key < best:
                best, chosen = key, worker
        if chosen is None:
            return []
        name = chosen.name
        turns = self._turns.get(name)
        if turns is None:
            turns = self._turns[name] = Turns(chosen)
        slo_ns = model.queue.dues[0] - model.queue.first.arrived_ns
        turns.planned[model.number] = saturating(model.infer_times[chosen.kind], slo_ns)
        self._homes[model.number] = [name]
        return [name]
