"""The fold: what each event and each command changes.

`apply` takes every entry of the event stream in its order and keeps the state true to it. The scheduler
decides over the same state with the same functions: it calls the one that an event is about, reacts, and
applies each of its commands as it comes out. So a reader of the stream has the scheduler's own state.

An arrival, or the end of an INFER that failed, does not say whether its requests wait or are rejected: a
`Reject` may follow. They are *undecided* until the next event; then they wait.
"""

from __future__ import annotations

from mainspring.cluster.execution import infer_ended, infer_sent, learn_from_unanswered, orphans
from mainspring.cluster.membership import (
    FATAL,
    lose,
    lost_running,
    misplaced,
    model_added,
    model_removed,
    model_restored,
    operator_asked,
    stop,
    to_give_up,
    why_given_up,
    worker_joined,
)
from mainspring.cluster.requests import Place, Request
from mainspring.cluster.residency import (
    give_up,
    leave,
    load_ended,
    load_sent,
    open_ended,
    open_sent,
    other_ended,
    prepare_sent,
    release_sent,
    unload_sent,
)
from mainspring.cluster.scaling import provide, provider_left, provider_said, retain, retire
from mainspring.cluster.state import Cluster
from mainspring.cluster.workers import Worker
from mainspring.messages.actions import (
    Command,
    Doubted,
    DropWorker,
    Infer,
    Load,
    Open,
    Prepare,
    Ranked,
    Reject,
    Release,
    Result,
    Unload,
)
from mainspring.messages.codes import Status
from mainspring.messages.events import (
    Event,
    GatewayLeft,
    GatewayRefused,
    ModelAdded,
    ModelRemoved,
    ModelRestored,
    OperatorAsked,
    RequestArrived,
    RequestCancelled,
    Wakeup,
    WorkerJoined,
    WorkerLeft,
)
from mainspring.messages.ids import gateway_of
from mainspring.messages.scaling import Provide, ProviderLeft, ProviderSaid, Retain, Retire


def apply(cluster: Cluster, now_ns: int, entry: Event | Command) -> None:
    """Enter an event or a command. ``now_ns`` never goes back from one call to the next."""
    match entry:
        # The most frequent ones come first.
        case RequestArrived():
            settle(cluster)
            request = cluster.arrived(now_ns, entry)
            if request is not None:
                cluster.undecided.append(request)
        case Result():
            settle(cluster)
            _ended(cluster, now_ns, entry)
        case Infer():
            settle(cluster)
            infer_sent(cluster, now_ns, entry)
        case Reject(request_id=request_id):
            request = cluster.requests.get(request_id)
            if request is not None:
                request.model.counts.rejected += 1
                cluster.close(request)
        case Load():
            load_sent(cluster, now_ns, entry)
        case Unload():
            unload_sent(cluster, now_ns, entry)
        case Prepare():
            prepare_sent(cluster, now_ns, entry)
        case Release():
            release_sent(cluster, now_ns, entry)
        case Open():
            open_sent(cluster, entry)
        case Ranked():
            _rank(cluster, entry)
        case Doubted(model=name):
            doubt(cluster, now_ns, name)
        case Retire():
            retire(cluster, entry)
        case Retain(worker=name):
            retain(cluster, name)
        case Provide():
            provide(cluster, entry)
        case DropWorker():
            worker = cluster.workers.get(entry.worker)
            if worker is not None and entry.unanswered is not None:
                learn_from_unanswered(cluster, now_ns, worker, entry.unanswered)
            _left(cluster, entry.worker)
        case _:
            settle(cluster)
            _apply_event(cluster, now_ns, entry)


def settle(cluster: Cluster) -> None:
    """Let the requests wait that nothing has rejected."""
    if cluster.undecided:
        waiting, cluster.undecided = cluster.undecided, []
        for request in waiting:
            if request.place is Place.UNDECIDED:
                cluster.enqueue(request)


def _apply_event(cluster: Cluster, now_ns: int, event: Event) -> None:
    match event:
        case Wakeup() | GatewayRefused():
            pass
        case RequestCancelled(request_id=request_id):
            request = cluster.requests.get(request_id)
            if request is not None:
                cluster.close(request)
        case GatewayLeft(number=number):
            for request in requests_of(cluster, number):
                cluster.close(request)
        case ModelAdded(model=spec):
            model_added(cluster, spec)
        case ModelRemoved(name=name):
            model_removed(cluster, name)
        case ModelRestored(worker=name, model=model):
            model_restored(cluster, name, model)
        case WorkerJoined():
            _left(cluster, event.worker)
            if misplaced(event) is None:
                worker_joined(cluster, now_ns, event)
        case WorkerLeft(worker=name):
            for placement in lost_running(cluster, now_ns, name):
                give_up(placement, FATAL)
            _left(cluster, name)
        case OperatorAsked():
            operator_asked(cluster, now_ns, event)
        case ProviderSaid():
            provider_said(cluster, event)
        case ProviderLeft():
            provider_left(cluster, event)


def requests_of(cluster: Cluster, gateway: int) -> list[Request]:
    """Return every request of a gateway, by its number."""
    return [request for request in cluster.requests.values() if gateway_of(request.id) == gateway]


def doubt(cluster: Cluster, now_ns: int, name: str) -> None:
    """Doubt the estimates that turn a model's requests away (`Rolling.doubt`)."""
    model = cluster.models[name]
    for each in model.by_bucket:
        for times in each.infer_times.values():
            times.doubt(now_ns)
    for load_time in model.load_times.values():
        load_time.doubt(now_ns)


def _rank(cluster: Cluster, ranked: Ranked) -> None:
    request = cluster.requests[ranked.request_id]
    waits = request.place is Place.QUEUED
    if waits:
        cluster.dequeue(request)
    request.due_ns, request.turn_ns = ranked.due_ns, ranked.turn_ns
    if waits:
        cluster.enqueue(request)


def _ended(cluster: Cluster, now_ns: int, result: Result) -> None:
    worker = cluster.workers.get(result.worker)
    if worker is None:
        return
    if result.status is Status.STOPPING and not worker.stopping:
        stop(cluster, worker)
        for placement in list(worker.placements.values()):
            placement.leave()
    slot = worker.exec.finish(result.action_id, result.end_ns, result.inputs_ns)
    if slot is not None:
        executed = slot.action
        if isinstance(executed, Infer):
            cluster.undecided += infer_ended(cluster, now_ns, worker, slot, executed, result)
            placement = worker.placements[executed.model]
            if to_give_up(placement, result):
                give_up(placement, why_given_up(placement))
        else:
            open_ended(cluster, now_ns, worker, executed, result)
            _leave_if_failed(cluster, worker, executed.model)
        return
    load = worker.load.finish(result.action_id, result.end_ns)
    if load is not None:
        load_ended(cluster, now_ns, worker, load.action, result)
        return
    other = worker.others.pop(result.action_id, None)
    if other is not None:
        other_ended(cluster, worker, other[0], result)
        if isinstance(other[0], Prepare):
            _leave_if_failed(cluster, worker, other[0].model.name)


def _leave_if_failed(cluster: Cluster, worker: Worker, name: str) -> None:
    """Take a model off whose PREPARE or OPEN has failed if it was to leave."""
    placement = worker.placements.get(name)
    if placement is not None and placement.leaving:
        leave(cluster, placement)


def _left(cluster: Cluster, name: str) -> None:
    worker = lose(cluster, name)
    if worker is not None:
        cluster.undecided += orphans(cluster, worker)
        worker.forget()
