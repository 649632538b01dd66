"""INFERs: what sending one changes, and what its result says."""

from __future__ import annotations

from itertools import islice
from typing import Final

from mainspring.cluster.models import Model
from mainspring.cluster.placements import Placement, Slot, State
from mainspring.cluster.requests import Place, Request
from mainspring.cluster.state import Cluster
from mainspring.cluster.workers import Worker
from mainspring.messages.actions import Executed, Infer, Load, Open, Prepare, Result, Unanswered
from mainspring.messages.codes import Status

LEAD_KEPT: Final = 8
"""Divisor of a worker's lead: it shrinks by 1/8 with each batch whose inputs take less time than that."""
MISSED_FACTOR: Final = 3, 2
"""Inputs that did not come in time are taken to need 3/2 of the time that they were given."""
_OK: Final = Status.OK
_INPUT_MISSING: Final = Status.INPUT_MISSING
_QUEUED: Final = Place.QUEUED
_DISPATCHED: Final = Place.DISPATCHED
_UNDECIDED: Final = Place.UNDECIDED
_GONE: Final = Place.GONE
_RESIDENT: Final = State.RESIDENT


class Batch:
    """A batch to run: requests of one model on a worker where it is usable."""

    __slots__ = ("placement", "requests", "size_index")

    def __init__(self, placement: Placement, size_index: int, requests: list[Request]) -> None:
        self.placement = placement
        self.size_index = size_index
        """Index of the batch size in the executable's sizes."""
        self.requests = requests


def batch_of(cluster: Cluster, action: Infer) -> Batch:
    """Return the batch that an INFER runs."""
    placement = cluster.workers[action.worker].find(action.model, action.sizes)
    known = cluster.requests
    requests = [known[request_id] for request_id in action.request_ids]
    return Batch(placement, placement.times.sizes.index(action.batch_size), requests)


def infer_sent(cluster: Cluster, now_ns: int, action: Infer, batch: Batch) -> None:
    """Enter an INFER: its requests leave their queue, and EXEC has one action more."""
    requests, model = batch.requests, batch.placement.model
    if requests[0].due_ns is not None:
        model.queue.remove_all(requests)
    else:
        for request in requests:
            model.backlog.remove(request)
    cluster.queued -= len(requests)
    infer_begun(cluster, now_ns, action, batch)


