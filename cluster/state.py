"""The state of a cluster: what is served, by which workers, and what waits."""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from mainspring.cluster.device_kinds import DeviceKinds, Estimates
from mainspring.cluster.models import Model
from mainspring.cluster.placements import Placement, State
from mainspring.cluster.provision import Kind
from mainspring.cluster.requests import Place, Query, Request, add_to_backlog
from mainspring.cluster.rolling import RANK
from mainspring.cluster.served_models import ServedModels
from mainspring.cluster.worker_bits import WorkerBits
from mainspring.cluster.workers import Joining, Worker
from mainspring.messages.actions import Command, Executed, Load, Prepare, Release, Unload
from mainspring.messages.events import Event, OperatorAsked, RequestArrived, WorkerJoined
from mainspring.messages.graphs import GraphSpec
from mainspring.messages.model import ModelSpec
from mainspring.messages.operating import (
    AssignModel,
    SetDefaultSlo,
    SetGoodputWeight,
    SetGraph,
    SetMaxQueue,
)
from mainspring.messages.targets import kind_of

_QUEUED: Final = Place.QUEUED
_UNDECIDED: Final = Place.UNDECIDED
_GONE: Final = Place.GONE
_PREPARED: Final = State.PREPARED
_RESIDENT: Final = State.RESIDENT


NO_REQUESTS: Final[list[Request]] = []
"""No requests, to be read only."""
NO_PLACEMENTS: Final[list[Placement]] = []
"""No placements, to be read only."""


