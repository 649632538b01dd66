"""The fold: what each event and each command changes.

`apply` takes every entry of the event stream in its order, keeps the state true to it, and says what has
changed (`Change`). The scheduler applies each event as it comes in and each command as it comes out, and
reacts to the changes. So a reader of the stream has the scheduler's own state.

An arrival, or the end of an INFER that failed, does not say whether its requests wait or are rejected: a
`Reject` may follow. They are *undecided* until the next event; then they wait.
"""

from __future__ import annotations

from typing import Final, cast

from mainspring.cluster.assigning import regroup
from mainspring.cluster.execution import (
    Batch,
    batch_of,
    infer_ended,
    infer_sent,
    learn_from_unanswered,
    orphans,
)
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
from mainspring.cluster.placements import Slot
from mainspring.cluster.requests import Place, Query, Request
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
from mainspring.cluster.state import NO_REQUESTS, NOTHING, Change, Cluster
from mainspring.cluster.workers import Worker
from mainspring.messages.actions import (
    Command,
    Doubted,
    DropWorker,
    Executed,
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
    QueryArrived,
    Remembered,
    RequestArrived,
    RequestCancelled,
    Wakeup,
    WorkerJoined,
    WorkerLeft,
)
from mainspring.messages.ids import gateway_of
from mainspring.messages.queries import Chosen, StepsKnown
from mainspring.messages.scaling import Provide, ProviderLeft, ProviderSaid, Retain, Retire

_ARRIVED: Final = RequestArrived
_NO_SHARES: Final[dict[str, float]] = {}
_RESULT: Final = Result
_INFER: Final = Infer
_OK: Final = Status.OK
_STOPPING: Final = Status.STOPPING


def apply(cluster: Cluster, now_ns: int, entry: Event | Command, batch: Batch | None = None) -> Change:
    """Enter an event or a command, and return what it has changed.

    ``now_ns`` never goes back from one call to the next. ``batch`` is that of an INFER, if the caller has it
    at hand: looking it up is a fifteenth of the scheduler's instructions.
    """
    if cluster.history is not None:
        cluster.history.append((now_ns, entry))
    # To find that an entry is not of a message's class takes longer than to find that it is.
    kind = type(entry)
    if kind is _ARRIVED:
        settle(cluster)
        return _arrived(cluster, now_ns, cast("RequestArrived", entry))
    if kind is _RESULT:
        settle(cluster)
        return _ended(cluster, now_ns, cast("Result", entry))
    if kind is _INFER:
        settle(cluster)
        infer = cast("Infer", entry)
        infer_sent(cluster, now_ns, infer, batch_of(cluster, infer) if batch is None else batch)
        return NOTHING
    return _apply_other(cluster, now_ns, entry)


def _apply_other(cluster: Cluster, now_ns: int, entry: Event | Command) -> Change:
    match entry:
        case Reject(request_id=request_id):
            request = cluster.requests.get(request_id)
            if request is not None:
                request.model.counts.rejected += 1
                cluster.close(request)
            elif request_id in cluster.queries:
                return _rejected(cluster, cluster.queries[request_id])
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
        case Chosen(query_id=query_id):
            if query_id in cluster.queries:
                cluster.queries[query_id].choose(entry)
        case Retire() | Retain() | Provide():
            _scale(cluster, entry)
        case DropWorker():
            worker = cluster.workers.get(entry.worker)
            if worker is not None and entry.unanswered is not None:
                learn_from_unanswered(cluster, now_ns, worker, entry.unanswered)
            return left(cluster, entry.worker)
        case _:
            settle(cluster)
            return _apply_event(cluster, now_ns, cast("Event", entry))
    return NOTHING


def settle(cluster: Cluster) -> None:
    """Let the requests wait that nothing has rejected."""
    if cluster.undecided:
        waiting, cluster.undecided = cluster.undecided, NO_REQUESTS
        for request in waiting:
            if request.place is Place.UNDECIDED:
                cluster.enqueue(request)


