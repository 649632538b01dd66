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

from typing import TYPE_CHECKING, ClassVar

import msgspec
from mypy_extensions import mypyc_attr

from mainspring.scheduler.policies.base import Batch
from mainspring.scheduler.policies.batching import largest_batch, largest_index
from mainspring.scheduler.policies.demand import DemandLoads
from mainspring.scheduler.policies.notes import Copies, model_note
from mainspring.scheduler.policies.ready_queue import ReadyQueuePolicy, enter, enter_copies, ready_by_ns

if TYPE_CHECKING:
    from mainspring.cluster.estimates import InferTimes
    from mainspring.cluster.placements import Placement
    from mainspring.cluster.requests import DeadlineQueue, Request
    from mainspring.cluster.workers import Worker
    from mainspring.scheduler.placing import LoadPlan
    from mainspring.scheduler.state import SchedulerState


@mypyc_attr(allow_interpreted_subclasses=True)
class Clockwork(ReadyQueuePolicy):
    """Strategies by required start time, loads by unfulfilled demand."""

    name: ClassVar[str] = "clockwork"
    pads_batches: ClassVar[bool] = False
    idle_loads: ClassVar[bool] = False

    def __init__(self, state: SchedulerState, options: msgspec.Struct) -> None:
        super().__init__(state, options, shares=True)
        self._pads = bool(state.config.pad_batches)
        self._loads = self._make_loads()

    def queued(self, now_ns: int, request: Request) -> None:
        """Enter the new strategies, and the new demand.

        While a queue is not empty each worker's entry stands for all of it, so that there is something to
        enter only when the queue's head or the batch that it could fill asks for an earlier start.
        """
        model = request.model
        note = model_note(model)
        dues, offered = model.queue.dues, note.offered
        due_ns, index = dues[0], largest_index(model)
        if len(dues) == 1 or offered is None or due_ns < offered[0] or index > offered[1]:
            self.offer_all(model)
        self._loads.update(now_ns, model)

    def unqueued(self, now_ns: int, request: Request) -> None:
        """Take the request's demand back; its strategies are dropped when they come up."""
        self._loads.refresh(now_ns, request.model)

    def dispatched(self, now_ns: int, batch: Batch) -> None:
        """Take the batch's demand back; its strategies are dropped when they come up."""
        self._loads.refresh(now_ns, batch.placement.model)

    def residency_changed(self, now_ns: int, placement: Placement) -> None:
        """Offer the model's strategies to the worker, or void them; allocate its demand again."""
        super().residency_changed(now_ns, placement)
        self._loads.update(now_ns, placement.model)

    def worker_left(self, now_ns: int, worker: Worker) -> None:
        """Let its models' demand go to the others."""
        super().worker_left(now_ns, worker)
        self._loads.worker_left(now_ns, worker)

    def validate(self) -> None:
        """Check the ready queue and the allocations."""
        super().validate()
        self._loads.validate()

    def next_load(self, now_ns: int) -> LoadPlan | None:
        """Return the model of the highest load priority that some worker can take now."""
        return self._loads.next_load(now_ns)

    def _make_loads(self) -> DemandLoads:
        return DemandLoads(self.state)

    def offer(self, placement: Placement) -> None:
        """Enter a model's strategies on a worker, and note what for: `queued` compares with it."""
        model = placement.model
        dues = model.queue.dues
        if dues:
            index = largest_index(model)
            if enter(placement, dues[0] - placement.times.ns[index]):
                model_note(model).offered = dues[0], index

    def offer_copies(self, copies: Copies) -> None:
        """Enter a wide model's strategies, likewise."""
        model = copies.model
        dues = model.queue.dues
        if dues:
            index = largest_index(model)
            if enter_copies(copies, dues[0] - copies.like.times.ns[index]):
                model_note(model).offered = dues[0], index

    def key(self, placement: Placement) -> int:
        """Return a lower bound of the required start of a model's strategies on a worker."""
        model = placement.model
        return model.queue.dues[0] - placement.times.ns[largest_index(model)]

    def candidate(
        self, now_ns: int, placement: Placement, available_ns: int, inputs_ns: int
    ) -> tuple[int, int, int] | None:
        """Return (required start, size's index, first request's index) of a model's strategy on a worker.

        The size is the largest that the requests which can still make it fill; None if none can, or while the
        model's LOAD is not about to end.
        """
        queue, times = placement.model.queue, placement.times
        begin_ns = ready_by_ns(now_ns, placement, available_ns, inputs_ns + times.transfer_ns[0])
        if begin_ns is None:
            return None
        found = largest_batch(queue, times, largest_index(placement.model), begin_ns, inputs_ns, pads=False)
        if found is None:
            return None
        index, first, _ = found
        if self._pads and index + 1 < len(times.sizes):
            index += _pays_to_pad(
                queue, times, index, first, max(begin_ns, inputs_ns + times.transfer_ns[index + 1])
            )
        return queue.dues[first] - times.ns[index], index, first


def _pays_to_pad(queue: DeadlineQueue, times: InferTimes, index: int, first: int, begin_ns: int) -> bool:
    """Return whether one padded batch of the next larger size is in time, and sooner than two exact ones."""
    larger = index + 1
    rest = queue.rows_from(first, times.sizes[larger]) - times.sizes[index]
    if rest <= 0 or queue.dues[first] < begin_ns + times.ns[larger]:
        return False
    return times.ns[larger] < times.ns[index] + times.for_rows(rest)
