"""Workers and models come and go while requests are served."""

from __future__ import annotations

from collections import deque
from typing import Final

from mainspring.cluster.apply import left
from mainspring.cluster.execution import running
from mainspring.cluster.membership import (
    add_model,
    adopt,
    cease_to_serve,
    join,
    left_behind,
    misplaced,
    restorable,
    unset,
    unwelcome,
    why_given_up,
)
from mainspring.cluster.models import Model
from mainspring.cluster.requests import Place, Request
from mainspring.cluster.state import Change
from mainspring.messages.actions import DropWorker, Unanswered
from mainspring.messages.codes import Reason
from mainspring.messages.events import WorkerJoined
from mainspring.messages.model import ModelSpec
from mainspring.scheduler.best_effort import BestEffort
from mainspring.scheduler.load_queue import Pins
from mainspring.scheduler.policies.base import Policy
from mainspring.scheduler.preparing import Preparing
from mainspring.scheduler.request_lifecycle import RequestLifecycle
from mainspring.scheduler.residency import Residency
from mainspring.scheduler.state import SchedulerState

RECONSIDERED_AT_ONCE: Final = 512
"""Requests that a call looks at after a worker has left."""
MOST_FATAL: Final = 2
"""Workers that may be lost while they run one request; then it is given up, lest it end them all."""


class Membership:
    """Adds and removes models and workers."""

    def __init__(
        self,
        state: SchedulerState,
        policy: Policy,
        residency: Residency,
        backlog: BestEffort,
        lifecycle: RequestLifecycle,
        pins: Pins,
        preparing: Preparing,
    ) -> None:
        self._state = state
        self._policy = policy
        self._residency = residency
        self._backlog = backlog
        self._lifecycle = lifecycle
        self._pins = pins
        self._preparing = preparing
        self._unsure: deque[Request] = deque()
        """Requests whose models may be run by nobody, since a worker has left."""

    def add_model(self, now_ns: int, spec: ModelSpec) -> None:
        """Serve a model; it replaces a model of its name with other weights, and keeps that model's pin."""
        cluster = self._state.cluster
        known = cluster.models.get(spec.name)
        if known is not None and known.spec == spec:
            return
        model = cluster.new_model(spec)
        # Before the old model goes, so that what both have in common stays.
        cluster.estimates.hold(model)
        if known is not None:
            self._take_off(now_ns, known)
        add_model(cluster, model, known)
        self._preparing.come(now_ns, model)
        self._pins.enforce()

    def remove_model(self, now_ns: int, name: str) -> None:
        """Stop serving a model: reject what waits for it, and take it off workers as they become free."""
        model = self._state.cluster.models.get(name)
        if model is None:
            return
        unset(self._state.cluster, name)
        self._take_off(now_ns, model)
        self._pins.enforce()

    def restored(self, now_ns: int, name: str, model: str) -> None:
        """Try a model again on a worker that failed on it: its files have changed.

        What the worker had prepared of it is released first, because it comes from the old files.
        """
        placement = restorable(self._state.cluster, name, model)
        if placement is not None:
            self._residency.leave(now_ns, placement)

    def _take_off(self, now_ns: int, model: Model) -> None:
        """Reject what waits for a model, and have workers give it up."""
        cease_to_serve(self._state.cluster, model)
        self._preparing.go(model)
        detail = f"model {model.name!r} was removed"
        self._lifecycle.reject_queued(now_ns, model, Reason.MODEL_REMOVED, detail)
        self._residency.take_off(now_ns, left_behind(self._state.cluster, model))
        self._state.cluster.estimates.release(model)

    def join(self, now_ns: int, event: WorkerJoined) -> None:
        """Take a worker in, with what it says its memory holds."""
        cluster = self._state.cluster
        if event.worker in cluster.workers:
            self.left(now_ns, left(cluster, event.worker), "joined again")
        wrong = misplaced(event)
        if wrong is not None:
            self._state.emit(now_ns, DropWorker(event.worker, wrong))
            return
        worker = join(cluster, event)
        self._state.consider_load_room(now_ns, worker)
        for resident in event.resident:
            placement = adopt(cluster, now_ns, worker, resident)
            if placement.usable:
                self._policy.weights_changed(now_ns, placement)
                self._backlog.offer_all(placement)
        for placement in unwelcome(cluster, worker):
            if placement.leaving:
                self._residency.leave(now_ns, placement)
            else:
                self._residency.give_up(now_ns, placement, why_given_up(placement))
        self._preparing.join(now_ns, worker)
        self._policy.worker_joined(now_ns, worker)
        self._pins.enforce()
        self._state.wants_loads()
        self._state.wants(worker)

    def left(self, now_ns: int, change: Change, reason: str) -> None:
        """Forget a worker that is gone; its requests go elsewhere if deadlines allow, or are rejected."""
        state, worker = self._state, change.worker
        if worker is None:
            return
        self._residency.given_up(now_ns, change)
        self._policy.worker_left(now_ns, worker)
        self._backlog.worker_left(worker)
        self._residency.left(worker)
        state.forget(worker)
        detail = f"{worker.name} was lost ({reason})"
        infer = running(now_ns, worker)
        ran = () if infer is None else infer.request_ids
        for request in change.requests:
            request.failures += 1
            if request.id in ran:
                # Its values may be what the worker died of; those beside it are not to go with the next one.
                state.suspect(request)
                request.fatal += 1
                if request.fatal == MOST_FATAL:
                    request.failures = state.config.max_attempts
            self._lifecycle.retry(now_ns, request, Reason.WORKER_FAILED, detail)
        state.cluster.undecided.clear()
        self._preparing.leave(worker)
        self._reconsider(now_ns)
        self._pins.enforce()
        worker.forget()

    def _reconsider(self, now_ns: int) -> None:
        """Reject what waits for models that nobody will run any more, now or, if much waits, later."""
        cluster = self._state.cluster
        if len(cluster.requests) <= RECONSIDERED_AT_ONCE:
            for model in cluster.waiting_models():
                self._lifecycle.reconsider(now_ns, model)
        else:
            self._unsure.extend(cluster.requests.values())

    @property
    def unfinished(self) -> bool:
        """Whether there is more to be done by `go_on`."""
        cluster = self._state.cluster
        more = bool(cluster.joining) or cluster.worker_bits.has_stale or bool(self._unsure)
        return more or self._residency.takes_off or bool(self._preparing)

    def go_on(self, now_ns: int) -> None:
        """Do a part of what joins, leaves and changes of models have left to be done."""
        cluster = self._state.cluster
        if cluster.joining:
            joining = cluster.joining[0]
            joining.some()
            self._residency.take_off(now_ns, joining.unwelcome())
        self._preparing.go_on(now_ns)
        if cluster.worker_bits.has_stale:
            cluster.worker_bits.sweep()
        if self._residency.takes_off:
            self._residency.take_more_off(now_ns)
        for _ in range(min(RECONSIDERED_AT_ONCE, len(self._unsure))):
            request = self._unsure.popleft()
            if request.place is Place.QUEUED and cluster.serves(request.model):
                self._lifecycle.reconsider(now_ns, request.model.base)

    def drop(
        self, now_ns: int, name: str, reason: str, unanswered: Unanswered | None = None, to: str = ""
    ) -> None:
        """Drop a worker whose state can't be trusted any more, or that goes ``to`` another controller."""
        self.left(now_ns, self._state.emit(now_ns, DropWorker(name, reason, unanswered, to)), reason)