def _scale(cluster: Cluster, command: Retire | Retain | Provide) -> None:
    match command:
        case Retire():
            retire(cluster, command)
        case Retain(worker=name):
            retain(cluster, name)
        case Provide():
            provide(cluster, command)


def _apply_event(cluster: Cluster, now_ns: int, event: Event) -> Change:
    change = NOTHING
    match event:
        case Wakeup() | GatewayRefused():
            pass
        case RequestCancelled(request_id=request_id):
            request = cluster.requests.get(request_id)
            if request is not None:
                change = _close(cluster, [request])
            elif request_id in cluster.queries:
                change = _close(cluster, list(cluster.queries.pop(request_id).open.values()))
        case QueryArrived():
            change = _query_arrived(cluster, now_ns, event)
        case StepsKnown():
            change = _steps_known(cluster, event)
        case GatewayLeft(number=number):
            change = _close(cluster, requests_of(cluster, number))
            for query_id in [each for each in cluster.queries if gateway_of(each) == number]:
                del cluster.queries[query_id]
        case ModelAdded(model=spec):
            change = model_added(cluster, spec)
        case ModelRemoved(name=name):
            change = model_removed(cluster, name)
        case ModelRestored(worker=name, model=model):
            change = model_restored(cluster, name, model)
        case WorkerJoined():
            former = left(cluster, event.worker).worker
            if former is not None:
                former.forget()
            if misplaced(event) is None:
                change = worker_joined(cluster, now_ns, event)
        case WorkerLeft(worker=name):
            change = _lost(cluster, now_ns, name)
        case OperatorAsked():
            change = operator_asked(cluster, now_ns, event)
        case ProviderSaid():
            provider_said(cluster, event)
        case ProviderLeft():
            provider_left(cluster, event)
        case Remembered(estimates=estimates):
            cluster.estimates.remember(estimates)
    return change


def _arrived(cluster: Cluster, now_ns: int, event: RequestArrived) -> Change:
    """Enter a request, which is undecided from then on; nothing if its id is known or its model is not."""
    request = cluster.arrived(now_ns, event)
    if request is None:
        return NOTHING
    change = cluster.arrival
    cluster.undecided = change.requests = [request]
    return change


def _query_arrived(cluster: Cluster, now_ns: int, event: QueryArrived) -> Change:
    """Enter a query, of which no piece has come; nothing if its id is known, or 0, which stands for none."""
    if event.query_id in cluster.queries or not event.query_id:
        return NOTHING
    due_ns = None if event.deadline_ns is None else event.deadline_ns - cluster.response_margin_ns
    cluster.queries[event.query_id] = Query(event, now_ns, due_ns)
    if ("graph", event.graph) in cluster.operations:
        _learn_shares(cluster, event)
    change = Change()
    change.taken = True
    return change


def _learn_shares(cluster: Cluster, event: QueryArrived) -> None:
    """Keep the shares of a graph's steps that a query tells, but for those of 1, if they have changed."""
    known, told = cluster.graph_shares.get(event.graph, _NO_SHARES), 0
    # That all are 1 is kept too: it is newer than what is known from before a start.
    changed = event.graph not in cluster.graph_shares
    for step in event.steps:
        if step.share != 1.0:
            told += 1
        if known.get(step.name, 1.0) != step.share:
            changed = True
    if not changed and told == len(known):
        return
    shares = {step.name: step.share for step in event.steps if step.share != 1.0}
    cluster.graph_shares[event.graph] = shares


def _steps_known(cluster: Cluster, event: StepsKnown) -> Change:
    """Take what is known of a query's steps; nothing if the query is not known, or has other steps."""
    query = cluster.queries.get(event.query_id)
    if query is None or not query.learn(event.steps):
        return NOTHING
    if query.over:
        del cluster.queries[query.id]
    change = Change()
    change.taken = True
    return change


