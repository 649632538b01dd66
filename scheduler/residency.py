"""Preparation and residency of models on workers: PREPARE, OPEN, RELEASE, LOAD, UNLOAD, and their results."""

from __future__ import annotations

from collections import deque
from typing import Final

from mainspring.cluster.models import Model
from mainspring.cluster.placements import Placement, Slot, State
from mainspring.cluster.residency import forget, of_worker
from mainspring.cluster.state import Change
from mainspring.cluster.workers import Worker
from mainspring.messages.actions import Load, LoadEvidence, Open, Prepare, Release, Result, Unload
from mainspring.messages.codes import Status
from mainspring.scheduler.load_queue import MissedModels, Pins
from mainspring.scheduler.opening.scheduling import Openings
from mainspring.scheduler.overdue_actions import stalled_at_ns
from mainspring.scheduler.placing import LoadPlan, wrong_with
from mainspring.scheduler.policies.base import Policy
from mainspring.scheduler.preparing import Preparing
from mainspring.scheduler.state import READY_SLACK_NS, SchedulerState

TAKEN_OFF_AT_ONCE: Final = 32
"""Workers from which a call takes a model."""


class Residency:
    """Sends the actions that move models, and tells the scheduler's other parts of their results."""

    def __init__(
        self,
        state: SchedulerState,
        policy: Policy,
        missed: MissedModels,
        pins: Pins,
        openings: Openings,
        preparing: Preparing,
    ) -> None:
        self._state = state
        self._openings = openings
        self._preparing = preparing
        self._policy = policy
        self._missed = missed
        self._pins = pins
        self._leaving: deque[Placement] = deque()
        """Placements that are to leave and for which nothing has been sent yet."""

    def load(self, now_ns: int, plan: LoadPlan) -> None:
        """Evict the plan's victims and load its model.

        Raises ValueError, before anything is changed, for a plan that can't be carried out.
        """
        wrong = wrong_with(plan, self._state.load_room)
        if wrong is not None:
            what = f"a LOAD of {plan.placement.model.name!r} on {plan.placement.worker.name}"
            raise ValueError(f"policy {self._policy.name!r} planned {what}, but {wrong}")
        for victim in plan.victims:
            self.unload(now_ns, victim)
        state, placement = self._state, plan.placement
        worker, model = placement.worker, placement.model
        begin_ns = worker.load.available_ns(now_ns, state.soonest_ns(now_ns))
        action = Load(
            action_id=state.next_action_id(),
            worker=worker.name,
            model=model.name,
            pages=plan.pages,
            earliest_ns=now_ns,
            latest_ns=begin_ns + state.ns.load_window,
            predicted_begin_ns=begin_ns,
            predicted_duration_ns=placement.load_time.ns,
            evidence=LoadEvidence(
                plan.reason,
                worker.load.last_id,
                len(worker.load),
                tuple([victim.model.name for victim in plan.victims]),
            ),
        )
        state.emit(now_ns, action)
        if plan.idle:
            state.idle_loads[action.action_id] = worker
        slot = placement.load_slot
        assert slot is not None, f"{placement} is loading"
        self._use_early(slot)
        state.watch_for_stall(stalled_at_ns(slot), worker)
        state.consider_load_room(now_ns, worker)
        state.watch(action.latest_ns + state.ns.action_timeout, worker)
        self._policy.weights_changed(now_ns, placement)

    def _use_early(self, slot: Slot[Load]) -> None:
        """Have EXEC looked at when an INFER may be sent that begins when a LOAD ends."""
        worker = self._state.cluster.workers[slot.action.worker]
        times = worker.placements[slot.action.model].times
        early_ns = self._state.ns.dispatch_delay + READY_SLACK_NS + times.transfer_ns[0]
        self._state.arm_exec(slot.end_ns - early_ns, worker)

    def unload(self, now_ns: int, placement: Placement) -> None:
        """Give up a resident model's pages; they are free for the very next LOAD."""
        worker = placement.worker
        action = Unload(self._state.next_action_id(), worker.name, placement.model.name)
        self._state.emit(now_ns, action)
        self._vacated(now_ns, placement)
        self._state.watch(now_ns + self._state.ns.action_timeout, worker)

    def leave(self, now_ns: int, placement: Placement, successor: Model | None = None) -> None:
        """Take a model off a worker, as far as that can be done now; each result continues it.

        ``successor`` replaces one that is off already.
        """
        placement.leave()
        self._policy.weights_changed(now_ns, placement)
        worker, name = placement.worker, placement.model.name
        if worker.stopping:
            return
        if placement.state is State.RESIDENT and placement.infers == 0:
            self.unload(now_ns, placement)
        if placement.state is State.CLOSED:
            self._openings.remove(placement)
        if placement.state in (State.PREPARED, State.BROKEN, State.CLOSED) and placement.infers == 0:
            self._send_other(now_ns, worker, Release(self._state.next_action_id(), worker.name, name))
        elif placement.state in (State.KNOWN, State.FAILED):
            if worker.has(placement):
                successor = forget(self._state.cluster, placement)
            self._succeed(now_ns, successor, worker)

    def take_off(self, now_ns: int, placements: list[Placement]) -> None:
        """Take models off workers; where these are many, `take_more_off` sends some of the actions."""
        for placement in placements[:TAKEN_OFF_AT_ONCE]:
            self.leave(now_ns, placement)
        for placement in placements[TAKEN_OFF_AT_ONCE:]:
            placement.leave()
            if placement.state in (State.RESIDENT, State.LOADING):
                self._policy.weights_changed(now_ns, placement)
            self._leaving.append(placement)

    @property
    def takes_off(self) -> bool:
        """Return whether there is more to be done by `take_more_off`."""
        return bool(self._leaving)

    def take_more_off(self, now_ns: int) -> None:
        """Go on with what `take_off` has left."""
        for _ in range(min(TAKEN_OFF_AT_ONCE, len(self._leaving))):
            placement = self._leaving.popleft()
            worker = placement.worker
            if self._state.cluster.workers.get(worker.name) is worker and worker.has(placement):
                self.leave(now_ns, placement)

    def load_when_idle(self, model: Model) -> None:
        """Have an idle LOAD executor load a model that an operator asks for."""
        self._missed.operator_wants(model)

    def retire(self, now_ns: int, worker: Worker) -> None:
        """Send nothing more to a worker that has said that it stops, so that others load what it holds."""
        self._openings.forget(worker)
        for placement in of_worker(worker):
            self.leave(now_ns, placement)
        for model in self._state.cluster.waiting_models():
            if model.waiting_idly:
                self._missed.want(model)
        self._pins.enforce()
        self._state.wants_loads()

    def unwanted(self, now_ns: int, change: Change) -> None:
        """Have workers give up what a change has shown to be leaving, or tried no more."""
        for placement in change.unwanted:
            if placement.leaving:
                self.leave(now_ns, placement)
            elif placement.state is State.RESIDENT:
                self.unload(now_ns, placement)

    def _succeed(self, now_ns: int, model: Model | None, worker: Worker) -> None:
        """Prepare the replacement of a model that is off a worker, if there is one."""
        if model is not None:
            self._preparing.again(now_ns, model, worker)

    def load_ended(self, now_ns: int, placement: Placement, action: Load, result: Result) -> bool:
        """React to a LOAD's result; return whether the worker still agrees with the state."""
        worker = placement.worker
        self._state.consider_load_room(now_ns, worker)
        self._state.wants_loads()
        self._state.wants(worker)
        self._state.idle_loads.pop(action.action_id, None)
        following = worker.load.first()
        if following is not None:
            self._use_early(following)
        if result.status is not Status.OK:
            self._vacated(now_ns, placement)
        if placement.leaving:
            self.leave(now_ns, placement)
        else:
            self._policy.weights_changed(now_ns, placement)
        return result.status in (Status.OK, Status.TOO_LATE, Status.STOPPING, Status.ENGINE_ERROR)

    def open_next(self, now_ns: int, worker: Worker, available_ns: int, *, idle: bool) -> Open | None:
        """Send and return an OPEN that EXEC begins at ``available_ns`` if it is time for one.

        ``idle``: EXEC has nothing else to begin now.
        """
        action = self._openings.next(now_ns, worker, available_ns, idle)
        if action is not None:
            self._state.emit(now_ns, action)
            self._openings.sent(now_ns, worker, action)
        return action

    def open_ended(
        self, now_ns: int, placement: Placement, action: Open, result: Result, change: Change
    ) -> None:
        """React to an OPEN's result; models that waited for the same executable are prepared."""
        worker = placement.worker
        self._state.wants_loads()
        self._state.consider_load_room(now_ns, worker)
        for other in self._openings.ended(now_ns, placement, action, result):
            worker.prepare_queue[other.model.name] = None
        if placement.leaving:
            self.leave(now_ns, placement, change.successor)
        self._preparing.next(now_ns, worker)

    def left(self, worker: Worker) -> None:
        """Forget a worker that is gone."""
        self._openings.forget(worker)

    def other_ended(
        self,
        now_ns: int,
        worker: Worker,
        action: Unload | Prepare | Release,
        result: Result,
        change: Change,
    ) -> bool:
        """React to any other action's result; return whether the worker still agrees with the state."""
        ok = result.status is Status.OK
        if worker.stopping and not ok:
            return True
        if isinstance(action, Prepare):
            placement = change.placement
            assert placement is not None, f"{worker.name} has prepared what nobody knows"
            self._state.wants_loads()
            if placement.leaving:
                self.leave(now_ns, placement, change.successor)
            elif placement.state is State.CLOSED:
                self._openings.add(now_ns, placement)
            self._preparing.next(now_ns, worker)
            return True
        if isinstance(action, Release):
            # A worker that could not do it is about to be dropped, with the placement.
            self._succeed(now_ns, change.successor, worker)
        return ok

    def _vacated(self, now_ns: int, placement: Placement) -> None:
        """Tell the scheduler's other parts that a model has given up its pages."""
        self._policy.weights_changed(now_ns, placement)
        self._pins.keep(placement.model)
        if placement.model.waiting_idly:
            self._missed.want(placement.model)

    def _send_other(self, now_ns: int, worker: Worker, action: Unload | Prepare | Release) -> None:
        """Send an action that has no window."""
        self._state.emit(now_ns, action)
        self._state.watch(now_ns + self._state.ns.action_timeout, worker)