def infer_begun(cluster: Cluster, now_ns: int, action: Infer, batch: Batch) -> None:
    """Enter an INFER whose requests are in no queue."""
    placement, index, requests = batch.placement, batch.size_index, batch.requests
    worker = placement.worker
    for request in requests:
        assert request.place is _QUEUED or request.place is _UNDECIDED, f"{request}: it can't be dispatched"
        request.place = _DISPATCHED
    cluster.running[action.action_id] = requests
    base = placement.base
    base.infers += 1
    base.last_used_ns = now_ns
    if placement.state is _RESIDENT:
        lru, name = worker.lru, base.model.name
        lru[name] = lru.pop(name)
    transfer_ns = placement.times.transfer_ns[index]
    slot = worker.exec.send(action, now_ns + cluster.dispatch_delay_ns, transfer_ns)
    slot.placement, slot.size_index = placement, index
    worker.lead_ns = max(transfer_ns, worker.lead_ns - worker.lead_ns // LEAD_KEPT)


def infer_ended(
    cluster: Cluster, now_ns: int, worker: Worker, slot: Slot[Executed], action: Infer, result: Result
) -> list[Request]:
    """Enter the result of an INFER, whose slot `Timeline.finish` took out; return its requests: gone if it
    ended well, else undecided unless they were cancelled."""
    placement, index = slot.placement, slot.size_index
    if placement is None:
        placement = slot.placement = worker.find(action.model, action.sizes)
        index = slot.size_index = placement.times.sizes.index(action.batch_size)
    requests = cluster.running.pop(action.action_id)
    placement.base.infers -= 1
    base, status, inputs_ns = placement.model.base, result.status, result.inputs_ns
    if inputs_ns:
        placement.times.add_transfer(now_ns, index, worker.exec.transferred_ns(slot, inputs_ns))
    elif status is _INPUT_MISSING:
        taken_ns = worker.exec.transferred_ns(slot, result.end_ns)
        # If a request was cancelled its gateway may be gone, which says nothing of others' inputs.
        if not any(request.place is _GONE for request in requests):
            placement.times.add_transfer(now_ns, index, taken_ns * MISSED_FACTOR[0] // MISSED_FACTOR[1])
    if status is _OK:
        end_ns, counts = result.end_ns, placement.model.counts
        _measured(cluster, now_ns, placement, index, action, end_ns - result.begin_ns)
        if base.overdue:
            base.overdue.pop(worker.name, None)
        base.losses = None
        kind = cluster.kinds.get(worker.device_kind) if cluster.kinds else None
        in_time = late = 0
        for request in requests:
            if request.place is not _GONE:
                # No request is due after its deadline.
                due_ns = request.due_ns
                if due_ns is None or end_ns <= due_ns or end_ns <= (request.event.deadline_ns or 0):
                    in_time += 1
                else:
                    late += 1
                request.place = _GONE
                del cluster.requests[request.id]
                if request.query is not None:
                    cluster.leave(request, request.query)
        counts.finished += in_time
        counts.late += late
        if kind is not None:
            kind.in_time += in_time
            kind.late += late
    else:
        if status is Status.OVERRUN:
            # How long it would have taken is not known, so no estimate learns of it.
            took_too_long(cluster, base, worker)
        _come_back(requests)
    return requests


def _measured(
    cluster: Cluster, now_ns: int, placement: Placement, index: int, action: Infer, taken_ns: int
) -> None:
    """Learn from how long an INFER took that ended well."""
    if placement.of is not None:
        taken_ns = placement.at_ceilings_ns(taken_ns, action.batch_size, action.sizes)
    times, name = placement.times, placement.worker.name
    expected_ns = times.ns[index]
    if times.add(now_ns, index, taken_ns):
        placement.model.counts.stood_out(now_ns, name, action.action_id, taken_ns, expected_ns)
    if times.spreads.due:
        cluster.estimates.review(placement.worker.kind, times)


def at_work(now_ns: int, worker: Worker) -> list[Infer | Open | Load | Prepare]:
    """Return the actions that a worker's executors are at, as far as predictions tell."""
    first = (worker.exec.first(), worker.load.first())
    prepares = (action for action, _ in worker.others.values() if isinstance(action, Prepare))
    begun = [slot.action for slot in first if slot is not None and slot.begin_ns <= now_ns]
    return [*begun, *islice(prepares, 1)]


def running(now_ns: int, worker: Worker) -> Infer | None:
    """Return the INFER that a worker is at, by the predictions; None if it is at none."""
    slot = worker.exec.first()
    if slot is None or not isinstance(slot.action, Infer) or slot.begin_ns > now_ns:
        return None
    return slot.action


def orphans(cluster: Cluster, worker: Worker) -> list[Request]:
    """Take the INFERs that were outstanding on a lost worker out; return their requests, now undecided."""
    found: list[Request] = []
    for action in worker.exec.actions():
        if not isinstance(action, Infer):
            continue
        requests = cluster.running.pop(action.action_id)
        _come_back(requests)
        found += requests
    return found


def learn_from_unanswered(cluster: Cluster, now_ns: int, worker: Worker, unanswered: Unanswered) -> None:
    """Note that an INFER was waited for in vain, and that it cost a worker its place.

    That its worker did not answer says little of its model: no estimate follows one such.
    """
    placement = worker.find(unanswered.model, unanswered.sizes)
    index = placement.times.sizes.index(unanswered.batch_size)
    waited_ns = unanswered.waited_ns
    if placement.of is not None:
        waited_ns = placement.at_ceilings_ns(waited_ns, unanswered.batch_size, unanswered.sizes)
    action_id = 0 if (first := worker.exec.first()) is None else first.action.action_id
    expected_ns = placement.times.ns[index]
    placement.model.counts.stood_out(now_ns, worker.name, action_id, waited_ns, expected_ns)
    placement.times.give_up(now_ns, index, waited_ns)
    took_too_long(cluster, placement.model.base, worker)


def took_too_long(cluster: Cluster, model: Model, worker: Worker) -> None:
    """Note that an INFER of a model took far too long on a worker."""
    overdue = model.overdue = model.overdue or {}
    overdue[worker.name] = overdue.get(worker.name, 0) + 1
    if cluster.serves(model):
        cluster.overdue[model.name] = model


def _come_back(requests: list[Request]) -> None:
    for request in requests:
        if request.place is _DISPATCHED:
            request.place = _UNDECIDED
