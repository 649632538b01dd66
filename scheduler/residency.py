"""Which models are prepared and resident where: PREPARE, RELEASE, LOAD and UNLOAD, and their results."""

from __future__ import annotations

from mainspring.cluster.placements import Placement, State, Worker
from mainspring.cluster.timeline import Slot
from mainspring.messages.actions import Load, Prepare, Release, Result, Unload
from mainspring.messages.codes import Status
from mainspring.scheduler.books import READY_SLACK_NS, Books
from mainspring.scheduler.idle import MissedModels
from mainspring.scheduler.pins import Pins
from mainspring.scheduler.placing import LoadPlan, wrong_with
from mainspring.scheduler.policies.base import Policy
from mainspring.scheduler.stalls import stalled_at_ns

LOAD_ATTEMPTS = 3
"""LOADs in a row that a worker's engine may fail before the model is given up on that worker."""


class Residency:
    """Sends the actions that move models, and keeps the mirror true to them."""

    def __init__(self, books: Books, policy: Policy, missed: MissedModels, pins: Pins) -> None:
        self._books = books
        self._policy = policy
        self._missed = missed
        self._pins = pins

    def want_prepared(self, placement: Placement, soon: bool = False) -> None:
        """Queue a known model's PREPARE; ``soon`` puts it first."""
        queue = placement.worker.prepare_queue
        if placement.state is State.KNOWN and not placement.leaving:
            queue[placement.model.name] = None
            if soon:
                queue.move_to_end(placement.model.name, last=False)

    def prepare_next(self, now_ns: int, worker: Worker) -> None:
        """Send PREPAREs up to the bound on how many may be outstanding."""
        while (
            worker.prepare_queue
            and not worker.draining
            and worker.prepares < self._books.config.prepares_in_flight
        ):
            name, _ = worker.prepare_queue.popitem(last=False)
            placement = worker.placements.get(name)
            if placement is None or placement.state is not State.KNOWN or placement.leaving:
                continue
            placement.enter(State.PREPARING)
            worker.prepares += 1
            action = Prepare(self._books.next_action_id(), worker.name, placement.model.spec)
            self._send_other(now_ns, worker, action)

    def load(self, now_ns: int, plan: LoadPlan) -> None:
        """Evict the plan's victims and load its model.

        Raises ValueError, before anything is changed, for a plan that can't be carried out.
        """
        wrong = wrong_with(plan, self._books.load_room)
        if wrong is not None:
            what = f"a LOAD of {plan.placement.model.name!r} on {plan.placement.worker.name}"
            raise ValueError(f"policy {self._policy.name!r} planned {what}, but {wrong}")
        for victim in plan.victims:
            self.unload(now_ns, victim)
        books, placement = self._books, plan.placement
        worker, model = placement.worker, placement.model
        begin_ns = worker.load.available_ns(now_ns, books.soonest_ns(now_ns))
        action = Load(
            action_id=books.next_action_id(),
            worker=worker.name,
            model=model.name,
            pages=plan.pages,
            earliest_ns=now_ns,
            latest_ns=begin_ns + books.ns.load_window,
            predicted_begin_ns=begin_ns,
            predicted_duration_ns=placement.load_time.ns,
        )
        worker.pages.take(model.name, plan.pages)
        placement.pages = plan.pages
        placement.last_used_ns = now_ns
        slot = worker.load.add(action)
        placement.enter(State.LOADING, slot)
        if plan.idle:
            books.idle_loads[action.action_id] = worker
        books.emit(action)
        self._use_early(slot)
        books.watch_for_stall(stalled_at_ns(slot), worker)
        books.consider_load_room(now_ns, worker)
        books.watch(action.latest_ns + books.ns.action_timeout, worker)
        self._policy.residency_changed(now_ns, placement)

    def _use_early(self, slot: Slot[Load]) -> None:
        """Have EXEC looked at when an INFER may be sent that begins as a LOAD ends."""
        worker = self._books.cluster.workers[slot.action.worker]
        times = worker.placements[slot.action.model].times
        early_ns = self._books.ns.dispatch_delay + READY_SLACK_NS + times.transfer_ns[0]
        self._books.arm_exec(slot.end_ns - early_ns, worker)

    def unload(self, now_ns: int, placement: Placement) -> None:
        """Give a resident model's pages up; they are free for the very next LOAD."""
        worker = placement.worker
        self._vacate(now_ns, placement, State.PREPARED)
        action = Unload(self._books.next_action_id(), worker.name, placement.model.name)
        self._send_other(now_ns, worker, action)

    def leave(self, now_ns: int, placement: Placement) -> None:
        """Take a model off a worker, as far as it can be done now; results call this again."""
        placement.leave()
        self._policy.residency_changed(now_ns, placement)
        worker, name = placement.worker, placement.model.name
        if worker.stopping:
            return
        if placement.state is State.RESIDENT and placement.infers == 0:
            self.unload(now_ns, placement)
        if placement.state in (State.PREPARED, State.BROKEN) and placement.infers == 0:
            placement.enter(State.RELEASING)
            self._send_other(now_ns, worker, Release(self._books.next_action_id(), worker.name, name))
        elif placement.state in (State.KNOWN, State.FAILED):
            self.forget(now_ns, placement)

    def retire(self, now_ns: int, worker: Worker) -> None:
        """Give nothing more to a worker that begins nothing more, so that others load what it holds."""
        worker.stopping = True
        self._books.cluster.recount()
        worker.prepare_queue.clear()
        for placement in list(worker.placements.values()):
            self.leave(now_ns, placement)
            if placement.model.backlog:
                self._missed.want(placement.model)
        self._pins.enforce()
        self._books.loads_dirty = True

    def give_up(self, now_ns: int, placement: Placement, detail: str) -> None:
        """Try a model no more on a worker that has just joined, and may hold it."""
        if placement.state is State.RESIDENT:
            self.unload(now_ns, placement)
        placement.enter(State.BROKEN if placement.state is State.PREPARED else State.FAILED)
        placement.detail = detail

    def forget(self, now_ns: int, placement: Placement) -> None:
        """Strike a placement from the mirror, and prepare the model anew if it was added again."""
        worker, name = placement.worker, placement.model.name
        del worker.placements[name]
        worker.prepare_queue.pop(name, None)
        placement.model.placements.pop(worker.name, None)
        placement.model.where = None
        successor = self._books.cluster.models.get(name)
        if successor is not None and worker.name in self._books.cluster.workers:
            self.want_prepared(self._books.cluster.place(successor, worker))
            self.prepare_next(now_ns, worker)

    def load_ended(self, now_ns: int, worker: Worker, action: Load, result: Result) -> bool:
        """Enter a LOAD's result; return whether the worker still agrees with the mirror."""
        placement = worker.placements[action.model]
        self._books.consider_load_room(now_ns, worker)
        self._books.loads_dirty = True
        self._books.wake(worker)
        self._books.idle_loads.pop(action.action_id, None)
        following = worker.load.first()
        if following is not None:
            self._use_early(following)
        if result.status is Status.OK:
            placement.enter(State.RESIDENT)
            placement.failures = 0
            worker.lru[action.model] = placement
            duration_ns = result.end_ns - result.begin_ns
            placement.load_time.add(now_ns, duration_ns)
            self._books.cluster.estimates.loaded(worker.device_kind, placement.model.spec, duration_ns)
        else:
            placement.failures += result.status is Status.ENGINE_ERROR
            placement.detail = result.detail
            failed = placement.failures >= LOAD_ATTEMPTS
            self._vacate(now_ns, placement, State.BROKEN if failed else State.PREPARED)
        if placement.leaving:
            self.leave(now_ns, placement)
        else:
            self._policy.residency_changed(now_ns, placement)
        return result.status in (Status.OK, Status.TOO_LATE, Status.STOPPING, Status.ENGINE_ERROR)

    def other_ended(
        self, now_ns: int, worker: Worker, action: Unload | Prepare | Release, result: Result
    ) -> bool:
        """Enter any other action's result; return whether the worker still agrees with the mirror."""
        ok = result.status is Status.OK
        if worker.stopping and not ok:
            return True
        match action:
            case Unload():
                return ok
            case Prepare(model=spec):
                worker.prepares -= 1
                placement = worker.placements[spec.name]
                placement.enter(State.PREPARED if ok else State.FAILED)
                placement.detail = result.detail
                self._books.loads_dirty = True
                if placement.leaving:
                    self.leave(now_ns, placement)
                self.prepare_next(now_ns, worker)
                return True
            case Release(model=name):
                # A worker that could not do it is about to be dropped, with the placement.
                if ok:
                    self.forget(now_ns, worker.placements[name])
                return ok

    def _vacate(self, now_ns: int, placement: Placement, state: State) -> None:
        """Enter that a model is in no pages any more."""
        worker, name = placement.worker, placement.model.name
        worker.pages.give_back(name, placement.pages)
        worker.lru.pop(name, None)
        placement.pages = ()
        placement.enter(state)
        self._policy.residency_changed(now_ns, placement)
        self._pins.keep(placement.model)
        if placement.model.backlog:
            self._missed.want(placement.model)

    def _send_other(self, now_ns: int, worker: Worker, action: Unload | Prepare | Release) -> None:
        """Send an action that has no window."""
        worker.others[action.action_id] = (action, now_ns)
        self._books.emit(action)
        self._books.watch(now_ns + self._books.ns.action_timeout, worker)
