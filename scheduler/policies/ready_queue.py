"""The ready queue: which of a worker's models goes next, for every policy that orders them by a key.

Each worker has one heap (`WorkerNote.ready`) with one valid entry for each usable model that requests wait
for, whose key is `Placement.note`; the heap's other entries are void and dropped when they come up. An entry
has a lower bound of the key of any batch that the model could run there. A choice takes entries out, finds
what each model could run now, and ends once the best key that it found is lower than all bounds left.

A wide model (`state.is_replicated_widely`) has one entry instead for all workers of a kind (`Copies`),
in a heap that they share: the bound is the same for all of them, and so a request, or a batch that one of
them takes, changes one entry. A choice looks at both heaps and passes over what its worker does not hold.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Final, cast

import msgspec
from mypy_extensions import mypyc_attr

from mainspring.cluster.models import Model
from mainspring.cluster.placements import Placement
from mainspring.cluster.workers import Worker
from mainspring.scheduler.alarms import Entry, order, pop, push
from mainspring.scheduler.policies.base import Batch, Policy
from mainspring.scheduler.policies.notes import Copies, Ready, ReadyHeap, model_note, worker_note
from mainspring.scheduler.state import READY_SLACK_NS, SchedulerState, is_replicated_widely

PUT_OFF: Final = (0, -1, 0)
"""The answer of `ReadyQueuePolicy.candidate` for a model that the policy offers again by itself later."""
NO_KEY: Final = -(1 << 61)
"""Lower than every key."""
SWEPT_FROM: Final = 32
"""A heap of fewer entries is not swept."""


@mypyc_attr(allow_interpreted_subclasses=True)
class ReadyQueuePolicy(Policy):
    """Base of the policies that run the model of the lowest key next."""

    def __init__(
        self, state: SchedulerState, options: msgspec.Struct, keeps_keys: bool = False, shares: bool = False
    ) -> None:
        """Keep a key that was found as the model's bound from then on, if ``keeps_keys``.

        That is for policies whose `key` is far below what is found, and what is found hardly ever falls.
        With ``shares`` wide models have one entry for each kind of device. That is for policies whose `key`
        and what they put off are the same on all workers of a kind, and that enter models by `offer_all`.
        """
        super().__init__(state, options)
        self._keeps_keys = keeps_keys
        self._shares = shares
        self._heaps: dict[str, ReadyHeap] = {}
        """The heap that the workers of each kind share."""

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

    def standing_ns(self, model: Model) -> int:
        """Return the lower bound of the model's keys on the first worker that could run it."""
        for placement in model.usable.values():
            return self.key(placement)
        return super().standing_ns(model)

    def batch(self, now_ns: int, placement: Placement, index: int, first: int) -> Batch | None:
        """Return the batch of the lowest key, or None to run none after all."""
        return Batch(placement, index, placement.model.queue.fill(first, placement.times.sizes[index]))

    def offer(self, placement: Placement) -> None:
        """Enter a placement by its key if requests wait for its model."""
        if placement.model.queue.dues:
            enter(placement, self.key(placement))

    def offer_copies(self, copies: Copies) -> None:
        """Enter a wide model on the workers of a kind if requests wait for it."""
        if copies.model.queue.dues:
            enter_copies(copies, self.key(copies.like))

    def offer_all(self, model: Model) -> None:
        """Enter a model wherever it is usable."""
        copies = model_note(model).copies
        if copies is None:
            for placement in model.usable.values():
                self.offer(placement)
        else:
            for each in copies.values():
                self.offer_copies(each)

    def enter_all(self, model: Model, key: int) -> None:
        """Enter a model by a key wherever it is usable."""
        copies = model_note(model).copies
        if copies is None:
            for placement in model.usable.values():
                enter(placement, key)
        else:
            for each in copies.values():
                enter_copies(each, key)

    def residency_changed(self, now_ns: int, placement: Placement) -> None:
        """Enter a model on a worker that can run it now, or void its entry."""
        if self._shares and self._enter_once(placement):
            return
        if placement.usable:
            self.offer(placement)
        else:
            placement.note = None

    def worker_left(self, now_ns: int, worker: Worker) -> None:
        """Have models entered one by one that too few workers hold now."""
        if self._shares:
            for placement in worker.lru.values():
                for each in placement.by_bucket:
                    self._enter_once(each)

    def next_batch(self, now_ns: int, worker: Worker, available_ns: int) -> Batch | None:
        """Return the batch of the lowest key."""
        return self.lowest(now_ns, worker, available_ns)

    def lowest(self, now_ns: int, worker: Worker, available_ns: int, even: bool = False) -> Batch | None:
        """Return the batch of the lowest key, of equal keys that of the model that was added first.

        ``even`` leaves models out whose durations are erratic.
        """
        own, shared = worker_note(worker).ready.entries, self.shared_heap(worker).entries
        inputs_ns = worker.exec.inputs_at_ns(now_ns + self.state.ns.dispatch_delay, 0)
        best: Placement | None = None
        best_key = best_number = best_index = best_first = 0
        seen: list[Placement | Copies] = []
        keys: list[int] = []
        elsewhere: list[Ready] = []
        while own or shared:
            heap = own if not shared or (own and own[0].precedes(shared[0])) else shared
            entry = cast(Ready, heap[0])
            bound, number, what = int(entry.key), int(entry.number), entry.what
            if best is not None and (bound > best_key or (bound == best_key and number > best_number)):
                break
            pop(heap)
            entered = what.note
            # Compiled, two numbers are compared sooner than two objects.
            if entered is None or cast("int", entered) != bound:
                continue
            placement = what if isinstance(what, Placement) else what.model.usable.get(worker.name)
            if placement is None:
                elsewhere.append(entry)
                continue
            what.note = None
            if not placement.usable or not placement.model.queue.dues:
                continue
            left_out = even and placement.of is None and placement.times.spreads.erratic
            found = None if left_out else self.candidate(now_ns, placement, available_ns, inputs_ns)
            if found is None:
                # What can't be in time now may be after all: EXEC may be free earlier than predicted.
                seen.append(what)
                if self._keeps_keys:
                    keys.append(NO_KEY)
                continue
            key, index, first = found
            if index < 0:
                continue
            seen.append(what)
            if self._keeps_keys:
                keys.append(max(bound, key))
            if best is None or key < best_key or (key == best_key and number < best_number):
                best, best_key, best_number, best_index, best_first = placement, key, number, index, first
        self._put_back(shared, seen, keys, elsewhere)
        return None if best is None else self.batch(now_ns, best, best_index, best_first)

    def validate(self) -> None:
        """Check that what counts as entered has just one entry, and of a wide model no placement has."""
        for worker in self.state.cluster.workers.values():
            _check_heap(worker_note(worker).ready, worker.name)
        for kind, heap in self._heaps.items():
            _check_heap(heap, kind)
        for model in self.state.cluster.models.values():
            for each in model.by_bucket:
                copies = model_note(each).copies
                if copies is None:
                    continue
                alone = [placement for placement in each.usable.values() if placement.note is not None]
                assert not alone, f"{each.name} is wide, and entered by itself: {alone}"
                kinds = {placement.worker.kind for placement in each.usable.values()}
                assert kinds <= copies.keys(), f"{each.name} is wide, and has no entry for one of {kinds}"
                for kind, entered in copies.items():
                    missing = bool(each.queue.dues) and entered.note is None
                    assert not missing, f"requests wait for {each.name}, which is not entered for {kind}"

    def shared_heap(self, worker: Worker) -> ReadyHeap:
        """Return the heap that the workers of a kind share."""
        note = worker_note(worker)
        if note.shared is None:
            note.shared = self._heap_of(worker.kind)
        return note.shared

    def _put_back(
        self, shared: list[Entry], seen: list[Placement | Copies], keys: list[int], elsewhere: list[Ready]
    ) -> None:
        """Enter again what a choice took out: what it looked at, by its key if ``keys`` has them, and what
        its worker does not hold."""
        for entry in elsewhere:
            if entry.what.model.queue.dues:
                push(shared, entry)
            else:
                entry.what.note = None
        for index, what in enumerate(seen):
            if not isinstance(what, Placement):
                self.offer_copies(what)
            elif not keys or keys[index] == NO_KEY:
                self.offer(what)
            else:
                enter(what, keys[index])

    def _heap_of(self, kind: str) -> ReadyHeap:
        heap = self._heaps.get(kind)
        if heap is None:
            heap = self._heaps[kind] = ReadyHeap()
        return heap

    def _enter_once(self, placement: Placement) -> bool:
        """Enter a wide model once for each kind of device, and one that is no longer wide on each worker.

        Return whether it is wide. The placement became usable, or stopped being so.
        """
        model = placement.model
        note = model_note(model)
        if not is_replicated_widely(self.state.cluster, model):
            if note.copies is not None:
                for copies in note.copies.values():
                    copies.note = None
                note.copies = None
                self.offer_all(model)
            return False
        placement.note = None
        if note.copies is None:
            note.copies = note.known_copies = note.known_copies or {}
            for each in model.usable.values():
                each.note = None
                self._count_copy(note.copies, each)
        elif placement.usable:
            self._count_copy(note.copies, placement)
        self.offer_all(model)
        return True

    def _count_copy(self, copies: dict[str, Copies], placement: Placement) -> None:
        kind = placement.worker.kind
        if kind not in copies:
            copies[kind] = Copies(placement, self._heap_of(kind))


