"""Preparation and residency of models on workers: PREPARE, RELEASE, LOAD and UNLOAD, and their results."""

from __future__ import annotations

from typing import Final

from mainspring.cluster.models import Model
from mainspring.cluster.placements import Placement, State
from mainspring.cluster.residency_bits import find
from mainspring.cluster.state import Cluster
from mainspring.cluster.workers import Worker
from mainspring.messages.actions import Load, Open, Prepare, Release, Result, Unload, kind_of
from mainspring.messages.codes import Status

LOAD_ATTEMPTS: Final = 3
"""LOADs in a row that a worker's engine may fail before the model is given up on that worker."""


def load_sent(cluster: Cluster, now_ns: int, action: Load) -> None:
    """Enter a LOAD: the model has the pages from now on."""
    worker = cluster.workers[action.worker]
    placement = _found(cluster, worker, action.model)
    worker.pages.take(action.model, action.pages)
    placement.pages = action.pages
    placement.last_used_ns = now_ns
    placement.enter(State.LOADING, worker.load.add(action))


def load_ended(cluster: Cluster, now_ns: int, worker: Worker, action: Load, result: Result) -> None:
    """Enter a LOAD's result: the model is resident, or its pages are free again."""
    placement = worker.placements[action.model]
    if result.status is Status.OK:
        placement.enter(State.RESIDENT)
        placement.failures = 0
        _ended_well(placement.model, action)
        worker.lru[action.model] = placement
        duration_ns = result.end_ns - result.begin_ns
        expected_ns = placement.load_time.ns
        if placement.load_time.add(now_ns, duration_ns):
            counts = placement.model.counts
            counts.stood_out(now_ns, worker.name, action.action_id, duration_ns, expected_ns)
        else:
            cluster.estimates.loaded(worker.kind, placement.model.spec, duration_ns)
    else:
        placement.failures += result.status is Status.ENGINE_ERROR
        placement.detail = result.detail
        vacate(placement, State.BROKEN if placement.failures >= LOAD_ATTEMPTS else State.PREPARED)


def unload_sent(cluster: Cluster, now_ns: int, action: Unload) -> None:
    """Enter an UNLOAD: the model's pages are free for the very next LOAD."""
    worker = cluster.workers[action.worker]
    placement = worker.placements[action.model]
    vacate(placement, State.BROKEN if placement.given_up else State.PREPARED)
    worker.others[action.action_id] = (action, now_ns)


def prepare_sent(cluster: Cluster, now_ns: int, action: Prepare) -> None:
    """Enter a PREPARE."""
    worker = cluster.workers[action.worker]
    _found(cluster, worker, action.model.name).enter(State.PREPARING)
    worker.prepares += 1
    worker.others[action.action_id] = (action, now_ns)


def open_sent(cluster: Cluster, action: Open) -> None:
    """Enter an OPEN: EXEC has one action more, and no LOAD is expected to begin before its end."""
    worker = cluster.workers[action.worker]
    worker.load.reserve(worker.exec.add(action).end_ns)
    _found(cluster, worker, action.model).enter(State.OPENING)


def open_ended(cluster: Cluster, now_ns: int, worker: Worker, action: Open, result: Result) -> None:
    """Enter an OPEN's result: the model can be loaded, or waits for another one, or is given up."""
    worker.load.release(result.end_ns)
    placement = worker.placements[action.model]
    placement.detail = result.detail
    if result.status is Status.OK:
        duration_ns = result.end_ns - result.begin_ns
        cluster.estimates.opened(now_ns, worker.kind, placement.times, duration_ns)
        placement.enter(State.PREPARED)
        _ended_well(placement.model, action)
    elif result.status is Status.TOO_LATE or result.status is Status.STOPPING:
        placement.enter(State.CLOSED)
    else:
        placement.enter(State.FAILED)


def release_sent(cluster: Cluster, now_ns: int, action: Release) -> None:
    """Enter a RELEASE."""
    worker = cluster.workers[action.worker]
    _found(cluster, worker, action.model).enter(State.RELEASING)
    worker.others[action.action_id] = (action, now_ns)


def other_ended(
    cluster: Cluster, worker: Worker, action: Unload | Prepare | Release, result: Result
) -> Model | None:
    """Enter the result of an action without a window.

    Returns what replaces a model that was released, if something does. A reader that has missed entries may
    know nothing any more of what the action was about.
    """
    ok = result.status is Status.OK
    if worker.stopping and not ok:
        return None
    name = action.model.name if isinstance(action, Prepare) else action.model
    placement = worker.placements.get(name)
    if isinstance(action, Prepare):
        worker.prepares -= 1
    if placement is None:
        return None
    if isinstance(action, Prepare):
        state = State.CLOSED if result.status is Status.NOT_OPEN else State.FAILED
        placement.enter(State.PREPARED if ok else state)
        if ok or state is State.CLOSED:
            _ended_well(placement.model, action)
        placement.detail = result.detail
    elif isinstance(action, Release) and ok:
        return forget(cluster, placement)
    return None


def _ended_well(model: Model, action: Load | Open | Prepare) -> None:
    """Note that an action did not end its worker (`membership.lost_running`)."""
    losses = model.base.losses
    if losses is not None:
        losses.by_action.pop(kind_of(action), None)


def leave(cluster: Cluster, placement: Placement) -> Model | None:
    """Note that a model is to be taken off a worker; one that is not prepared there is off at once.

    Returns what replaces one that is off, if something does.
    """
    placement.leave()
    if not placement.worker.stopping and placement.state in (State.KNOWN, State.FAILED):
        return forget(cluster, placement)
    return None


def give_up(placement: Placement, detail: str) -> None:
    """Try a model no more on a worker; if it is resident there, its UNLOAD follows."""
    placement.detail = detail
    if placement.state is State.RESIDENT:
        placement.given_up = True
    else:
        placement.enter(State.BROKEN if placement.state is State.PREPARED else State.FAILED)


def forget(cluster: Cluster, placement: Placement) -> Model | None:
    """Remove a placement; return the model that was added under its name and is known there now, if any."""
    worker, name = placement.worker, placement.model.name
    del worker.placements[name]
    worker.prepare_queue.pop(name, None)
    for each in (placement, *placement.buckets):
        each.model.placements.pop(worker.name, None)
    placement.model.where = None
    successor = cluster.models.get(name)
    if successor is None or worker.name not in cluster.workers:
        return None
    successor.absent &= ~worker.bit
    successor.where = None
    return successor


def _found(cluster: Cluster, worker: Worker, name: str) -> Placement:
    placement = find(cluster, worker, name)
    if placement is None:
        raise KeyError(f"{worker.name} has nothing by the name of {name!r}")
    return placement


def vacate(placement: Placement, state: State) -> None:
    """Free a model's pages; ``state`` is its next."""
    give_pages_back(placement)
    placement.enter(state)


def give_pages_back(placement: Placement) -> None:
    """Free a model's pages, and leave its state to the caller."""
    worker, name = placement.worker, placement.model.name
    worker.pages.give_back(name, placement.pages)
    worker.lru.pop(name, None)
    placement.pages = ()
    placement.last_used_ns = 0
