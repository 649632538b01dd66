"""The fold for a reader of the stream that came late: it enters a snapshot, and makes up what it must.

`apply` trusts that every entry is about something that it has seen. A reader of a running controller gets a
snapshot first, in parts with live entries between them, and a log may have lost its first segments. So the
reader may meet an action for a worker, a model or requests that no entry has named yet: it makes them up, as
far as the action says what they are. The snapshot's own entry puts them right, or the next time that the
worker joins. What is made up has the number 0. Any other entry about something unknown changes nothing.
"""

from __future__ import annotations

import msgspec

from mainspring.cluster.apply import apply, settle
from mainspring.cluster.execution import Batch, infer_begun
from mainspring.cluster.membership import note_standing
from mainspring.cluster.models import Model
from mainspring.cluster.placements import Placement, State
from mainspring.cluster.requests import Place, Request
from mainspring.cluster.residency import find, give_pages_back, tidy
from mainspring.cluster.restore import enter, restore, serve
from mainspring.cluster.state import Change, Cluster
from mainspring.cluster.workers import PageTable, Worker
from mainspring.messages.actions import (
    Action,
    Command,
    Doubted,
    DropWorker,
    Infer,
    Load,
    Open,
    Prepare,
    Ranked,
    Release,
    Result,
    Unload,
)
from mainspring.messages.events import Event, RequestArrived, Wakeup, WorkerJoined, WorkerLeft
from mainspring.messages.model import ModelSpec
from mainspring.messages.snapshot import Told


def follow(cluster: Cluster, now_ns: int, entry: Event | Command | Told) -> None:
    """Enter an event, a command, or an entry of a snapshot. ``now_ns`` never goes back between events."""
    _follow(cluster, now_ns, entry)
    if cluster.fleeting:
        tidy(cluster)
    if cluster.worker_bits.has_stale:
        cluster.worker_bits.sweep()


def _follow(cluster: Cluster, now_ns: int, entry: Event | Command | Told) -> None:
    match entry:
        case RequestArrived() | Wakeup():
            apply(cluster, now_ns, entry)
        case Result():
            _ends(cluster, entry)
            apply(cluster, now_ns, entry)
        case Infer():
            settle(cluster)
            if not _outstanding(cluster, entry):
                _infer(cluster, now_ns, entry)
        case Load() | Unload() | Release() | Prepare() | Open():
            if not _outstanding(cluster, entry):
                _action(cluster, entry)
                apply(cluster, now_ns, entry)
        case Ranked(request_id=request_id):
            if request_id in cluster.requests:
                apply(cluster, now_ns, entry)
        case Doubted(model=name):
            if name in cluster.models:
                apply(cluster, now_ns, entry)
        case DropWorker():
            _forget(apply(cluster, now_ns, _known_of(cluster, entry)))
        case WorkerLeft():
            _forget(apply(cluster, now_ns, entry))
        case WorkerJoined():
            if cluster.last_joined != (now_ns, entry):
                cluster.last_joined = now_ns, entry
                apply(cluster, now_ns, entry)
        case _:
            if isinstance(entry, Told):
                settle(cluster)
                restore(cluster, entry)
            else:
                apply(cluster, now_ns, entry)


def _forget(change: Change) -> None:
    """Drop what a worker that is gone points to."""
    if change.worker is not None:
        change.worker.forget()


def _outstanding(cluster: Cluster, action: Action) -> bool:
    """Return whether an action is outstanding already: its entry came twice."""
    worker, action_id = cluster.workers.get(action.worker), action.action_id
    if worker is None:
        return False
    if isinstance(action, Infer | Open):
        return worker.exec.get(action_id) is not None
    return action_id in worker.others or worker.load.get(action_id) is not None


def _action(cluster: Cluster, action: Load | Unload | Release | Prepare | Open) -> None:
    """Know what an action is about."""
    match action:
        case Load():
            placement = _placement(cluster, action.worker, action.model)
            _make_room(placement, action.pages)
            _was(placement, State.PREPARED)
        case Unload():
            _was(_left(cluster, action.worker, action.model), State.RESIDENT)
        case Release():
            _was(_left(cluster, action.worker, action.model), State.PREPARED, State.BROKEN, State.CLOSED)
        case Prepare():
            _was(_know_model(cluster, action), State.KNOWN, State.CLOSED)
        case Open():
            _was(_placement(cluster, action.worker, action.model), State.CLOSED)


def _was(placement: Placement, *states: State) -> None:
    """Make up the first of some states if a model has none of them: the entries between were missed."""
    if placement.state not in states:
        enter(placement, states[0])


def _ends(cluster: Cluster, result: Result) -> None:
    """Make up the state of a model during an action that ends, if a missed entry had changed it."""
    worker = cluster.workers.get(result.worker)
    if worker is None:
        return
    outstanding = worker.outstanding(result.action_id)
    if outstanding is None:
        return
    match outstanding[0]:
        case Load(model=name):
            during = State.LOADING
        case Open(model=name):
            during = State.OPENING
        case Prepare(model=spec):
            name, during = spec.name, State.PREPARING
        case _:
            return
    placement = worker.placements.get(name)
    if placement is not None:
        _was(placement, during)


