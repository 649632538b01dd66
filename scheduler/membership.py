"""Workers and models come and go while requests are served."""

from __future__ import annotations

from collections import deque
from typing import Final

from mainspring.cluster.apply import left
from mainspring.cluster.execution import running
from mainspring.cluster.membership import misplaced
from mainspring.cluster.requests import Place, Request
from mainspring.cluster.state import NO_REQUESTS, Change
from mainspring.messages.actions import DropWorker, Unanswered
from mainspring.messages.codes import Reason
from mainspring.messages.events import WorkerJoined
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
    """Reacts to models and workers that come and go."""

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

    def changed(self, now_ns: int, change: Change) -> None:
        """React to a model that came, or went, or both: what waits for the former one is rejected, and it is
        taken off workers as they become free."""
        model, former = change.model, change.removed
        if former is not None:
            self._preparing.go(former)
            detail = f"model {former.name!r} was removed"
            self._lifecycle.reject_queued(now_ns, former, Reason.MODEL_REMOVED, detail)
            self._residency.take_off(now_ns, change.unwanted)
        if model is not None:
            self._preparing.come(now_ns, model)
        if model is not None or former is not None:
            self._pins.enforce()

    def restored(self, now_ns: int, change: Change) -> None:
        """Try a model again on a worker that failed on it: its files have changed.

        What the worker had prepared of it is released first, because it comes from the old files.
        """
        if change.placement is not None:
            self._residency.leave(now_ns, change.placement, change.successor)

    def replaced(self, now_ns: int, name: str) -> None:
        """Forget a worker, if it is there, that is about to join again: nobody has said that it left."""
        self.left(now_ns, left(self._state.cluster, name), "joined again")

    def joined(self, now_ns: int, event: WorkerJoined, change: Change) -> None:
        """React to a worker that came, with what it says its memory holds."""
        worker = change.worker
        if worker is None:
            self._state.emit(now_ns, DropWorker(event.worker, misplaced(event) or ""))
            return
        self._state.consider_load_room(now_ns, worker)
        for resident in event.resident:
            placement = worker.placements[resident.model]
            if placement.usable:
                self._policy.weights_changed(now_ns, placement)
                self._backlog.offer_all(placement)
        self._residency.unwanted(now_ns, change)
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
        self._residency.unwanted(now_ns, change)
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
        # Each was queued or rejected; the worker may have been dropped between two events.
        state.cluster.undecided = NO_REQUESTS
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
        """Return whether there is more to be done by `go_on`."""
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