class Cluster:
    """The state; only `mainspring.cluster.apply` and the functions that it calls change it."""

    last_joined: tuple[int, WorkerJoined] | None = None
    """The last worker that joined by `follow`, and when: the entry may come twice."""
    history: deque[tuple[int, Event | Command]] | None = None
    """The last entries that were applied, for `validate`; None, as where requests are served, keeps none."""

    stepped: list[Query] | None = None
    """The scheduler's note: queries of several steps of which a piece has ended; readers keep none."""
    graph_shares: dict[str, dict[str, float]]
    """The share of rows of each step, by graph and step, as gateways have learnt it; none where it is 1."""
    assigned: dict[str, AssignModel]
    """Wishes of operators for workers of models' own, by model (`cluster.assigning`)."""
    owners: dict[str, str]
    """The model that owns each worker, of those that one owns."""
    regrouped: dict[str, Worker]
    """Workers that have another owner than before, until the scheduler takes note; readers need none."""
    queries: dict[int, Query]
    """Every query that was neither answered nor rejected, by id."""

    def __init__(
        self, estimate_rank: int = RANK, dispatch_delay_ns: int = 0, response_margin_ns: int = 0
    ) -> None:
        """Begin without models and workers; rank and durations are those of `SchedulerConfig`."""
        self.dispatch_delay_ns, self.response_margin_ns = dispatch_delay_ns, response_margin_ns
        """Time from a decision until the action and small inputs are at the worker, and the time taken off
        each deadline for the way back."""
        self.models: dict[str, Model] = {}
        self.workers: dict[str, Worker] = {}
        self.worker_bits = WorkerBits(ServedModels())
        """Assignment of bits to workers, for sets of them."""
        self.joining: list[Joining] = []
        """Workers of which not all is entered that they have prepared, the longest joining first."""
        self.entered_at_once = 0
        """Models of a joining worker that are entered at once; 0: all. The others follow part by part."""
        self.overdue: dict[str, Model] = {}
        """Models with INFERs that took far too long, or at which workers were lost."""
        self.fleeting: list[Placement] = []
        """Placements that may be plain by now: `residency.tidy` drops them."""
        self.of_kind: dict[str, int] = {}
        """The set of workers of each kind of device."""
        self.changes = self.open_workers = 0
        """Number of workers that have come or gone, until a change of which facts about all of them hold, and
        number of those that take new work (`recount`)."""
        self.estimates, self.assigned, self.owners = Estimates(estimate_rank), {}, {}
        self.device_kinds = DeviceKinds(self.worker_bits.served, self.estimates)
        self.requests: dict[int, Request] = {}
        """Every request that was neither answered nor rejected."""
        self.running: dict[int, list[Request]] = {}
        """The requests of each outstanding INFER, by action."""
        self.queries, self.graph_shares, self.regrouped, self.queued = {}, {}, {}, 0
        """The number of requests in any queue."""
        self.arrival, self.ended = Change(), Change()
        """The changes by the last arrival and result, used again: new ones would cost 2 % of a request."""
        self.undecided = NO_REQUESTS
        """Requests of which the next entry says what becomes of them (`apply`); to be read only."""
        self.drained: dict[str, None] = {}
        """Workers that an operator wants nothing sent to, connected or not."""
        self.pinned: dict[str, None] = {}
        """Models that an operator wants resident."""
        self.operations: dict[tuple[str, str], tuple[int, OperatorAsked]] = {}
        """Last settings of operators by their subject, and when each was made; the newest last."""
        self.kinds: dict[str, Kind] = {}
        """The kinds of workers that a provider has, or had."""
        self.retiring: dict[str, tuple[str, bool]] = {}
        """Workers that are to leave, connected or not: of which kind, and whether they are drained."""
        self.moving: dict[str, str] = {}
        """Address of the controller that a retiring worker moves to, by the worker's name; if it moves."""
        self.models_seen, self.workers_seen = 0, 0
        """Number of models, and of workers, that have come; the last one's number is this."""

    def recount(self) -> None:
        """Count the workers that take new work: one came or left, or began or ceased to take it."""
        self.open_workers = sum([worker.open for worker in self.workers.values()])

    def is_drained(self, name: str) -> bool:
        """Return whether nothing more is to be sent to a worker, connected or not."""
        retiring = self.retiring.get(name)
        return name in self.drained or (retiring is not None and retiring[1])

    def default_slos_ns(self) -> dict[str, int]:
        """Return the default SLOs that operators set, by what clients call the models; they outlive those."""
        found: dict[str, int] = {}
        for _, event in self.operations.values():
            command = event.command
            if isinstance(command, SetDefaultSlo) and command.slo_ns is not None:
                found[command.model] = command.slo_ns
        return found

    def max_queue_size(self, name: str) -> int | None:
        """Return how many requests may wait for a model, by what clients call it, as operators or its
        repository have set it; None if they have not."""
        found = self.operations.get(("queue", name))
        command = None if found is None else found[1].command
        return command.size if isinstance(command, SetMaxQueue) else None

    def goodput_weight(self, name: str) -> float | None:
        """Return how many others' an answer of a model counts as, likewise."""
        found = self.operations.get(("goodput weight", name))
        command = None if found is None else found[1].command
        return command.weight if isinstance(command, SetGoodputWeight) else None

    def graphs(self) -> dict[str, GraphSpec]:
        """Return the graphs of models that clients may ask for, by name."""
        found: dict[str, GraphSpec] = {}
        for _, event in self.operations.values():
            if isinstance(event.command, SetGraph) and event.command.graph is not None:
                found[event.command.name] = event.command.graph
        return found

    # --- models and workers ---

    def new_model(self, spec: ModelSpec) -> Model:
        """Return a model with the next number; models have numbers in the order in which they come."""
        self.models_seen += 1
        return Model(spec, self.models_seen)

    def new_worker(self, event: WorkerJoined) -> Worker:
        """Return a worker with the next number; workers have numbers in the order in which they join."""
        self.workers_seen += 1
        kind = kind_of(event.device_kind, event.targets)
        return Worker(event.worker, self.workers_seen, kind, event.pages, self.dispatch_delay_ns)

    def seat(self, worker: Worker) -> None:
        """Enter a worker; every model is known on it."""
        self.worker_bits.take(worker)
        worker.fleeting = self.fleeting
        self.changes += 1
        kind = worker.kind
        self.of_kind[kind] = self.of_kind.get(kind, 0) | worker.bit
        self.workers[worker.name] = worker
        if self.of_kind[kind] == worker.bit:
            self.device_kinds.came(kind)

    def unseat(self, name: str) -> Worker | None:
        """Take a worker out and return it; None if it is not there. Its bit is the next worker's."""
        worker = self.workers.pop(name, None)
        if worker is not None:
            self.worker_bits.leave(worker)
            self.changes += 1
            left = self.of_kind[worker.kind] & ~worker.bit
            if left:
                self.of_kind[worker.kind] = left
            else:
                del self.of_kind[worker.kind]
                self.device_kinds.went(worker.kind)
        return worker

    def know(self, model: Model, kind: str) -> None:
        """Have estimates of a model on a kind of device."""
        self.device_kinds.know(model, kind, self.estimates.ns_per_byte(kind))

    def place(self, model: Model, worker: Worker) -> Placement:
        """Give a model an object on a worker, as `pairs` finds it without one, and return it."""
        placement = self.plain(model, worker)
        worker.placements[model.name] = placement
        for each in (placement, *placement.buckets):
            each.model.placements[worker.name] = each
        self.fleeting.append(placement)
        return placement

    def plain(self, model: Model, worker: Worker) -> Placement:
        """Return what a model, or a bucket, is on a worker by its bit alone; nothing is entered."""
        base = model.base
        if worker.kind not in base.infer_times:
            self.know(base, worker.kind)
        placement = self._plain(model, worker)
        if model.buckets:
            placement.buckets = [self._plain(bucket, worker) for bucket in model.buckets.values()]
            for held in placement.buckets:
                held.of = placement
        elif base is not model:
            placement.of = self._plain(base, worker)
        return placement

    def _plain(self, model: Model, worker: Worker) -> Placement:
        kind = worker.kind
        placement = Placement(model, worker, model.infer_times[kind], model.load_times[kind])
        if model.base.prepared & worker.bit:
            placement.state = _PREPARED
        placement.leaving = worker.stopping
        return placement

    def waiting_models(self) -> list[Model]:
        """Return the models that requests wait for, by their numbers."""
        if not self.queued:
            return []
        if len(self.requests) > len(self.models):
            return [model for model in self.models.values() if model.waiting]
        found = {}
        for request in self.requests.values():
            if request.place is _QUEUED and self.serves(request.model):
                found[request.model.base.number] = request.model.base
        return [found[number] for number in sorted(found)]

    def serves(self, model: Model) -> bool:
        """Return whether a model, or the one that it is a bucket of, is still served."""
        return self.models.get(model.base.name) is model.base

    # --- requests ---

    def arrived(self, now_ns: int, event: RequestArrived) -> Request | None:
        """Enter a request that is neither queued nor rejected yet.

        Returns None, and changes nothing, if its id is known already or its model is not.
        """
        if event.query and self.queries:
            event = self._as_chosen(event)
        model = self.model_of(event)
        if model is None:
            return None
        deadline_ns = event.deadline_ns
        # When EXEC must have ended for it.
        due_ns = None if deadline_ns is None else deadline_ns - self.response_margin_ns
        request = Request(event, model, now_ns, due_ns, is_cold(model))
        if request.id in self.requests:
            return None
        model.counts.came(now_ns, deadline_ns)
        self.requests[request.id] = request
        if self.queries:
            self.join(request)
        return request

    def _as_chosen(self, event: RequestArrived) -> RequestArrived:
        """Return a piece's arrival with the model of its step, which may have been chosen since."""
        query = self.queries.get(event.query)
        if query is None or event.step >= len(query.done):
            return event
        name = query.event.steps[event.step].model
        return event if name == event.model else msgspec.structs.replace(event, model=name)

    def join(self, request: Request) -> None:
        """Have a request be a piece of the query that its arrival names, if that is known."""
        query = self.queries.get(request.event.query)
        if query is not None and request.event.step < len(query.done):
            request.query = query
            query.open[request.id] = request

    def leave(self, request: Request, query: Query) -> None:
        """Note that a piece has ended; the query is over with the last."""
        if query.open.pop(request.id, None) is not None:
            query.done[request.event.step] += request.rows
            if query.over:
                self.queries.pop(query.id, None)
            elif self.stepped is not None and len(query.done) > 1:
                self.stepped.append(query)

    def model_of(self, event: RequestArrived) -> Model | None:
        """Return the model or the bucket that a request is for; None if it is not served."""
        model = self.models.get(event.model)
        if model is None:
            return None
        sizes = event.sizes
        return model.find(sizes) if sizes or model.buckets else model

    def enqueue(self, request: Request) -> None:
        """Put a request that is in no queue into its model's."""
        assert request.place is _UNDECIDED, f"{request}: it can't be queued"
        request.place = _QUEUED
        self.queued += 1
        if request.due_ns is None:
            add_to_backlog(request.model.backlog, request)
        else:
            request.model.queue.add(request)

    def dequeue(self, request: Request) -> None:
        """Take a queued request out of its queue."""
        assert request.place is _QUEUED, f"{request}: it is in no queue"
        request.place = _UNDECIDED
        self.queued -= 1
        if request.due_ns is None:
            request.model.backlog.remove(request)
        else:
            request.model.queue.remove(request)

    def clear_queue(self, model: Model) -> tuple[list[Request], list[Request]]:
        """Take all of a model's requests out of its queue; return those with a deadline and the others."""
        with_deadline: list[Request] = []
        best_effort: list[Request] = []
        for bucket in model.by_bucket:
            with_deadline += bucket.queue.clear()
            best_effort += bucket.backlog
            bucket.backlog.clear()
        for request in with_deadline:
            request.place = _UNDECIDED
        for request in best_effort:
            request.place = _UNDECIDED
        self.queued -= len(with_deadline) + len(best_effort)
        return with_deadline, best_effort

    def close(self, request: Request) -> None:
        """Forget a request: it is answered, rejected or cancelled."""
        self.requests.pop(request.id, None)
        if request.query is not None:
            self.leave(request, request.query)
        if request.place is _QUEUED:
            self.dequeue(request)
        assert request.place is not _GONE, f"{request}: it can't go twice"
        request.place = _GONE


