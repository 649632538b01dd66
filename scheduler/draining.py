"""A worker gets no more work, or gets work again: what the scheduler's parts have to be told."""

from __future__ import annotations

from mainspring.cluster.placements import State
from mainspring.cluster.residency import of_worker
from mainspring.cluster.workers import Worker
from mainspring.scheduler.best_effort import BestEffort
from mainspring.scheduler.load_queue import OwnWorkers, Pins
from mainspring.scheduler.policies.base import Policy
from mainspring.scheduler.preparing import Preparing
from mainspring.scheduler.request_lifecycle import RequestLifecycle
from mainspring.scheduler.state import SchedulerState


class Draining:
    """Tells them; that a worker is drained, or is no longer, has been noted before."""

    def __init__(
        self,
        state: SchedulerState,
        policy: Policy,
        backlog: BestEffort,
        lifecycle: RequestLifecycle,
        pins: Pins,
        preparing: Preparing,
        own: OwnWorkers,
    ) -> None:
        self._state = state
        self._policy = policy
        self._backlog = backlog
        self._lifecycle = lifecycle
        self._pins = pins
        self._preparing = preparing
        self._own = own

    def drained(self, now_ns: int, worker: Worker) -> None:
        """Have what waits for a worker go elsewhere."""
        self._reconsidered(now_ns, worker)
        for model in self._state.cluster.waiting_models():
            self._lifecycle.reconsider(now_ns, model)
        self._pins.enforce()

    def resumed(self, now_ns: int, worker: Worker) -> None:
        """Give a worker work."""
        self._reconsidered(now_ns, worker)
        for placement in of_worker(worker):
            self._backlog.offer_all(placement)
        self._preparing.next(now_ns, worker)
        self._pins.enforce()

    def regrouped(self, now_ns: int, workers: list[Worker]) -> None:
        """Note that workers are other models' own than before, or no longer any's."""
        for worker in workers:
            self._reconsidered(now_ns, worker)
            for placement in of_worker(worker):
                self._backlog.offer_all(placement)
        for model in self._state.cluster.waiting_models():
            self._lifecycle.reconsider(now_ns, model)
        self._own.enforce()

    def _reconsidered(self, now_ns: int, worker: Worker) -> None:
        """Tell the policy what may run on a worker from now on."""
        for placement in of_worker(worker):
            if placement.state in (State.RESIDENT, State.LOADING):
                self._policy.weights_changed(now_ns, placement)
        self._state.wants_loads()
        self._state.wants(worker)
