"""A snapshot of the state, for a reader that comes late: `messages.snapshot` says what it holds.

It is made in parts, for thousands of models are too many for one turn: between two parts the state may
change, and each part says how things are when it is taken. A reader takes a part whole before anything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from mainspring.cluster.models import Model
from mainspring.cluster.placements import Placement, Slot, State
from mainspring.cluster.requests import Request
from mainspring.cluster.residency import of_worker
from mainspring.cluster.scaling import scale_state
from mainspring.cluster.state import Cluster
from mainspring.cluster.workers import Worker
from mainspring.messages.actions import Executed, Infer, Load
from mainspring.messages.snapshot import (
    Losses,
    ModelServed,
    ModelState,
    Numbering,
    OperatorState,
    OutstandingState,
    PlacementState,
    PlacementStates,
    QueryState,
    RecencyState,
    RequestState,
    SlotState,
    Told,
    WorkerState,
)

AT_ONCE: Final = 64
"""Placements, requests or models that one part is about, at most."""
Part = list[Told]


def snapshot(cluster: Cluster) -> Iterator[Part]:
    """Yield the whole state, part by part."""
    yield [_numbering(cluster)]
    yield from _served(cluster)
    for worker in list(cluster.workers.values()):
        if worker.joining is not None:
            for _ in worker.joining.early():
                yield []
        if cluster.workers.get(worker.name) is worker:
            yield [_worker(cluster, worker), _outstanding(cluster, worker)]
    while cluster.device_kinds.behind:
        cluster.device_kinds.settle_some()
        yield []
    for estimate in cluster.estimates.states():
        yield [estimate]
    for worker in list(cluster.workers.values()):
        yield from _placements(cluster, worker)
    operations = tuple(cluster.operations.values())
    shares = {graph: dict(each) for graph, each in cluster.graph_shares.items()}
    own = dict(cluster.owners)
    operators = OperatorState(tuple(cluster.drained), tuple(cluster.pinned), operations, shares, own)
    yield [operators, scale_state(cluster)]
    yield from _requests(cluster)
    yield from _models(cluster)
    yield [_numbering(cluster)]


def _served(cluster: Cluster) -> Iterator[Part]:
    """Yield the models in the order of their numbers, with those that come meanwhile."""
    number = 0
    while later := [model for model in cluster.models.values() if model.number > number]:
        number = later[-1].number
        for model in later:
            if cluster.models.get(model.name) is model:
                yield [ModelServed(model.number, model.spec, dict(model.overdue or {}), _losses(model))]
    # A model that came meanwhile has its number; one that was told twice does not count.
    yield [_numbering(cluster)]


def _numbering(cluster: Cluster) -> Numbering:
    return Numbering(cluster.models_seen, cluster.workers_seen)


def _requests(cluster: Cluster) -> Iterator[Part]:
    """Yield every open request, behind the queries that they are pieces of."""
    queries = list(cluster.queries.values())
    for first in range(0, len(queries), AT_ONCE):
        yield [
            QueryState(query.event, query.arrived_ns, tuple(query.done), tuple(query.open))
            for query in queries[first : first + AT_ONCE]
            if query.id in cluster.queries
        ]
    requests = list(cluster.requests.values())
    for first in range(0, len(requests), AT_ONCE):
        yield [
            _request(request)
            for request in requests[first : first + AT_ONCE]
            if cluster.requests.get(request.id) is request
        ]


def _models(cluster: Cluster) -> Iterator[Part]:
    """Yield the entries of models that come after all others."""
    yield [_numbering(cluster)]
    names = list(cluster.models)
    for first in range(0, len(names), AT_ONCE):
        # What has replaced a model meanwhile may go on with something of it.
        yield [
            _model(cluster, cluster.models[name])
            for name in names[first : first + AT_ONCE]
            if name in cluster.models
        ]


def _model(cluster: Cluster, model: Model) -> ModelState:
    usable = tuple(model.usable)
    counts = model.counts
    return ModelState(
        model.name,
        model.number,
        (counts.arrived, counts.finished, counts.late, counts.rejected),
        dict(model.overdue or {}),
        None if cluster.of_kind.keys() == model.infer_times.keys() else tuple(model.infer_times),
        None if _as_joined(cluster, usable) else usable,
        tuple([request.id for bucket in model.by_bucket for request in bucket.backlog]),
        counts.slo_ns,
        counts.outlier,
        _losses(model),
    )


def _losses(model: Model) -> Losses | None:
    losses = model.losses
    return (
        None
        if losses is None
        else Losses(dict(losses.by_action), losses.last_ns, losses.worker, losses.action)
    )


def _as_joined(cluster: Cluster, names: tuple[str, ...]) -> bool:
    """Return whether workers stand in the order in which they joined."""
    numbers = [cluster.workers[name].number for name in names]
    return numbers == sorted(numbers)


def _worker(cluster: Cluster, worker: Worker) -> WorkerState:
    """Return a worker with where each model is on it."""
    prepared = [
        name
        for name, model in cluster.models.items()
        if model.prepared & worker.bit and name not in worker.placements
    ]
    states = {State.PREPARED.value: prepared} if prepared else {}
    former: list[PlacementState] = []
    for placement in of_worker(worker):
        name = placement.model.name
        if cluster.models.get(name) is not placement.model:
            former.append(_placement(cluster, placement))
        elif placement.state is not State.KNOWN:
            states.setdefault(placement.state.value, []).append(name)
    return WorkerState(
        worker.name,
        worker.number,
        worker.device_kind,
        worker.pages.size,
        worker.stopping,
        {each: tuple(found) for each, found in states.items()},
        tuple(former),
        worker.targets,
    )


def _outstanding(cluster: Cluster, worker: Worker) -> OutstandingState:
    return OutstandingState(
        worker.name,
        tuple([_executed(cluster, slot) for slot in worker.exec.slots()]),
        worker.exec.free_ns,
        worker.exec.inputs_free_ns,
        worker.exec.inputs_came_ns,
        tuple([_load(slot) for slot in worker.load.slots()]),
        worker.load.free_ns,
        tuple(worker.others.values()),
        worker.prepares,
        worker.lead_ns,
    )


def _executed(cluster: Cluster, slot: Slot[Executed]) -> SlotState:
    action = slot.action
    running = cluster.running[action.action_id] if isinstance(action, Infer) else []
    requests = tuple([_request(request) for request in running])
    return SlotState(
        action, slot.begin_ns, slot.end_ns, slot.ready_ns, slot.soonest_ns, slot.transfer_ns, requests
    )


def _load(slot: Slot[Load]) -> SlotState:
    return SlotState(
        slot.action, slot.begin_ns, slot.end_ns, slot.ready_ns, slot.soonest_ns, slot.transfer_ns
    )


def _request(request: Request) -> RequestState:
    return RequestState(
        request.event,
        request.arrived_ns,
        request.due_ns,
        request.turn_ns,
        request.cold,
        request.place.value,
    )


def _placements(cluster: Cluster, worker: Worker) -> Iterator[Part]:
    """Yield the entries of a worker's placements, as long as it is there."""
    placements = [placement for placement in of_worker(worker) if not _is_plain(placement)]
    for first in range(0, len(placements), AT_ONCE):
        if cluster.workers.get(worker.name) is not worker:
            return
        told = [
            _placement(cluster, placement)
            for placement in placements[first : first + AT_ONCE]
            if worker.placements.get(placement.model.name) is placement and not _is_plain(placement)
        ]
        if told:
            yield [PlacementStates(worker.name, tuple(told))]
    if cluster.workers.get(worker.name) is worker:
        yield [RecencyState(worker.name, tuple(worker.lru)), _outstanding(cluster, worker)]


def _is_plain(placement: Placement) -> bool:
    """Return whether a placement's state says all that there is to say."""
    return (
        not placement.pages
        and not placement.detail
        and not placement.failures
        and not placement.leaving
        and not placement.given_up
        and not placement.last_used_ns
    )


def _placement(cluster: Cluster, placement: Placement) -> PlacementState:
    model, kind = placement.model, placement.worker.kind
    told = PlacementState(
        model.name,
        placement.state.value,
        placement.detail,
        placement.failures,
        placement.given_up,
        placement.pages,
        placement.last_used_ns,
        placement.leaving,
    )
    served, estimates = cluster.models.get(model.name), cluster.estimates
    if served is model:
        return told
    return msgspec.structs.replace(
        told,
        former=msgspec.structs.replace(model.spec, inputs=(), outputs=(), profiles={}),
        number=model.number,
        own_infer_times=estimates.known_infer(kind, model.spec) is not placement.times,
        own_load_time=estimates.known_load(kind, model.spec) is not placement.load_time,
        own_counts=served is None or served.counts is not model.counts,
    )
