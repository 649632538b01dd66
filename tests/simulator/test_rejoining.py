"""Workers that lose their session again and again, and come back with what they hold, under load.

The scheduler and the workers' cores are the real ones; a failing seed is a complete report.
"""

from __future__ import annotations

import numpy as np

from mainspring.messages.actions import DropWorker
from mainspring.messages.events import WorkerJoined
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.scenario import MILLISECOND, SECOND, random_model
from mainspring.simulator.simulation import Simulation
from mainspring.simulator.spec import Faults
from tests.fuzz import seeded

LENGTH_NS = 2 * SECOND
LOSSES = 60


@seeded(6)
def test_no_request_is_lost_however_often_workers_leave_and_come_back(seed: int) -> None:
    rng = np.random.default_rng(seed)
    models = [random_model(rng, f"m{number}", f"graph {number % 3}") for number in range(8)]
    pages = 2 * max(model.pages for model in models)
    losses = tuple(
        (int(rng.integers(LENGTH_NS)), f"w{int(rng.integers(3))}", int(rng.integers(30 * MILLISECOND)))
        for _ in range(LOSSES)
    )
    joined: list[WorkerJoined] = []
    simulation = Simulation(
        SchedulerConfig(),
        models,
        [(f"w{number}", "fast", pages) for number in range(3)],
        seed=seed,
        faults=Faults(delay_jitter_ns=MILLISECOND, duration_jitter=0.1, session_losses=losses),
        record=lambda _, message: joined.append(message) if isinstance(message, WorkerJoined) else None,
        validate_every=5,
    )
    for request_id in range(600):
        when_ns = int(rng.integers(LENGTH_NS))
        slo_ns = None if rng.random() < 0.1 else int(rng.uniform(20, 400) * MILLISECOND)
        model = models[int(rng.integers(len(models)))]
        simulation.request(when_ns, request_id, model.name, 1, slo_ns)
        if rng.random() < 0.05:
            simulation.cancel(when_ns + int(rng.integers(50 * MILLISECOND)), request_id)
    simulation.run(LENGTH_NS + 70 * SECOND)
    simulation.validate()
    assert len(joined) - 3 > LOSSES // 3
    assert any(event.resident for event in joined), "they should come back with weights in their pages"
    dropped = [command for _, command in simulation.commands if isinstance(command, DropWorker)]
    assert not dropped, f"seed {seed}: the scheduler and a worker disagreed: {dropped[:3]}"
    wrong = [outcome for outcome in simulation.outcomes.values() if outcome.answers != 1]
    assert not wrong, f"seed {seed}: {wrong[:3]}"
    status = simulation.scheduler.status()
    assert status.requests_queued == 0
    assert len(status.workers) == 3
    assert not any(worker.outstanding for worker in status.workers)
    assert sum(outcome.in_time for outcome in simulation.outcomes.values()) > 100, "it should serve meanwhile"
