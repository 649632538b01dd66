"""The state's invariants: each failed check tells the story of what it is about."""

from __future__ import annotations

import re
from collections import deque
from typing import Final

from mainspring.cluster.models import Model
from mainspring.cluster.placements import PREPARED_STATES, State
from mainspring.cluster.requests import Place
from mainspring.cluster.state import Cluster
from mainspring.cluster.status import where
from mainspring.cluster.workers import Worker
from mainspring.messages.actions import Command, Open
from mainspring.messages.events import Event

HISTORY: Final = 4_096
"""Entries that `remember` keeps."""
TOLD: Final = 20
"""Most entries of a story."""


def remember(cluster: Cluster) -> None:
    """Keep the last entries from now on, so that what is found to be wrong has a story."""
    cluster.history = deque(maxlen=HISTORY)


def validate(cluster: Cluster) -> None:
    """Check the whole state; raise AssertionError at the first thing that is wrong.

    Its text ends with the last entries about what it names, if the state remembers them.
    """
    try:
        _check(cluster)
    except AssertionError as error:
        raise AssertionError(f"{error}{story(cluster, str(error))}") from None


def story(cluster: Cluster, about: str) -> str:
    """Return the last entries about requests, models and workers that a text names; "" if none are kept."""
    named = frozenset(re.findall(r"(?:request|action) \d+|[\w./-]+", about))
    told = [(at_ns, entry) for at_ns, entry in cluster.history or () if not named.isdisjoint(_names(entry))]
    return "".join([f"\n    {at_ns / 1e6:.3f} ms: {entry}" for at_ns, entry in told[-TOLD:]])


def _names(entry: Event | Command) -> list[str]:
    """Return the workers, models, requests and actions that an entry is about, as checks name them."""
    names = [getattr(entry, field, None) for field in ("worker", "model", "name")]
    found = [str(getattr(each, "name", each)) for each in names if each is not None]
    requests = getattr(entry, "request_ids", (getattr(entry, "request_id", None),))
    return [*found, *(f"request {each}" for each in requests), f"action {getattr(entry, 'action_id', None)}"]


def _check(cluster: Cluster) -> None:
    assert not cluster.undecided, f"neither queued nor rejected: {cluster.undecided}"
    _check_requests(cluster)
    for worker in cluster.workers.values():
        _check_worker(cluster, worker)
    for model in cluster.models.values():
        _check_model(cluster, model)
    workers = cluster.workers.values()
    _check_seats(cluster)
    cluster.device_kinds.validate()
    assert cluster.open_workers == sum(worker.open for worker in workers), "workers that take work"


def _check_seats(cluster: Cluster) -> None:
    """Each worker has a bit of its own, and sets of workers hold those of workers that are there."""
    seated = {worker.name: worker for worker in cluster.worker_bits.workers if worker is not None}
    assert seated == cluster.workers, f"seats are {list(seated)}, not {list(cluster.workers)}"
    kinds: dict[str, int] = {}
    for index, worker in enumerate(cluster.worker_bits.workers):
        if worker is not None:
            assert worker.bit == 1 << index, f"{worker.name} sits at {index} and has the bit {worker.bit:x}"
            kinds[worker.kind] = kinds.get(worker.kind, 0) | worker.bit
    assert cluster.of_kind == kinds, f"workers by kind: {cluster.of_kind}, not {kinds}"


def _check_requests(cluster: Cluster) -> None:
    """Each request is in exactly one place."""
    places: dict[int, list[str]] = {request_id: [] for request_id in cluster.requests}
    queued = 0
    for model in [bucket for each in cluster.models.values() for bucket in each.by_bucket]:
        assert model.queue.rows == sum(request.rows for request in model.queue), (
            f"rows of {model.name}'s queue"
        )
        for request in (*model.queue, *model.backlog):
            queued += 1
            assert request.place is Place.QUEUED, f"{request} is in the queue of {model.name}"
            assert request.id in places, f"{request} is queued but not known"
            places[request.id].append(f"queue of {model.name}")
    for action_id, requests in cluster.running.items():
        for request in requests:
            if request.place is not Place.GONE:
                assert request.place is Place.DISPATCHED, f"{request} is in action {action_id}"
                places[request.id].append(f"action {action_id}")
    for request_id, found in places.items():
        assert len(found) == 1, f"{cluster.requests[request_id]} is in {found or 'no place'}"
    for query in cluster.queries.values():
        assert not query.over, f"{query} is over"
        for piece in query.open.values():
            assert cluster.requests.get(piece.id) is piece, f"{piece} is a piece of {query}, and not known"
            assert piece.query is query, f"{piece} is a piece of {query}, and of {piece.query}"
    for request in cluster.requests.values():
        query_id = 0 if request.query is None else request.query.id
        assert not query_id or query_id in cluster.queries, f"{request} is a piece of a query that has ended"
    assert queued == cluster.queued, f"{queued} requests are queued, {cluster.queued} were counted"