def _rejected(cluster: Cluster, query: Query) -> Change:
    """Forget a query with all its pieces, which count as rejected; return those that waited."""
    del cluster.queries[query.id]
    pieces = list(query.open.values())
    for piece in pieces:
        piece.model.counts.rejected += 1
    return _close(cluster, pieces)


def _close(cluster: Cluster, requests: list[Request]) -> Change:
    """Forget requests; return those that waited."""
    change = Change()
    change.requests = [request for request in requests if request.place is Place.QUEUED]
    for request in requests:
        cluster.close(request)
    return change


def requests_of(cluster: Cluster, gateway: int) -> list[Request]:
    """Return every request of a gateway, by its number; a piece is that of its query's."""
    requests = cluster.requests.values()
    return [request for request in requests if gateway_of(request.event.query or request.id) == gateway]


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


def _ended(cluster: Cluster, now_ns: int, result: Result) -> Change:
    worker = cluster.workers.get(result.worker)
    if worker is None:
        return NOTHING
    change = cluster.ended
    change.renew(worker)
    if result.status is _STOPPING and not worker.stopping:
        change.stops = True
        stop(cluster, worker)
        for placement in list(worker.placements.values()):
            placement.leave()
    slot = worker.exec.finish(result.action_id, result.end_ns, result.inputs_ns)
    if slot is not None:
        _executed(cluster, now_ns, change, worker, slot, result)
        return change
    load = worker.load.finish(result.action_id, result.end_ns)
    if load is not None:
        change.action, change.placement = load.action, worker.placements[load.action.model]
        load_ended(cluster, now_ns, worker, load.action, result)
        return change
    other = worker.others.pop(result.action_id, None)
    if other is not None:
        change.action = action = other[0]
        name = action.model.name if isinstance(action, Prepare) else action.model
        change.placement = worker.placements.get(name)
        change.successor = other_ended(cluster, worker, action, result)
        if isinstance(action, Prepare):
            _leave_if_failed(cluster, worker, change)
    return change


def _executed(
    cluster: Cluster, now_ns: int, change: Change, worker: Worker, slot: Slot[Executed], result: Result
) -> None:
    """Enter the result of an INFER or an OPEN."""
    change.action = action = slot.action
    if isinstance(action, Infer):
        change.requests = infer_ended(cluster, now_ns, worker, slot, action, result)
        placement = change.placement = slot.placement
        change.size_index = slot.size_index
        if result.status is not _OK:
            cluster.undecided = [*cluster.undecided, *change.requests]
            if placement is not None and to_give_up(placement, result):
                give_up(placement.base, why_given_up(placement.base))
                change.unwanted = [placement.base]
    else:
        change.placement = worker.placements[action.model]
        open_ended(cluster, now_ns, worker, action, result)
        _leave_if_failed(cluster, worker, change)


def _leave_if_failed(cluster: Cluster, worker: Worker, change: Change) -> None:
    """Take a model off whose PREPARE or OPEN has failed if it was to leave."""
    placement = change.placement
    if placement is not None and placement.leaving and worker.has(placement):
        change.successor = leave(cluster, placement)


def left(cluster: Cluster, name: str) -> Change:
    """Take a worker out; who gets the change has its placements forgotten (`Worker.forget`)."""
    worker = lose(cluster, name)
    if worker is None:
        return NOTHING
    # The change of the last result keeps nothing of a worker that has gone.
    cluster.ended.renew(None)
    change = Change(worker)
    regroup(cluster)
    change.requests = orphans(cluster, worker)
    cluster.undecided = [*cluster.undecided, *change.requests]
    return change


def _lost(cluster: Cluster, now_ns: int, name: str) -> Change:
    """Take a worker out that is gone; a model that has ended too many is given up elsewhere."""
    gives_up = lost_running(cluster, now_ns, name)
    for placement in gives_up:
        give_up(placement, FATAL)
    change = left(cluster, name)
    if change is not NOTHING:
        change.unwanted = gives_up
    return change
