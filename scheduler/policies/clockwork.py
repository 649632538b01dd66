"""The policy of Clockwork (OSDI '20), section 5.3 and appendix B.

*INFER.* Every request gives a strategy for each batch size: it must start by its due instant less the
batch's estimated duration. An executor takes the strategy with the earliest required start among those
whose model it holds, that can complete in time behind its outstanding work, whose batch size the model
has enough such requests for, and for which there are not enough for a larger one. All strategies of one
model and size that matter on an executor belong to its first request that can still make it, so one
entry for each model and worker, kept by a lower bound of its required start, stands for the whole queue.

*LOAD* and *UNLOAD* are `DemandLoads`.

The paper fills every batch, and loads a model for nothing but demand that a LOAD can still save: so does
this policy unless `SchedulerConfig.pad_batches` and `SchedulerConfig.idle_loads` are set. Beyond the paper
are requests of several rows and devices of several kinds.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, ClassVar

import msgspec
from mypy_extensions import mypyc_attr

from mainspring.scheduler.policies.base import Batch, Policy
from mainspring.scheduler.policies.demand_loads import DemandLoads
from mainspring.scheduler.policies.notes import model_note, worker_note
from mainspring.scheduler.policies.ready_queue import enter
from mainspring.scheduler.state import READY_SLACK_NS

if TYPE_CHECKING:
    from mainspring.cluster.estimates import InferTimes
    from mainspring.cluster.placements import Placement, Worker
    from mainspring.cluster.requests import DeadlineQueue, Request
    from mainspring.scheduler.placing import LoadPlan
    from mainspring.scheduler.state import SchedulerState


@mypyc_attr(allow_interpreted_subclasses=True)
class Clockwork(Policy):
    """Strategies by required start time, loads by unfulfilled demand."""

    name: ClassVar[str] = "clockwork"
    pads_batches: ClassVar[bool] = False
    idle_loads: ClassVar[bool] = False

    def __init__(self, state: SchedulerState, options: msgspec.Struct) -> None:
        super().__init__(state, options)
        self._pads = bool(state.config.pad_batches)
        self._loads = self._make_loads()

    def queued(self, now_ns: int, request: Request) -> None:
        """Enter the new strategies, and the new demand.

        While a queue is not empty each worker's entry stands for all of it, so that there is something to
        enter only when the queue's head or the batch that it could fill asks for an earlier start.
        """
        model = request.model
        queue = model.queue
        note, due_ns = model_note(model), queue.dues[0]
        offered = note.offered
        index = model.index_of[queue.rows if queue.rows < model.max_rows else model.max_rows]
        if len(queue.dues) == 1 or offered is None or due_ns < offered[0] or index > offered[1]:
            for placement in model.usable.values():
                if enter(placement, due_ns - placement.times.ns[index]):
                    note.offered = due_ns, index
        self._loads.update(now_ns, model)

    def unqueued(self, now_ns: int, request: Request) -> None:
        """Take the request's demand back; its strategies are dropped when they come up."""
        self._loads.take_back(now_ns, request.model)

    def dispatched(self, now_ns: int, batch: Batch) -> None:
        """Take the batch's demand back; its strategies are dropped when they come up."""
        self._loads.take_back(now_ns, batch.placement.model)

    def residency_changed(self, now_ns: int, placement: Placement) -> None:
        """Offer the model's strategies to the worker, or drop them; allocate its demand anew."""
        if placement.usable:
            self._offer(placement)
        else:
            placement.note = None
        self._loads.update(now_ns, placement.model)

    def worker_left(self, now_ns: int, worker: Worker) -> None:
        """Let its models' demand go to the others."""
        self._loads.worker_left(now_ns, worker)

    def next_batch(self, now_ns: int, worker: Worker, available_ns: int) -> Batch | None:
        """Return the eligible strategy of the earliest required start, with its requests."""
        heap = worker_note(worker).strategies
        best: Placement | None = None
        best_ns = best_number = best_index = best_first = 0
        seen: list[Placement] = []
        while heap:
            key, number, placement = heap[0]
            if best is not None and (key > best_ns or (key == best_ns and number > best_number)):
                break
            heapq.heappop(heap)
            if placement.note != key:
                continue
            placement.note = None
            if not placement.model.queue.rows or not placement.usable:
                continue
            seen.append(placement)
            found = self._strategy(now_ns, placement, available_ns)
            if found is None:
                continue
            start_ns, index, first = found
            if best is None or start_ns < best_ns or (start_ns == best_ns and number < best_number):
                best, best_ns, best_number, best_index, best_first = placement, start_ns, number, index, first
        for placement in seen:
            self._offer(placement)
        if best is None:
            return None
        requests = best.model.queue.fill(best_first, best.times.sizes[best_index])
        return Batch(best, best_index, requests)

    def next_load(self, now_ns: int) -> LoadPlan | None:
        """Return the model of the highest load priority that some worker can take now."""
        return self._loads.next_load(now_ns)

    def _make_loads(self) -> DemandLoads:
        return DemandLoads(self.state)

    def _offer(self, placement: Placement) -> None:
        """Enter a model's strategies on a worker by a lower bound of their required start."""
        queue = placement.model.queue
        if not queue.rows:
            return
        model, due_ns = placement.model, queue.dues[0]
        index = model.index_of[queue.rows if queue.rows < model.max_rows else model.max_rows]
        if enter(placement, due_ns - placement.times.ns[index]):
            model_note(model).offered = due_ns, index

    def _strategy(self, now_ns: int, placement: Placement, available_ns: int) -> tuple[int, int, int] | None:
        """Return (required start, size index, first request's index) of a model's strategy on a worker.

        The size is the largest that the requests which can still make it fill; None if none can, or while the
        model's LOAD is not about to end.
        """
        inputs_ns = placement.worker.exec.inputs_at_ns(self.state.soonest_ns(now_ns), 0)
        begin_ns = ready_by_ns(now_ns, placement, available_ns, inputs_ns)
        if begin_ns is None:
            return None
        model, times = placement.model, placement.times
        queue, sizes, transfers_ns = model.queue, times.sizes, times.transfer_ns
        dues, rows = queue.dues, queue.rows
        for index in range(model.index_of[rows if rows < model.max_rows else model.max_rows], -1, -1):
            size = sizes[index]
            start_ns = inputs_ns + transfers_ns[index]
            start_ns = max(start_ns, begin_ns)
            first = queue.first_feasible(start_ns + times.ns[index], size)
            if first == len(dues):
                continue
            if index == 0 or queue.rows_from(first, size) == size or queue.rows_at(first) > sizes[index - 1]:
                if self._pads and rows > size:
                    start_ns = max(begin_ns, inputs_ns + transfers_ns[min(index + 1, len(sizes) - 1)])
                    index = _padded(queue, times, index, first, start_ns)  # noqa: PLW2901
                return dues[first] - times.ns[index], index, first
        return None


def ready_by_ns(now_ns: int, placement: Placement, available_ns: int, inputs_ns: int) -> int | None:
    """Return when EXEC and the weights of a model are there; None while its LOAD is not about to end.

    ``inputs_ns`` is when inputs that take no time would be there.
    """
    if placement.load_slot is None:
        return available_ns
    ready_ns = placement.ready_ns(now_ns)
    if ready_ns > max(available_ns, inputs_ns + placement.times.transfer_ns[0] + READY_SLACK_NS):
        return None
    return max(ready_ns, available_ns)


def _padded(queue: DeadlineQueue, times: InferTimes, index: int, first: int, begin_ns: int) -> int:
    """Return the next larger size's index if one padded batch ends sooner than two exact ones."""
    larger = index + 1
    if larger == len(times.sizes):
        return index
    rest = queue.rows_from(first, times.sizes[larger]) - times.sizes[index]
    if rest <= 0 or queue.dues[first] < begin_ns + times.ns[larger]:
        return index
    return larger if times.ns[larger] < times.ns[index] + times.for_rows(rest) else index
