"""OPENs: when EXEC opens the executable of a model whose weights a worker has in place.

Meanwhile EXEC runs nothing else, and on a GPU a LOAD would wait too, so an OPEN waits for a gap that costs no
accepted request its deadline: everything that waits for the worker could still be served behind it, and no
LOAD is under way. At first it has to be so short that requests like those of the last second could wait for
it, on an EXEC executor that is idle. After `SchedulerConfig.open_patience_ms` any such gap will do, though
requests may come that have to be refused. After `SchedulerConfig.open_within_ms` the OPEN is announced: it is
counted as if it were the next that EXEC does, so that hardly anything is accepted any more that it would make
late, and a gap comes soon; if none has come for as long as the OPEN takes, it is sent whatever it costs. Few
workers that hold models open at a time, so that the others serve.

What is accepted meanwhile is in `admission`.

A gap is found, and requests are accepted meanwhile, by what any worker could run. What only the worker that
opens holds is therefore loaded elsewhere before (`OpenReplicas`), and while it opens LOADs are chosen as if
it held nothing (`OverdueActions.opens`): both where requests like those of the last second can't wait for the
OPEN. A policy may want one certain worker to run them, which now opens, or may want to run them later. So
EXEC executors run batches of models that a worker holds which opens, where their policy leaves them idle or
can wait.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from mainspring.cluster.models import Model
from mainspring.cluster.placements import Placement, State
from mainspring.cluster.residency import is_loadable, of_worker
from mainspring.cluster.workers import Worker
from mainspring.messages.actions import Open, Result
from mainspring.messages.codes import Status
from mainspring.scheduler.best_effort import WATCHED_NS, BestEffort
from mainspring.scheduler.load_queue import OpenReplicas
from mainspring.scheduler.opening.admission import AdmissionWhileOpening
from mainspring.scheduler.opening.forecast import Forecast
from mainspring.scheduler.policies.base import Batch
from mainspring.scheduler.policies.batching import largest_batch, largest_index
from mainspring.scheduler.policies.ready_queue import ready_by_ns
from mainspring.scheduler.state import SchedulerState

OPENERS: Final = 8
"""One in this many workers that take work may open an executable while others do; one in any case."""
RETRY_NS: Final = 5_000_000
"""Interval at which a gap is looked for."""


class _Waiting:
    """The models of one worker that wait for an OPEN."""

    __slots__ = ("copies_at_ns", "copying", "copying_until_ns", "models", "rest_until_ns", "retry_ns")

    def __init__(self) -> None:
        self.models: OrderedDict[str, int] = OrderedDict()
        """Instant since which each waits; the next is the first."""
        self.retry_ns = 0
        """Instant at which a gap is looked for again."""
        self.copying = False
        """True if models wait to be loaded elsewhere that only this worker holds."""
        self.copies_at_ns = 0
        """Instant at which they are looked for again."""
        self.copying_until_ns = 0
        """Instant until which the next OPEN waits for them; 0 while it is not this worker's turn."""
        self.rest_until_ns = 0
        """Instant before which no OPEN is sent that may delay requests: the worker rests for as long as the
        last one took."""


