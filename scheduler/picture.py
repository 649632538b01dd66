"""How things stand, told as entries of the event stream: for whoever comes to it late.

`messages.observing` says what a picture holds and how it is to be read. It is made in slices, for thousands
of models are too many for one turn: whoever takes parts off `picture` may let the scheduler go on between any
two, and each says how things stand when it is taken. A part is to be told whole before anything else is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mainspring.cluster.placements import Model, Placement, State, Worker
from mainspring.cluster.requests import Place
from mainspring.messages.actions import Infer, Load, Prepare, Release, Unload
from mainspring.messages.events import (
    ModelAdded,
    OperatorAsked,
    RequestArrived,
    RequestCancelled,
    WorkerJoined,
)
from mainspring.messages.observing import Estimated, Holding
from mainspring.scheduler.books import Books

PLACEMENTS_AT_ONCE: Final = 64
"""Models that one `Holding` is about, at most."""

Entry = (
    RequestArrived
    | RequestCancelled
    | WorkerJoined
    | ModelAdded
    | Estimated
    | Holding
    | Infer
    | Load
    | Prepare
    | Release
    | Unload
    | OperatorAsked
)
Told = list[tuple[int | None, Entry]]
"""Entries, each with when it happened; None: it is so now."""


def picture(books: Books) -> Iterator[Told]:
    """Yield what rebuilds the state, part by part, in the order that `messages.observing` names."""
    for request in list(books.cluster.requests.values()):
        # Those that were dispatched before the picture began are told of with their INFER.
        if request.place is Place.QUEUED:
            yield [(request.arrived_ns, request.event)]
    for worker in list(books.cluster.workers.values()):
        if books.cluster.workers.get(worker.name) is worker:
            yield _worker(books, worker)
    told: dict[tuple[str, str, tuple[int, ...]], None] = {}
    told_loads: dict[tuple[str, int], None] = {}
    for model in list(books.cluster.models.values()):
        if books.cluster.models.get(model.name) is model:
            yield [(None, ModelAdded(model.spec)), *_estimates(model, told, told_loads)]
    for worker in list(books.cluster.workers.values()):
        yield from _holdings(books, worker)
    yield list(books.cluster.operations.values())


def _worker(books: Books, worker: Worker) -> Told:
    """Return one worker and what is outstanding on it."""
    told: Told = [(None, WorkerJoined(worker.name, worker.device_kind, worker.pages.size))]
    told += [(sent_ns, action) for action, sent_ns in worker.others.values()]
    told += [(load.earliest_ns, load) for load in worker.load.actions()]
    for infer in worker.exec.actions():
        requests = books.cluster.running[infer.action_id]
        told += [(each.arrived_ns, each.event) for each in requests]
        told.append((infer.earliest_ns, infer))
        told += [(None, RequestCancelled(each.id)) for each in requests if each.place is Place.GONE]
    return told


def _estimates(
    model: Model,
    told: dict[tuple[str, str, tuple[int, ...]], None],
    told_loads: dict[tuple[str, int], None],
) -> Told:
    """Return what is expected of a model's actions where no other model that shares it was told of."""
    spec = model.spec
    found: Told = []
    for kind, times in model.infer_times.items():
        key, load_key = (kind, spec.executable, spec.batch_sizes), (kind, spec.weights_bytes)
        if key in told and load_key in told_loads:
            continue
        told[key] = told_loads[load_key] = None
        load_ns = model.load_times[kind].ns
        estimated = Estimated(kind, model.name, tuple(times.ns), tuple(times.transfer_ns), load_ns)
        found.append((None, estimated))
    return found


def _holdings(books: Books, worker: Worker) -> Iterator[Told]:
    """Yield what a worker has of its models, a part at a time, as long as it is there."""
    placements = list(worker.placements.values())
    for first in range(0, max(1, len(placements)), PLACEMENTS_AT_ONCE):
        if books.cluster.workers.get(worker.name) is not worker:
            return
        part = [
            placement
            for placement in placements[first : first + PLACEMENTS_AT_ONCE]
            if worker.placements.get(placement.model.name) is placement
        ]
        yield [(None, _holding(worker, part))]


def _holding(worker: Worker, placements: list[Placement]) -> Holding:
    return Holding(
        worker.name,
        prepared=tuple([each.model.name for each in placements if each.state is State.PREPARED]),
        resident={each.model.name: each.pages for each in placements if each.state is State.RESIDENT},
        failed={each.model.name: each.detail for each in placements if each.failed},
        stopping=worker.stopping,
    )