def _infer(cluster: Cluster, now_ns: int, action: Infer) -> None:
    """Enter an INFER, some of whose requests may be unknown or wait in another queue."""
    placement = _placement(cluster, action.worker, action.model, action.batch_size)
    if placement.state is not State.RESIDENT and placement.state is not State.LOADING:
        enter(placement, State.RESIDENT)
    placement = placement.worker.find(action.model, action.sizes)
    requests: list[Request] = []
    for index, request_id in enumerate(action.request_ids):
        request = cluster.requests.get(request_id)
        if request is None:
            sizes = action.sizes_of(index)
            event = RequestArrived(request_id, action.model, action.rows[index], None, sizes=sizes)
            request = Request(event, placement.model, now_ns, None, action.cold[index])
            cluster.requests[request_id] = request
        elif request.place is Place.QUEUED:
            cluster.dequeue(request)
        # It may be in another INFER, of whose end the entry was missed.
        request.place, request.model = Place.UNDECIDED, placement.model
        requests.append(request)
    index = placement.times.sizes.index(action.batch_size)
    infer_begun(cluster, now_ns, action, Batch(placement, index, requests))


def _placement(cluster: Cluster, worker_name: str, name: str, size: int = 0) -> Placement:
    """Return a model on a worker that can run batches of a size (0: any); make up what is not known."""
    worker = _worker(cluster, worker_name)
    placement = find(cluster, worker, name)
    if placement is not None and (not size or size in placement.times.sizes):
        return placement
    model = cluster.models.get(name)
    # INFERs of sizes that it was known with may be outstanding.
    former = () if placement is None else placement.times.sizes
    sizes = {size or 1, *(former if model is None else model.spec.batch_sizes)}
    if model is None or len(sizes) > len(model.spec.batch_sizes):
        model = _made_up_model(name, tuple(sorted(sizes)))
        serve(cluster, model)
    placement = worker.placements.get(name)
    if placement is not None:
        if placement.model is model:
            return placement
        give_pages_back(placement)
        placement.make_up(State.KNOWN)
        placement.lose()
        model.absent &= ~worker.bit
    return cluster.place(model, worker)


def _left(cluster: Cluster, worker_name: str, name: str) -> Placement:
    """Return a model that a worker is to give up; it need not be served any more."""
    worker = _worker(cluster, worker_name)
    return find(cluster, worker, name) or cluster.place(_made_up_model(name, (1,)), worker)


def _made_up_model(name: str, sizes: tuple[int, ...]) -> Model:
    """Return a model of which only the name and some batch sizes are known."""
    return Model(ModelSpec(name, "", "", sizes, 0, (), (), (), {}), 0)


def _worker(cluster: Cluster, name: str) -> Worker:
    """Return a worker; of one that is made up only the name is known."""
    worker = cluster.workers.get(name)
    if worker is None:
        worker = Worker(name, 0, "", 0, cluster.dispatch_delay_ns)
        cluster.seat(worker)
        note_standing(cluster, worker)
        cluster.recount()
    return worker


def _know_model(cluster: Cluster, action: Prepare) -> Placement:
    """Return a model that is prepared; it is served from now on if only its name, or nothing, was known."""
    known = cluster.models.get(action.model.name)
    if known is None or (not known.number and known.spec != action.model):
        serve(cluster, Model(action.model, 0))
    return _placement(cluster, action.worker, action.model.name)


def _make_room(placement: Placement, pages: tuple[int, ...]) -> None:
    """Have pages free for a LOAD: the worker may have more than is known, and other models in them."""
    worker = placement.worker
    if pages and max(pages) >= worker.pages.size:
        before, worker.pages = worker.pages, PageTable(max(pages) + 1)
        for page in range(before.size):
            owner = before.owner(page)
            if owner is not None:
                worker.pages.take(owner, (page,))
    if placement.pages:
        give_pages_back(placement)
        placement.make_up(State.PREPARED)
    for page in pages:
        owner = worker.pages.owner(page)
        if owner is None:
            continue
        holder = worker.placements.get(owner)
        if holder is not None and page in holder.pages:
            give_pages_back(holder)
            holder.make_up(State.PREPARED)
        else:
            # The model went, and a reader missed that its pages had been given up before.
            worker.pages.give_back(owner, (page,))


def _known_of(cluster: Cluster, entry: DropWorker) -> DropWorker:
    """Return an entry without what it says of an INFER that is not known."""
    worker, unanswered = cluster.workers.get(entry.worker), entry.unanswered
    if worker is None or unanswered is None:
        return entry
    placement = worker.placements.get(unanswered.model)
    if placement is not None and unanswered.batch_size in placement.times.sizes:
        return entry
    return msgspec.structs.replace(entry, unanswered=None)
