"""Workers and models come and go while requests are served."""

from __future__ import annotations

from mainspring.cluster.placements import Model, Placement, State, Worker
from mainspring.messages.codes import Reason
from mainspring.messages.commands import DropWorker, Unanswered
from mainspring.messages.events import WorkerJoined
from mainspring.messages.model import ModelSpec
from mainspring.scheduler.changes import Changes

OVERDUE_ATTEMPTS = 3
"""How often a model's INFER may cost a worker its place before the model is given up on that worker."""
OVERDUE = "INFERs took so long again and again that the worker was dropped for it"


class Membership(Changes):
    """Adds and removes models and workers."""

    _models_seen = 0
    _workers_seen = 0
    """Models, and workers, have numbers in the order in which they came."""

    def add_model(self, now_ns: int, spec: ModelSpec) -> None:
        """Serve a model from now on; it replaces one of its name with other weights, whose pin it keeps."""
        cluster = self._books.cluster
        known = cluster.models.get(spec.name)
        if known is not None and known.spec == spec:
            return
        # Before the old model goes, so that what both have in common stays.
        cluster.estimates.hold(spec)
        if known is not None:
            self._take_off(now_ns, known)
        self._models_seen += 1
        model = cluster.models[spec.name] = Model(spec, self._models_seen)
        for worker in cluster.workers.values():
            if spec.name not in worker.placements:
                self._residency.want_prepared(cluster.place(model, worker))
                self._residency.prepare_next(now_ns, worker)
        self._pins.enforce()

    def remove_model(self, now_ns: int, name: str) -> None:
        """Serve a model no more: reject what waits for it, and take it off the workers as they get free."""
        model = self._books.cluster.models.get(name)
        if model is None:
            return
        self._books.pinned.pop(name, None)
        self._books.asked.pop(("model", name), None)
        self._take_off(now_ns, model)
        self._pins.enforce()

    def restored(self, now_ns: int, name: str, model: str) -> None:
        """Try a model again on a worker that failed on it: its files have changed.

        What the worker had prepared of it goes first, for that is of the files as they were.
        """
        worker = self._books.cluster.workers.get(name)
        placement = None if worker is None else worker.placements.get(model)
        if placement is not None and not placement.leaving and (placement.failed or placement.failures):
            self._residency.leave(now_ns, placement)

    def _take_off(self, now_ns: int, model: Model) -> None:
        """Reject what waits for a model, and have workers give it up."""
        del self._books.cluster.models[model.name]
        model.pinned = False
        detail = f"model {model.name!r} was removed"
        self._intake.reject_queued(now_ns, model, Reason.MODEL_REMOVED, detail)
        for placement in list(model.placements.values()):
            self._residency.leave(now_ns, placement)
        self._books.cluster.estimates.release(model.spec)

    def join(self, now_ns: int, event: WorkerJoined) -> None:
        """Take a worker in, with what it says its memory holds."""
        cluster = self._books.cluster
        if event.worker in cluster.workers:
            self.leave(now_ns, event.worker, "joined again")
        pages = [page for resident in event.resident for page in resident.pages]
        if len(set(pages)) != len(pages) or not all(0 <= page < event.pages for page in pages):
            reason = f"it says that its {event.pages} pages hold models at {sorted(pages)}"
            self._books.emit(DropWorker(event.worker, reason))
            return
        self._workers_seen += 1
        grace_ns = self._books.ns.dispatch_delay
        worker = Worker(event.worker, self._workers_seen, event.device_kind, event.pages, grace_ns)
        cluster.workers[worker.name] = worker
        worker.draining = worker.name in self._books.drained
        cluster.recount()
        self._books.consider_load_room(now_ns, worker)
        for model in cluster.models.values():
            cluster.place(model, worker)
        for name, artifact in event.prepared.items():
            placement = worker.placements.get(name) or self._orphan(worker, name)
            placement.enter(State.PREPARED)
            if placement.model.spec.artifact != artifact:
                placement.leave()
        self._adopt(now_ns, worker, event)
        for placement in list(worker.placements.values()):
            if placement.leaving:
                self._residency.leave(now_ns, placement)
            elif placement.model.overdue and placement.model.overdue.get(worker.name, 0) >= OVERDUE_ATTEMPTS:
                self._residency.give_up(now_ns, placement, OVERDUE)
            else:
                self._residency.want_prepared(placement)
        self._residency.prepare_next(now_ns, worker)
        self._policy.worker_joined(now_ns, worker)
        self._pins.enforce()
        self._books.loads_dirty = True
        self._books.wake(worker)

    def leave(self, now_ns: int, name: str, reason: str) -> None:
        """Forget a worker; its requests go elsewhere if their deadlines allow, or are rejected."""
        books = self._books
        worker = books.cluster.workers.pop(name, None)
        if worker is None:
            return
        books.cluster.recount()
        for placement in worker.placements.values():
            placement.lose()
        self._forget_kind(worker)
        self._policy.worker_left(now_ns, worker)
        self._backlog.worker_left(worker)
        books.dirty.pop(name, None)
        books.load_room.pop(name, None)
        for load in worker.load.actions():
            books.idle_loads.pop(load.action_id, None)
        books.loads_dirty = True
        detail = f"{name} was lost ({reason})"
        for action in worker.exec.actions():
            for request in books.running.pop(action.action_id):
                request.failures += 1
                self._intake.retry(now_ns, request, Reason.WORKER_FAILED, detail)
        for placement in worker.placements.values():
            self._intake.reconsider(now_ns, placement.model)
        self._pins.enforce()
        # Placements point back to it: without this only a garbage collection would free them.
        worker.placements.clear()
        worker.lru.clear()
        worker.strategies.clear()

    def drop(self, now_ns: int, name: str, reason: str, unanswered: Unanswered | None = None) -> None:
        """Break with a worker whose state can't be trusted any more; it may join again."""
        self._books.emit(DropWorker(name, reason, unanswered))
        self.leave(now_ns, name, reason)

    def _adopt(self, now_ns: int, worker: Worker, event: WorkerJoined) -> None:
        """Enter what is in a joining worker's pages."""
        for resident in event.resident:
            placement = worker.placements.get(resident.model) or self._orphan(worker, resident.model)
            worker.pages.take(resident.model, resident.pages)
            placement.pages = resident.pages
            placement.last_used_ns = now_ns
            worker.lru[resident.model] = placement
            if placement.model.spec.artifact != resident.artifact:
                placement.leave()
            placement.enter(State.RESIDENT)
            if placement.usable:
                self._policy.residency_changed(now_ns, placement)
                self._backlog.offer(placement)

    def _orphan(self, worker: Worker, name: str) -> Placement:
        """Enter a model that a worker has and the cluster does not, so that it can be taken off."""
        spec = ModelSpec(name, "", "", (1,), 0, (), (), (), {})
        placement = self._books.cluster.place(Model(spec, 0), worker)
        placement.leave()
        return placement

    def _forget_kind(self, worker: Worker) -> None:
        """Drop a device kind's estimates from the models if no other worker has it."""
        kind = worker.device_kind
        if any(other.device_kind == kind for other in self._books.cluster.workers.values()):
            return
        for placement in worker.placements.values():
            placement.model.infer_times.pop(kind, None)
            placement.model.load_times.pop(kind, None)