def enter(placement: Placement, key: int) -> bool:
    """Enter a placement by a key; return False, and do nothing, if an entry with a lower key stands."""
    entered = cast("int | None", placement.note)
    if entered is not None and key >= entered:
        return False
    placement.note = key
    _push(worker_note(placement.worker).ready, Ready(key, placement.model.number, placement))
    return True


def enter_copies(copies: Copies, key: int) -> bool:
    """Enter a wide model on a kind of device, likewise."""
    if copies.note is not None and key >= copies.note:
        return False
    copies.note = key
    _push(copies.heap, Ready(key, copies.model.number, copies))
    return True


def ready_by_ns(now_ns: int, placement: Placement, available_ns: int, needed_ns: int) -> int | None:
    """Return when EXEC and the weights of a model are there; None while its LOAD is not about to end.

    It is about to if it ends at most `READY_SLACK_NS` after ``needed_ns``, when all else is there but EXEC.
    """
    if placement.load_slot is None:
        return available_ns
    ready_ns = placement.ready_ns(now_ns)
    return None if ready_ns > max(available_ns, needed_ns + READY_SLACK_NS) else max(ready_ns, available_ns)


def _check_heap(heap: ReadyHeap, where: str) -> None:
    entries = [cast(Ready, each) for each in heap.entries]
    valid = {each.number for each in entries if _is_valid(each)}
    for each in entries:
        what = each.what
        entered = what.note is None or each.number in valid
        assert entered, f"{where}: {what.model.name} counts as entered by {what.note}, and has no such entry"


def _push(heap: ReadyHeap, entry: Ready) -> None:
    """Add an entry; drop the void ones once most may be."""
    entries = heap.entries
    push(entries, entry)
    if len(entries) > heap.swept_from:
        entries[:] = [each for each in entries if _is_valid(cast(Ready, each))]
        order(entries)
        heap.swept_from = 2 * len(entries) + SWEPT_FROM


def _is_valid(entry: Ready) -> bool:
    """Return whether an entry is that of what it is about."""
    return entry.what.note == entry.key
