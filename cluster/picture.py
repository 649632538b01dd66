"""A picture of the state as entries of the event stream, for a reader that comes late.

`messages.observing` says what a snapshot holds and how to read it. It is made in slices, for thousands of
models are too many for one turn: between two parts of `picture` the state may change, and each part says how
things stand when it is taken. A reader takes a part whole before anything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mainspring.cluster.placements import Model, Placement, State, Worker
from mainspring.cluster.requests import Place
from mainspring.cluster.state import Cluster
from mainspring.messages.actions import Infer, Load, Prepare, Release, Unload
from mainspring.messages.events import (
    ModelAdded,
    OperatorAsked,
    RequestArrived,
    RequestCancelled,
    WorkerJoined,
)
from mainspring.messages.observing import Estimated, Holding

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
Part = list[tuple[int | None, Entry]]
"""Entries, each with when it happened; None: it is so now."""


def picture(cluster: Cluster) -> Iterator[Part]:
    """Yield what rebuilds the state, part by part, in the order that `messages.observing` names."""
    for request in list(cluster.requests.values()):
        # Requests that were dispatched before the snapshot began come with their INFER.
        if request.place is Place.QUEUED:
            yield [(request.arrived_ns, request.event)]
    for worker in list(cluster.workers.values()):
        if cluster.workers.get(worker.name) is worker:
            yield _worker(cluster, worker)
    seen: dict[tuple[str, str, tuple[int, ...]], None] = {}
    seen_loads: dict[tuple[str, int], None] = {}
    for model in list(cluster.models.values()):
        if cluster.models.get(model.name) is model:
            yield [(None, ModelAdded(model.spec)), *_estimates(model, seen, seen_loads)]
    for worker in list(cluster.workers.values()):
        yield from _holdings(cluster, worker)
    yield list(cluster.operations.values())


def _worker(cluster: Cluster, worker: Worker) -> Part:
    """Return one worker and what is outstanding on it."""
    part: Part = [(None, WorkerJoined(worker.name, worker.device_kind, worker.pages.size))]
    part += [(sent_ns, action) for action, sent_ns in worker.others.values()]
    part += [(load.earliest_ns, load) for load in worker.load.actions()]
    for infer in worker.exec.actions():
        requests = cluster.running[infer.action_id]
        part += [(each.arrived_ns, each.event) for each in requests]
        part.append((infer.earliest_ns, infer))
        part += [(None, RequestCancelled(each.id)) for each in requests if each.place is Place.GONE]
    return part


def _estimates(
    model: Model,
    seen: dict[tuple[str, str, tuple[int, ...]], None],
    seen_loads: dict[tuple[str, int], None],
) -> Part:
    """Return what is expected of a model's actions unless another model that shares it has said it."""
    spec = model.spec
    found: Part = []
    for kind, times in model.infer_times.items():
        key, load_key = (kind, spec.executable, spec.batch_sizes), (kind, spec.weights_bytes)
        if key in seen and load_key in seen_loads:
            continue
        seen[key] = seen_loads[load_key] = None
        load_ns = model.load_times[kind].ns
        estimated = Estimated(kind, model.name, tuple(times.ns), tuple(times.transfer_ns), load_ns)
        found.append((None, estimated))
    return found


def _holdings(cluster: Cluster, worker: Worker) -> Iterator[Part]:
    """Yield what a worker has of its models, a part at a time, as long as it is there."""
    placements = list(worker.placements.values())
    for first in range(0, max(1, len(placements)), PLACEMENTS_AT_ONCE):
        if cluster.workers.get(worker.name) is not worker:
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
