"""What the scheduler keeps under a lasting overload does not grow."""

import numpy as np
import pytest

from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.policies.clockwork import Clockwork
from mainspring.scheduler.policies.demand import SWEPT_FROM
from mainspring.scheduler.policies.mainspring.policy import Mainspring
from mainspring.scheduler.policies.notes import worker_note
from mainspring.scheduler.policies.ready_queue import SWEPT_FROM as READY_SWEPT_FROM
from mainspring.simulator.simulation import Simulation
from tests.scheduler.hand import MS, spec

MODELS = 40
SECOND = 1000 * MS


@pytest.mark.parametrize("name", ["clockwork", "mainspring"])
def test_heaps_are_bounded_by_what_is_alive(name: str) -> None:
    rng = np.random.default_rng(1)
    models = [spec(f"m{index}") for index in range(MODELS)]
    simulation = Simulation(SchedulerConfig(policy=name), models, [("w0", "gpu", 4), ("w1", "gpu", 4)])
    now_ns, id_ = 100 * MS, 0
    while now_ns < 4 * SECOND:
        now_ns += int(rng.exponential(SECOND / 1500))
        id_ += 1
        simulation.request(now_ns, id_, f"m{rng.integers(MODELS)}", 1, 200 * MS)
    state, policy = simulation.scheduler._state, simulation.scheduler._policy
    assert isinstance(policy, Clockwork | Mainspring)
    for second in range(1, 4):
        simulation.run(second * SECOND)
        assert state.cluster.queued > 100, "it is overloaded"
        assert len(policy._loads._heap) <= 2 * MODELS + SWEPT_FROM
        assert len(state.alarms) <= 3 * state.cluster.queued + 200
        assert all(
            len(worker_note(worker).ready.entries) <= 2 * MODELS + READY_SWEPT_FROM
            for worker in state.cluster.workers.values()
        )