def _check_worker(cluster: Cluster, worker: Worker) -> None:
    """Pages, timelines and placements of one worker agree."""
    name = worker.name
    worker.pages.validate({p.model.name: p.pages for p in worker.placements.values() if p.pages})
    worker.exec.validate(f"EXEC of {name}")
    worker.load.validate(f"LOAD of {name}")
    infers: dict[str, int] = {}
    opening: dict[str, int] = {}
    for action in worker.exec.actions():
        if isinstance(action, Open):
            opening[action.model] = opening.get(action.model, 0) + 1
            continue
        infers[action.model] = infers.get(action.model, 0) + 1
        assert action.action_id in cluster.running, f"{action} has no requests"
    models = cluster.models.values()
    prepared = sum(placement.state in PREPARED_STATES for placement in worker.placements.values())
    prepared += sum(bool(m.prepared & worker.bit) and m.name not in worker.placements for m in models)
    assert worker.draining == cluster.is_drained(name), f"{name} is draining: {worker.draining}"
    assert worker.retiring == (name in cluster.retiring), f"{name} is to leave: {worker.retiring}"
    assert worker.owner == cluster.owners.get(name, ""), f"{name} is said to be {worker.owner}'s own"
    assert worker.prepared == prepared, f"{name}: {prepared} are prepared, {worker.prepared} were counted"
    for placement in worker.placements.values():
        assert placement.infers == infers.get(placement.model.name, 0), f"{placement}: {infers}"
        assert opening.get(placement.model.name, 0) == (placement.state is State.OPENING), f"{placement}"
        has_pages = placement.state in (State.LOADING, State.RESIDENT)
        assert not placement.model.spec.extents or has_pages == bool(placement.pages), f"{placement}"
        assert (placement.state is State.RESIDENT) == (placement.model.name in worker.lru), f"{placement}"
        if placement.state is State.LOADING:
            slot = placement.load_slot
            assert slot is not None, f"{placement} has no LOAD"
            assert worker.load.get(slot.action.action_id) is slot, f"{placement} has no LOAD outstanding"
        usable = has_pages and not placement.leaving and not worker.draining
        usable = usable and placement.model.may_run_on(worker)
        assert placement.usable == usable, f"{placement} is marked as usable: {placement.usable}"
        for each in (placement, *placement.buckets):
            registered = each.model.usable.get(name) is each
            assert registered == usable == each.usable, f"{each} is registered as usable: {registered}"
            assert (each.state, each.load_slot, each.leaving, each.load_stalled) == (
                *(placement.state, placement.load_slot, placement.leaving, placement.load_stalled),
            ), f"{each} differs from {placement}"


def _check_model(cluster: Cluster, model: Model) -> None:
    """A model's placements are those of the workers, and what the status says of them is true."""
    told = model.where
    true = told is None or told[0] != cluster.changes or told == where(cluster, model)
    assert true, f"the status says of {model.name}: {told}"
    assert model.assignment is cluster.assigned.get(model.name), f"{model.name} has {model.assignment}"
    assert not model.pinned or model.name in cluster.pinned, f"{model.name} is kept, and nobody pinned it"
    for bucket in model.buckets.values():
        assert bucket.placements.keys() == model.placements.keys(), f"workers of {bucket.name}"
        assert bucket.counts is model.counts, f"counts of {bucket.name}"
    for each in (model, *model.buckets.values()):
        holders = [p.worker for p in each.usable.values() if not p.stalled]
        assert each.holders == holders, f"holders of {each.name}"
        held = sum(p.worker.bit for p in each.usable.values())
        assert each.held == held, f"{each.name} is held by {each.held:x}, not {held:x}"
    for name, placement in model.placements.items():
        worker = cluster.workers.get(name)
        assert worker is not None, f"{placement}: there is no such worker"
        assert worker.placements.get(model.name) is placement, f"{placement} is not the worker's"
        prepared = bool(model.prepared & worker.bit)
        assert prepared == (placement.state is State.PREPARED), f"{placement}, and its bit is {prepared}"
    for worker in cluster.workers.values():
        there = worker.placements.get(model.name)
        other = there is not None and there.model is not model
        assert other == bool(model.absent & worker.bit), f"{model.name} is absent from {worker.name}: {there}"