class Openings:
    """Chooses the instants of OPENs."""

    def __init__(self, state: SchedulerState, backlog: BestEffort, copies: OpenReplicas) -> None:
        self._state = state
        self._backlog = backlog
        self._open_replicas = copies
        self.waiting: dict[str, _Waiting] = {}
        """The models of each worker that wait for an OPEN."""
        self.under_way: dict[str, int] = {}
        """The OPEN that each worker has outstanding: one at a time, for others may need the same."""
        self._rest_until_ns = 0
        """The same for all workers, as they did the last one's work besides their own
        (`_Waiting.rest_until_ns`)."""
        self.admission = AdmissionWhileOpening(state)

    def add(self, now_ns: int, placement: Placement) -> None:
        """Have a model's executable opened; one that waits already keeps its place."""
        worker = placement.worker
        waiting = self.waiting.get(worker.name)
        if waiting is None:
            waiting = self.waiting[worker.name] = _Waiting()
        waiting.models.setdefault(placement.model.name, now_ns)
        self._state.wants(worker)

    def hasten(self, placement: Placement) -> None:
        """Open the executable of a model that waits for it before all others: a request asked for it."""
        waiting = self.waiting.get(placement.worker.name)
        if waiting is not None and placement.model.name in waiting.models:
            waiting.models.move_to_end(placement.model.name, last=False)

    def remove(self, placement: Placement) -> None:
        """Have a model's executable opened no more."""
        waiting = self.waiting.get(placement.worker.name)
        if waiting is not None:
            waiting.models.pop(placement.model.name, None)
            if not waiting.models and placement.worker.name not in self.under_way:
                self.admission.end(placement.worker)
                del self.waiting[placement.worker.name]

    def forget(self, worker: Worker) -> None:
        """Forget a worker that is gone or stops; another one may take its turn."""
        self.waiting.pop(worker.name, None)
        self.under_way.pop(worker.name, None)
        self.admission.end(worker)
        self._wake_all()

    def ended(self, now_ns: int, placement: Placement, action: Open, result: Result) -> list[Placement]:
        """Note that an OPEN has ended; return the models that waited for the same executable, if it is open.

        They need no OPEN any more, but a PREPARE.
        """
        worker = placement.worker
        if self.under_way.get(worker.name) != action.action_id:
            return []
        del self.under_way[worker.name]
        self._wake_all()
        self.admission.end(worker, now_ns + result.end_ns - result.begin_ns)
        waiting = self.waiting[worker.name]
        if placement.state is not State.CLOSED:
            taken_ns = result.end_ns - result.begin_ns
            waiting.rest_until_ns = now_ns + taken_ns
            self._rest_until_ns = now_ns + taken_ns // max(1, self._state.cluster.open_workers - 1)
            waiting.copying_until_ns = 0
            waiting.models.pop(action.model, None)
        same: list[Placement] = []
        if result.status is Status.OK:
            for name in list(waiting.models):
                other = worker.placements[name]
                if other.times is placement.times:
                    del waiting.models[name]
                    same.append(other)
        if not waiting.models:
            del self.waiting[worker.name]
        return same

    def next(self, now_ns: int, worker: Worker, available_ns: int, idle: bool) -> Open | None:
        """Return the OPEN that EXEC should begin at ``available_ns``, or None.

        With ``idle`` EXEC would begin nothing else now; if an OPEN may follow later, EXEC is filled again.
        """
        waiting = self.waiting.get(worker.name)
        if waiting is None or not waiting.models or not worker.open:
            return None
        name = next(iter(waiting.models))
        placement = worker.placements[name]
        estimates, durations = self._state.cluster.estimates, self._state.ns
        duration_ns = estimates.open_ns(worker.kind, placement.times)
        copying = self._copying(now_ns, worker, waiting, duration_ns)
        if not self._has_turn(worker):
            return None
        if not waiting.copying_until_ns:
            waiting.copying_until_ns = now_ns + durations.open_patience
        rest_ns = max(waiting.rest_until_ns, self._rest_until_ns)
        patient_ns = max(waiting.models[name] + durations.open_patience, rest_ns)
        last_ns = max(waiting.models[name] + durations.open_within, rest_ns)
        if now_ns < last_ns:
            if copying and now_ns < waiting.copying_until_ns:
                if idle:
                    self._state.arm_exec(waiting.copies_at_ns, worker)
                return None
            if not self._fits(now_ns, worker, waiting, patient_ns, duration_ns, idle):
                return None
        elif now_ns < last_ns + duration_ns and worker.lru:
            self.admission.announce(worker, duration_ns)
            if not self._has_gap(now_ns, worker, waiting, duration_ns):
                if idle:
                    self._state.arm_exec(max(waiting.retry_ns, now_ns + 1), worker)
                return None
        return Open(
            self._state.next_action_id(),
            worker.name,
            name,
            now_ns,
            available_ns + durations.action_window,
            available_ns,
            duration_ns,
        )

    def first_of(self, now_ns: int, worker: Worker, available_ns: int, batch: Batch) -> Batch:
        """Return a policy's batch, or one that is due first if fewer accepted requests are late so.

        That of `next_batch` goes first if only this order has both in time: its policy may leave it to nobody
        else, whatever a forecast finds. To be asked while `admission` lasts (``until_ns``).
        """
        left = self.next_batch(now_ns, worker, available_ns)
        if left is not None and left.placement.model is not batch.placement.model:
            both_ns = available_ns + _duration_ns(left) + _duration_ns(batch)
            if _due_ns(left) < both_ns <= _due_ns(batch):
                return left
        other = self._first_due(now_ns, worker, available_ns, every=True)
        return batch if other is None else self.admission.first_of(now_ns, worker, batch, other)

    def next_batch(self, now_ns: int, worker: Worker, available_ns: int) -> Batch | None:
        """Return a batch, for EXEC that its policy leaves idle, of a model held by a worker that opens.

        Of several models it is that of the first request that is due and can be in time.
        """
        if not self.under_way or not self._state.cluster.queued:
            return None
        return self._first_due(now_ns, worker, available_ns, every=False)

    def _first_due(self, now_ns: int, worker: Worker, available_ns: int, *, every: bool) -> Batch | None:
        """Return the batch that is due first and can be in time; unless ``every``, as `next_batch`."""
        best: Batch | None = None
        best_due_ns = 0
        for held in of_worker(worker):
            if not held.usable or not held.model.waiting:
                continue
            if not every and not self._held_by_one_that_opens(held.model):
                continue
            for placement in held.by_bucket:
                if not placement.model.queue.dues:
                    continue
                batch = self._batch(now_ns, placement, available_ns, first=every)
                if batch is None:
                    continue
                due_ns = batch.requests[0].due_ns
                assert due_ns is not None
                if best is None or due_ns < best_due_ns:
                    best, best_due_ns = batch, due_ns
        return best

    def sent(self, now_ns: int, worker: Worker, action: Open) -> None:
        """Note that an OPEN is outstanding; what waits may be for other workers."""
        self.under_way[worker.name] = action.action_id
        self.admission.begin(worker)
        if self._state.cluster.queued:
            for other in self._state.cluster.workers.values():
                self._state.wants(other)
        self._state.consider_load_room(now_ns, worker)
        self._state.watch(now_ns + self._state.ns.action_timeout, worker)

    def can_wait(self, now_ns: int, duration_ns: int) -> bool:
        """Return whether requests like those of the last second could wait for an OPEN of a duration."""
        limit_ns = self._backlog.limit_ns(now_ns)
        return limit_ns is None or duration_ns <= limit_ns

    def _copying(self, now_ns: int, worker: Worker, waiting: _Waiting, duration_ns: int) -> bool:
        """Have models loaded elsewhere that only this worker holds; return whether there are some.

        It is done for those that requests came for lately, if these could not wait for the OPEN.
        """
        if now_ns >= waiting.copies_at_ns:
            waiting.copies_at_ns = now_ns + RETRY_NS
            waiting.copying = not self.can_wait(now_ns, duration_ns) and self._copy(now_ns, worker)
        return waiting.copying

    def _copy(self, now_ns: int, worker: Worker) -> bool:
        """Want a copy of each model that only this worker holds; return whether one could be made."""
        found = False
        for placement in reversed(worker.lru.values()):
            if placement.last_used_ns < now_ns - WATCHED_NS:
                break
            model = placement.model
            workers = self._state.cluster.workers.values()
            if len(model.usable) == 1 and any(is_loadable(model, other) for other in workers):
                self._open_replicas.add(model)
                found = True
        return found

    def _has_turn(self, worker: Worker) -> bool:
        """Return whether a worker may open now: it holds nothing, or few others that hold models do."""
        if worker.name in self.under_way:
            return False
        if not worker.lru:
            return True
        cluster = self._state.cluster
        others = sum([bool(cluster.workers[name].lru) for name in self.under_way])
        return others < max(1, cluster.open_workers // OPENERS)

    def _held_by_one_that_opens(self, model: Model) -> bool:
        """Return whether a worker holds the model and opens an executable now."""
        return any(name in model.usable for name in self.under_way)

    def _batch(self, now_ns: int, placement: Placement, available_ns: int, *, first: bool) -> Batch | None:
        """Return the largest batch of a model's requests that could be in time on a worker now.

        With ``first`` it is one that begins with the first request that could be.
        """
        state, times, queue = self._state, placement.times, placement.model.queue
        inputs_ns = placement.worker.exec.inputs_at_ns(state.soonest_ns(now_ns), 0)
        begin_ns = ready_by_ns(now_ns, placement, available_ns, inputs_ns + times.transfer_ns[0])
        if begin_ns is None:
            return None
        top, pads = largest_index(placement.model), bool(state.config.pad_batches)
        head = queue.first_feasible(begin_ns + times.ns[0], times.sizes[-1]) if first else -1
        if head == len(queue.dues):
            return None
        found = largest_batch(queue, times, top, begin_ns, inputs_ns, pads, head)
        if found is None:
            return None
        index, at, _ = found
        return Batch(placement, index, queue.fill(at, times.sizes[index]))

    def _fits(
        self,
        now_ns: int,
        worker: Worker,
        waiting: _Waiting,
        patient_ns: int,
        duration_ns: int,
        idle: bool,
    ) -> bool:
        """Return whether an OPEN has a gap; if it has none and EXEC is idle, EXEC is filled again later."""
        again_ns = now_ns + RETRY_NS
        if now_ns >= patient_ns:
            fits = now_ns >= waiting.retry_ns
        elif not idle or len(worker.load):
            fits = False
        else:
            fits = not worker.lru or self.can_wait(now_ns, duration_ns)
            if not fits:
                again_ns = patient_ns
        if fits and self._has_gap(now_ns, worker, waiting, duration_ns):
            return True
        if fits:
            waiting.retry_ns = again_ns
        if idle:
            self._state.arm_exec(again_ns, worker)
        return False

    def _has_gap(self, now_ns: int, worker: Worker, waiting: _Waiting, duration_ns: int) -> bool:
        """Return whether nothing more that waits would be late behind an OPEN; if so, look again later."""
        if not self._state.cluster.queued:
            return True
        if now_ns < waiting.retry_ns:
            return False
        waiting.retry_ns = now_ns + RETRY_NS
        behind = Forecast(self._state, now_ns, {worker.name: duration_ns})
        behind.place_all()
        if not behind.late:
            return True
        without = Forecast(self._state, now_ns, {})
        without.place_all()
        return behind.late <= without.late

    def _wake_all(self) -> None:
        """Have all workers looked at for which models wait: one of them may have its turn."""
        for name in self.waiting:
            worker = self._state.cluster.workers.get(name)
            if worker is not None:
                self._state.wants(worker)


def _due_ns(batch: Batch) -> int:
    """Return by when a batch of requests with deadlines has to end."""
    return min([request.due_ns for request in batch.requests if request.due_ns is not None])


def _duration_ns(batch: Batch) -> int:
    return batch.placement.times.ns[batch.size_index]
