"""The ready queue: which of a worker's models goes next, for every policy that orders them by a key.

Each worker has one heap (`WorkerNote.ready`) with one valid entry for each usable model that requests wait
for, whose key is `Placement.note`; the heap's other entries are void and dropped when they come up. An entry
has a lower bound of the key of any batch that the model could run there. A choice takes entries out, finds
what each model could run now, and ends once the best key that it found is lower than all bounds left.
"""

from __future__ import annotations

import heapq
from abc import abstractmethod
from typing import Final, cast

import msgspec
from mypy_extensions import mypyc_attr

from mainspring.cluster.placements import Model, Placement, Worker
from mainspring.scheduler.policies.base import Batch, Policy
from mainspring.scheduler.policies.notes import WorkerNote, worker_note
from mainspring.scheduler.state import READY_SLACK_NS, SchedulerState

PUT_OFF: Final = (0, -1, 0)
"""The answer of `ReadyQueuePolicy.candidate` for a model that the policy offers again by itself later."""
SWEPT_FROM: Final = 32
"""A heap of fewer entries is not swept."""


@mypyc_attr(allow_interpreted_subclasses=True)
class ReadyQueuePolicy(Policy):
    """Base of the policies that run the model of the lowest key next."""

    def __init__(self, state: SchedulerState, options: msgspec.Struct, keeps_keys: bool = False) -> None:
        """With ``keeps_keys`` a key that was found is the model's bound from then on.

        That is for policies whose `key` is far below what is found, and what is found hardly ever falls.
        """
        super().__init__(state, options)
        self._keeps_keys = keeps_keys

    @abstractmethod
    def key(self, placement: Placement) -> int:
        """Return a lower bound of the key of every batch that a model with waiting requests could run."""

    @abstractmethod
    def candidate(
        self, now_ns: int, placement: Placement, available_ns: int, inputs_ns: int
    ) -> tuple[int, int, int] | None:
        """Return (key, size's index, first request's index) of the batch that a model could run now.

        None if it can run none now, or `PUT_OFF`. EXEC is there from ``available_ns`` on, inputs that take no
        time from ``inputs_ns`` on.
        """

    def batch(self, now_ns: int, placement: Placement, index: int, first: int) -> Batch | None:
        """Return the batch of the lowest key, or None to run none after all."""
        return Batch(placement, index, placement.model.queue.fill(first, placement.times.sizes[index]))

    def offer(self, placement: Placement) -> None:
        """Enter a placement by its key if requests wait for its model."""
        if placement.model.queue.dues:
            enter(placement, self.key(placement))

    def offer_all(self, model: Model) -> None:
        """Enter a model wherever it is usable."""
        for placement in model.usable.values():
            self.offer(placement)

    def residency_changed(self, now_ns: int, placement: Placement) -> None:
        """Enter a model on a worker that can run it now, or void its entry."""
        if placement.usable:
            self.offer(placement)
        else:
            placement.note = None

    def next_batch(self, now_ns: int, worker: Worker, available_ns: int) -> Batch | None:
        """Return the batch of the lowest key, of equal keys that of the model that was added first."""
        heap = worker_note(worker).ready
        inputs_ns = worker.exec.inputs_at_ns(now_ns + self.state.ns.dispatch_delay, 0)
        best: Placement | None = None
        best_key = best_number = best_index = best_first = 0
        seen: list[Placement] = []
        found_keys: list[tuple[int, Placement]] = []
        while heap:
            bound, number, placement = heap[0]
            if best is not None and (bound > best_key or (bound == best_key and number > best_number)):
                break
            heapq.heappop(heap)
            if placement.note != bound:
                continue
            placement.note = None
            if not placement.usable or not placement.model.queue.dues:
                continue
            found = self.candidate(now_ns, placement, available_ns, inputs_ns)
            if found is None:
                # What can't be in time now may be after all: EXEC may be free earlier than predicted.
                seen.append(placement)
                continue
            key, index, first = found
            if index < 0:
                continue
            if self._keeps_keys:
                found_keys.append((max(bound, key), placement))
            else:
                seen.append(placement)
            if best is None or key < best_key or (key == best_key and number < best_number):
                best, best_key, best_number, best_index, best_first = placement, key, number, index, first
        for placement in seen:
            self.offer(placement)
        for key, placement in found_keys:
            enter(placement, key)
        return None if best is None else self.batch(now_ns, best, best_index, best_first)


def enter(placement: Placement, key: int) -> bool:
    """Enter a placement by a key; return False, and do nothing, if an entry with a lower key stands."""
    entered = cast("int | None", placement.note)
    if entered is not None and key >= entered:
        return False
    placement.note = key
    note = worker_note(placement.worker)
    heapq.heappush(note.ready, (key, placement.model.number, placement))
    if len(note.ready) > note.swept_from:
        _sweep(note)
    return True


def ready_by_ns(now_ns: int, placement: Placement, available_ns: int, needed_ns: int) -> int | None:
    """Return when EXEC and the weights of a model are there; None while its LOAD is not about to end.

    It is about to if it ends at most `READY_SLACK_NS` after ``needed_ns``, when all else is there but EXEC.
    """
    if placement.load_slot is None:
        return available_ns
    ready_ns = placement.ready_ns(now_ns)
    return None if ready_ns > max(available_ns, needed_ns + READY_SLACK_NS) else max(ready_ns, available_ns)


def _sweep(note: WorkerNote) -> None:
    """Drop the void entries."""
    note.ready[:] = [entry for entry in note.ready if entry[2].note == entry[0]]
    heapq.heapify(note.ready)
    note.swept_from = 2 * len(note.ready) + SWEPT_FROM
