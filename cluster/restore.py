"""A reader enters a snapshot: each entry replaces what was known of its subject (`messages.snapshot`)."""

from __future__ import annotations

from collections import deque

from mainspring.cluster.assigning import enter_owners
from mainspring.cluster.estimates import InferTimes, LoadTime
from mainspring.cluster.membership import lose, note_standing, set_draining
from mainspring.cluster.models import Losses, Model
from mainspring.cluster.placements import Placement, Slot, State
from mainspring.cluster.requests import Place, Query, Request
from mainspring.cluster.residency import find, give_pages_back
from mainspring.cluster.scaling import restore_scale
from mainspring.cluster.state import Cluster
from mainspring.cluster.workers import Worker
from mainspring.messages.actions import Executed, Infer, Load
from mainspring.messages.estimates import InferEstimate, LoadEstimate, LoadRates
from mainspring.messages.model import ModelSpec
from mainspring.messages.operating import AssignModel, subject
from mainspring.messages.scaling import ScaleState
from mainspring.messages.snapshot import (
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
from mainspring.messages.targets import kind_of


def restore(cluster: Cluster, entry: Told) -> None:
    """Enter an entry of a snapshot; no request may be undecided (`apply.settle`)."""
    match entry:
        case Numbering():
            cluster.models_seen, cluster.workers_seen = entry.models, entry.workers
            _sort(cluster)
        case ModelServed():
            _served(cluster, entry)
        case WorkerState():
            _worker(cluster, entry)
        case OutstandingState():
            _outstanding(cluster, entry)
        case LoadRates() | InferEstimate() | LoadEstimate():
            cluster.estimates.restore(entry)
        case PlacementStates():
            worker = cluster.workers.get(entry.worker)
            if worker is not None:
                for state in entry.placements:
                    _placement(cluster, worker, state)
        case RecencyState():
            _recency(cluster, entry)
        case OperatorState():
            _operators(cluster, entry)
        case ScaleState():
            restore_scale(cluster, entry)
        case QueryState():
            _query(cluster, entry)
        case RequestState():
            _request(cluster, entry)
        case ModelState():
            _model(cluster, entry)


def _sort(cluster: Cluster) -> None:
    """Have models and workers in the order in which they came."""
    models = sorted(cluster.models.values(), key=_number_of_model)
    if models != list(cluster.models.values()):
        cluster.models.clear()
        cluster.models.update({model.name: model for model in models})
        cluster.estimates.hold_in_order(models)
    workers = sorted(cluster.workers.values(), key=_number_of_worker)
    cluster.workers = {worker.name: worker for worker in workers}
    if not any(not worker.number for worker in workers):
        # Those of workers that were made up.
        cluster.estimates.forget_kind("")


def _number_of_model(model: Model) -> int:
    return model.number


def _number_of_worker(worker: Worker) -> int:
    return worker.number


def _served(cluster: Cluster, entry: ModelServed) -> None:
    model = cluster.models.get(entry.model.name)
    if model is None or model.spec != entry.model:
        model = Model(entry.model, entry.number)
        serve(cluster, model)
    model.give_number(entry.number)
    _failures(cluster, model, entry)


def _failures(cluster: Cluster, model: Model, entry: ModelServed | ModelState) -> None:
    """Know how often in a row a model's INFERs took far too long, and workers were lost at it."""
    model.overdue = dict(entry.overdue) or None
    losses = entry.losses
    model.losses = None
    if losses is not None:
        model.losses = Losses(dict(losses.by_action), losses.last_ns, losses.worker, losses.action)
    if model.overdue or losses is not None:
        cluster.overdue[model.name] = model
    else:
        cluster.overdue.pop(model.name, None)


def serve(cluster: Cluster, model: Model) -> None:
    """Serve a model; one that was made up under its name becomes it, with its requests and placements."""
    known = cluster.models.get(model.name)
    cluster.estimates.hold(model)
    cluster.models[model.name] = model
    cluster.device_kinds.serve(model)
    if known is not None:
        model.count_on(known.counts)
        _succeed(cluster, known, model)
        cluster.device_kinds.release(known)
        cluster.estimates.release(known)
    for worker in cluster.workers.values():
        if worker.kind not in model.infer_times:
            cluster.know(model, worker.kind)
        there = worker.placements.get(model.name)
        if there is not None and there.model is not model:
            model.absent |= worker.bit


def _succeed(cluster: Cluster, known: Model, model: Model) -> None:
    model.prepared, model.absent = known.prepared, known.absent
    for former in list(known.placements.values()):
        placement = cluster.place(model, former.worker)
        _copy(former, placement)
    waiting = cluster.clear_queue(known)
    for request in cluster.requests.values():
        if request.model.base is known:
            request.model = cluster.model_of(request.event) or model.by_bucket[-1]
    for request in (*waiting[0], *waiting[1]):
        cluster.enqueue(request)


def _copy(former: Placement, placement: Placement) -> None:
    """Have a placement be as the one was in whose place it is."""
    worker, name = placement.worker, placement.model.name
    placement.state, placement.load_slot = former.state, former.load_slot
    placement.pages, placement.infers = former.pages, former.infers
    placement.last_used_ns, placement.leaving = former.last_used_ns, former.leaving
    if name in worker.lru:
        worker.lru[name] = placement
    for each in (former, *former.buckets):
        each.usable = False
        each.model.register(each)
        each.model.placements.pop(worker.name, None)
    former.model.prepared = 0
    placement.consider()


def _worker(cluster: Cluster, state: WorkerState) -> None:
    """Have a worker with its models, and nothing outstanding."""
    known = cluster.workers.get(state.worker)
    if known is not None:
        _end_infers(cluster, known)
        lose(cluster, known.name)
        known.forget()
    kind = kind_of(state.device_kind, state.targets)
    worker = Worker(state.worker, state.number, kind, state.pages, cluster.dispatch_delay_ns)
    cluster.seat(worker)
    worker.stopping, worker.owner = state.stopping, cluster.owners.get(state.worker, "")
    note_standing(cluster, worker)
    cluster.recount()
    for former in state.former:
        _placement(cluster, worker, former)
    for value, names in state.states.items():
        for name in names:
            model = cluster.models.get(name)
            if model is not None and value == State.PREPARED.value and name not in worker.placements:
                model.prepared |= worker.bit
                worker.prepared += 1
                continue
            placement = find(cluster, worker, name)
            if placement is not None:
                enter(placement, State(value))


def enter(placement: Placement, state: State) -> None:
    """Have a model in a state on a worker."""
    worker, name = placement.worker, placement.model.name
    if state is State.RESIDENT:
        worker.lru.setdefault(name, placement)
    else:
        worker.lru.pop(name, None)
    placement.make_up(state, placement.load_slot if state is State.LOADING else None)


def _end_infers(cluster: Cluster, worker: Worker) -> None:
    """Forget the requests of a worker's INFERs; those that are still outstanding come with it."""
    for action in worker.exec.actions():
        for request in cluster.running.pop(action.action_id, []):
            if request.place is not Place.GONE:
                cluster.close(request)


def _outstanding(cluster: Cluster, state: OutstandingState) -> None:
    """Have just these actions outstanding on a worker."""
    worker = cluster.workers.get(state.worker)
    if worker is None:
        return
    _end_infers(cluster, worker)
    for placement in worker.placements.values():
        placement.infers = 0
    executed = [
        _executed(cluster, worker, told, told.action)
        for told in state.exec
        if not isinstance(told.action, Load)
    ]
    loads = [
        _load(cluster, worker, told, told.action) for told in state.load if isinstance(told.action, Load)
    ]
    worker.exec.restore(executed, state.exec_free_ns)
    worker.exec.inputs_free_ns = state.inputs_free_ns
    worker.exec.inputs_came_ns = state.inputs_came_ns
    worker.load.restore(loads, state.load_free_ns)
    worker.others = {action.action_id: (action, sent_ns) for action, sent_ns in state.others}
    worker.prepares = state.prepares
    worker.lead_ns = state.lead_ns


def _executed(cluster: Cluster, worker: Worker, told: SlotState, action: Executed) -> Slot[Executed]:
    """Have an OPEN, or an INFER with its requests, run; return its slot."""
    slot: Slot[Executed] = Slot(action, told.begin_ns, told.end_ns - told.begin_ns)
    slot.ready_ns, slot.soonest_ns, slot.transfer_ns = told.ready_ns, told.soonest_ns, told.transfer_ns
    if not isinstance(action, Infer):
        return slot
    find(cluster, worker, action.model)
    placement = worker.find(action.model, action.sizes)
    placement.base.infers += 1
    requests = cluster.running[action.action_id] = []
    for state in told.requests:
        known = cluster.requests.get(state.event.request_id)
        if known is not None:
            cluster.close(known)
        event = state.event
        request = Request(event, placement.model, state.arrived_ns, state.due_ns, state.cold)
        request.turn_ns = state.turn_ns
        request.place = Place(state.place)
        if request.place is not Place.GONE:
            cluster.requests[request.id] = request
            cluster.join(request)
        requests.append(request)
    return slot


def _load(cluster: Cluster, worker: Worker, told: SlotState, action: Load) -> Slot[Load]:
    """Link a LOAD to its placement; return its slot."""
    slot: Slot[Load] = Slot(action, told.begin_ns, told.end_ns - told.begin_ns)
    slot.ready_ns, slot.soonest_ns = told.ready_ns, told.soonest_ns
    placement = find(cluster, worker, action.model)
    assert placement is not None, f"{worker.name} loads {action.model!r}, and nothing is known of it"
    placement.load_slot = slot
    placement.consider()
    return slot


def _placement(cluster: Cluster, worker: Worker, state: PlacementState) -> None:
    if state.former is not None:
        placement: Placement | None = _former(cluster, worker, state, state.former)
    else:
        placement = find(cluster, worker, state.model)
    if placement is None:
        return
    if placement.pages:
        worker.pages.give_back(state.model, placement.pages)
    worker.pages.take(state.model, state.pages)
    placement.pages = state.pages
    placement.detail, placement.failures = state.detail, state.failures
    placement.given_up, placement.last_used_ns = state.given_up, state.last_used_ns
    placement.leaving = state.leaving
    enter(placement, State(state.state))


def _former(cluster: Cluster, worker: Worker, state: PlacementState, spec: ModelSpec) -> Placement:
    """Return the placement of a model that is not served."""
    known = find(cluster, worker, spec.name)
    if known is not None and known.model.number == state.number:
        return known
    if known is not None:
        give_pages_back(known)
        known.make_up(State.KNOWN)
        known.lose()
    kind, estimates = worker.kind, cluster.estimates
    seeds_ns = [0] * len(spec.batch_sizes)
    own = state.own_infer_times, state.own_load_time
    times = InferTimes(spec.batch_sizes, seeds_ns, estimates.rank, estimates.raised) if own[0] else None
    load_time = LoadTime(0, estimates.rank) if own[1] else None
    placement = Placement(
        _former_model(cluster, spec, state),
        worker,
        times or estimates.infer_times(kind, spec),
        load_time or estimates.load_time(kind, spec),
    )
    placement.model.placements[worker.name] = placement
    worker.placements[spec.name] = placement
    successor = cluster.models.get(spec.name)
    if successor is not None:
        successor.absent |= worker.bit
    if placement.model.buckets:
        placement.buckets = []
    for bucket in placement.model.buckets.values():
        its_times = (
            InferTimes(spec.batch_sizes, list(seeds_ns), estimates.rank, estimates.raised) if own[0] else None
        )
        its_times = its_times or estimates.infer_times(kind, bucket.spec)
        held = Placement(bucket, worker, its_times, placement.load_time)
        held.of = placement
        placement.buckets.append(held)
        bucket.placements[worker.name] = held
    return placement


def _former_model(cluster: Cluster, spec: ModelSpec, state: PlacementState) -> Model:
    """Return a model that is not served and that other workers may have, too."""
    if state.number:
        for worker in cluster.workers.values():
            placement = worker.placements.get(spec.name)
            if placement is not None and placement.model.number == state.number:
                return placement.model
    model, successor = Model(spec, state.number), cluster.models.get(spec.name)
    if successor is not None and not state.own_counts:
        model.count_on(successor.counts)
    return model


def _recency(cluster: Cluster, state: RecencyState) -> None:
    worker = cluster.workers.get(state.worker)
    if worker is not None:
        resident = worker.lru
        worker.lru = {name: resident[name] for name in state.models if name in resident}


def _operators(cluster: Cluster, state: OperatorState) -> None:
    cluster.drained = dict.fromkeys(state.drained)
    cluster.pinned = dict.fromkeys(state.pinned)
    cluster.operations = {}
    for at_ns, event in state.operations:
        about = subject(event.command)
        if about is not None:
            cluster.operations[about] = at_ns, event
    commands = [event.command for _, event in cluster.operations.values()]
    wishes = {each.model: each for each in commands if isinstance(each, AssignModel) and each.workers}
    enter_owners(cluster, wishes, state.owners)
    cluster.graph_shares = {graph: dict(each) for graph, each in state.shares.items()}
    for worker in cluster.workers.values():
        if worker.draining != cluster.is_drained(worker.name):
            set_draining(cluster, worker.name)


def _query(cluster: Cluster, state: QueryState) -> None:
    """Have a query; pieces of it that are known belong to it from now on."""
    event, margin_ns = state.event, cluster.response_margin_ns
    due_ns = None if event.deadline_ns is None else event.deadline_ns - margin_ns
    query = cluster.queries[event.query_id] = Query(event, state.arrived_ns, due_ns)
    query.done = list(state.done)
    for request_id in state.open:
        request = cluster.requests.get(request_id)
        if request is not None:
            cluster.join(request)


def _request(cluster: Cluster, state: RequestState) -> None:
    """Have an open request; one that runs came with its INFER."""
    request = cluster.requests.get(state.event.request_id)
    model = cluster.model_of(state.event)
    if request is None:
        if model is None or Place(state.place) is not Place.QUEUED:
            return
        request = Request(state.event, model, state.arrived_ns, state.due_ns, state.cold)
        cluster.requests[request.id] = request
        cluster.join(request)
    elif request.place is Place.QUEUED:
        cluster.dequeue(request)
    request.event, request.rows = state.event, state.event.rows
    request.arrived_ns, request.due_ns, request.turn_ns = state.arrived_ns, state.due_ns, state.turn_ns
    request.cold = state.cold
    if request.place is Place.UNDECIDED:
        cluster.enqueue(request)


def _model(cluster: Cluster, state: ModelState) -> None:
    model = cluster.models.get(state.model)
    if model is None:
        return
    model.give_number(state.number)
    counts = model.counts
    counts.arrived, counts.finished, counts.late, counts.rejected = state.counts
    counts.slo_ns = state.slo_ns
    counts.outlier = state.outlier
    _failures(cluster, model, state)
    for bucket in (model, *model.buckets.values()):
        _bucket(cluster, bucket, state)


def _bucket(cluster: Cluster, model: Model, state: ModelState) -> None:
    """Have a model or one of its buckets on workers, and requests in its queue, in the order of the entry."""
    model.usable = _ordered(model.usable, state.usable)
    model.recount()
    kinds = state.device_kinds
    if kinds is None:
        kinds = tuple([worker.kind for worker in cluster.workers.values()])
    model.infer_times.clear()
    model.load_times.clear()
    for kind in kinds:
        model.infer_times[kind] = cluster.estimates.infer_times(kind, model.spec)
        model.load_times[kind] = cluster.estimates.load_time(kind, model.spec)
    requests = {request.id: request for request in model.backlog}
    model.backlog = deque([requests.pop(id_) for id_ in state.backlog if id_ in requests])
    model.backlog.extend(requests.values())


def _ordered(placements: dict[str, Placement], names: tuple[str, ...] | None) -> dict[str, Placement]:
    """Return placements in the order of their workers' names, or as the workers joined."""
    if names is None:
        joined = sorted(placements.values(), key=_number_of_host)
        return {placement.worker.name: placement for placement in joined}
    first = {name: placements[name] for name in names if name in placements}
    return {**first, **placements}


def _number_of_host(placement: Placement) -> int:
    return placement.worker.number