def is_cold(model: Model) -> bool:
    """Return whether a model is resident nowhere."""
    for placement in model.usable.values():  # noqa: SIM110 - a generator would cost more than the search
        if placement.state is _RESIDENT:
            return False
    return True


class Change:
    """The subjects of one change; those that it did not touch are None, False or empty."""

    __slots__ = (
        "action",
        "model",
        "placement",
        "removed",
        "requests",
        "size_index",
        "stops",
        "successor",
        "taken",
        "unwanted",
        "worker",
    )

    def __init__(self, worker: Worker | None = None) -> None:
        self.model: Model | None = None
        """The model that was added."""
        self.removed: Model | None = None
        """The model that is served no more; its queue is as it was."""
        self.taken = False
        """True if an operator's setting, a query, or more of one was entered: nothing forbade it."""
        self.renew(worker)

    def renew(self, worker: Worker | None) -> None:
        """Have nothing of a result but the worker that it came from, if any."""
        self.worker = worker
        """The worker that a result came from, that came, that is gone, or that operators drain or resume."""
        self.stops = False
        """True if the worker has said that it begins nothing more."""
        self.action: Executed | Load | Unload | Prepare | Release | None = None
        """The action that has ended; None if nobody waited for it any more."""
        self.size_index = 0
        """Index of the batch size of an INFER that has ended."""
        self.placement: Placement | None = None
        """The model, or its bucket, that the action was about, on the worker."""
        self.requests: list[Request] = NO_REQUESTS
        """The requests that arrived, left their queues for good, or were of an INFER that is outstanding no
        more; to be read only."""
        self.unwanted: list[Placement] = NO_PLACEMENTS
        """Models that are to be taken off workers (`Placement.leaving`), or that these try no more."""
        self.successor: Model | None = None
        """The model that replaces one that is off the worker now."""


NOTHING: Final = Change()
"""The change of an entry to which nobody reacts."""
