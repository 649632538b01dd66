"""Workers that lose their session again and again, and come back with what they hold, under load.

The scheduler and the workers' cores are the real ones; a failing seed is a complete report.
"""

from __future__ import annotations

import numpy as np
import pytest

from mainspring.messages.actions import Action, Result
from mainspring.messages.commands import DropWorker
from mainspring.messages.events import RequestCancelled, WorkerJoined, WorkerLeft
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.device import SimulatedWorker
from mainspring.simulator.faults import Faults
from mainspring.simulator.scenario import MILLISECOND, SECOND, random_model
from mainspring.simulator.simulation import Simulation

LENGTH_NS = 2 * SECOND
LOSSES = 60


class RejoiningSimulation(Simulation):
    """Sessions as controller and worker keep them: what belongs to one that is over is dropped."""

    def __init__(self, rng: np.random.Generator, seed: int) -> None:
        self.rng = rng
        self.away: set[str] = set()
        self.first_action: dict[str, int] = {}
        self.rejoined = 0
        self.kept_models = 0
        models = [random_model(rng, f"m{number}", f"graph {number % 3}") for number in range(8)]
        pages = 2 * max(model.pages for model in models)
        workers = [(f"w{number}", "fast", pages) for number in range(3)]
        faults = Faults(delay_jitter_ns=MILLISECOND, duration_jitter=0.1)
        super().__init__(SchedulerConfig(), models, workers, seed=seed, faults=faults, validate_every=5)
        self.models = models

    def lose_session(self, name: str) -> None:
        """The controller drops a worker, which notices it up to 30 ms later."""
        if name in self.away:
            return
        self.away.add(name)
        self._feed(WorkerLeft(name, "silent"))
        self._at(self.now_ns + int(self.rng.integers(30 * MILLISECOND)), self._abandon, name)

    def _abandon(self, name: str) -> None:
        self.workers[name].core.abandon()
        self.workers[name].core.validate()
        self._greet(name)

    def _greet(self, name: str) -> None:
        worker = self.workers[name]
        if not worker.core.quiet:
            self._at(self.now_ns + MILLISECOND, self._greet, name)
            return
        holdings = worker.core.holdings
        self.away.discard(name)
        self.first_action[name] = 1 + max(
            (command.action_id for _, command in self.commands if isinstance(command, Action)), default=0
        )
        self.rejoined += 1
        self.kept_models += len(holdings.resident())
        self._feed(WorkerJoined(name, worker.kind, worker.pages, holdings.prepared(), holdings.resident()))

    def _join(self, name: str, kind: str, pages: int) -> None:
        super()._join(name, kind, pages)
        worker = self.workers[name]
        take = worker.receive

        def receive(now_ns: int, action: Action) -> None:
            if name not in self.away and action.action_id >= self.first_action.get(name, 0):
                take(now_ns, action)

        worker.receive = receive  # type: ignore[method-assign]

    def _result(self, worker: SimulatedWorker, result: Result) -> None:
        if worker.name not in self.away and result.action_id >= self.first_action.get(worker.name, 0):
            super()._result(worker, result)


@pytest.mark.parametrize("seed", range(6))
def test_no_request_is_lost_however_often_workers_leave_and_come_back(seed: int) -> None:
    rng = np.random.default_rng(seed)
    simulation = RejoiningSimulation(rng, seed)
    cancelled = set()
    for request_id in range(600):
        when_ns = int(rng.integers(LENGTH_NS))
        slo_ns = None if rng.random() < 0.1 else int(rng.uniform(20, 400) * MILLISECOND)
        model = simulation.models[int(rng.integers(len(simulation.models)))]
        simulation.request(when_ns, request_id, model.name, 1, slo_ns)
        if rng.random() < 0.05:
            cancelled.add(request_id)
            simulation.feed(when_ns + int(rng.integers(50 * MILLISECOND)), RequestCancelled(request_id))
    for _ in range(LOSSES):
        name = f"w{int(rng.integers(3))}"
        simulation._at(int(rng.integers(LENGTH_NS)), simulation.lose_session, name)
    simulation.run(LENGTH_NS + 20 * SECOND)
    simulation.validate()
    assert simulation.rejoined > LOSSES // 3
    assert simulation.kept_models > 0, "they should come back with weights in their pages"
    dropped = [command for _, command in simulation.commands if isinstance(command, DropWorker)]
    assert not dropped, f"seed {seed}: the scheduler and a worker disagreed: {dropped[:3]}"
    lost = [
        outcome
        for request_id, outcome in simulation.outcomes.items()
        if not outcome.answers and request_id not in cancelled
    ]
    assert not lost, f"seed {seed}: {lost[:3]}"
    status = simulation.scheduler.status()
    assert status.requests_queued == 0
    assert len(status.workers) == 3
    assert not any(worker.outstanding for worker in status.workers)
    assert sum(outcome.in_time for outcome in simulation.outcomes.values()) > 100, "it should serve meanwhile"
