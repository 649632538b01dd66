"""A model that ends each worker that prepares, opens or runs it: given up after a few, and others go on.

The scheduler and the workers' cores are the real ones; a failing seed is a complete report.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from mainspring.cluster.membership import FATAL, FATAL_APART_NS, FATAL_ATTEMPTS
from mainspring.cluster.readiness import takers, why_not
from mainspring.messages.actions import Command, Infer, Open, Prepare, Result
from mainspring.messages.events import Event, ModelAdded, WorkerLeft
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.scenario import MILLISECOND, SECOND, random_model
from mainspring.simulator.simulation import Simulation
from mainspring.simulator.spec import Faults
from tests.fuzz import seeded

LENGTH_NS = 40 * SECOND
DOWN_NS = FATAL_APART_NS + 500 * MILLISECOND
"""A worker is back so late that its next loss counts."""
SLO_NS = 500 * MILLISECOND
BAD = "bad"


class Run:
    """A cluster in which each worker dies of one kind of action of one model."""

    def __init__(self, seed: int, kind: type[Prepare | Open | Infer]) -> None:
        rng = np.random.default_rng(seed)
        models = [random_model(rng, f"m{number}", f"graph {number % 3}") for number in range(4)]
        bad = random_model(rng, BAD, "graph of its own")
        self.kind, self.deaths, self.gone = kind, 0, 0
        self._prepares = defaultdict[str, list[Prepare]](list)
        pages = 2 * sum(model.pages for model in (*models, bad))
        faults = Faults(delay_jitter_ns=MILLISECOND, duration_jitter=0.05, open_ns=20 * MILLISECOND)
        workers = [(f"w{number}", "fast", pages) for number in range(1 + seed % 3)]
        self.simulation = Simulation(
            SchedulerConfig(), models, workers, seed=seed, faults=faults, record=self._see, validate_every=50
        )
        self.simulation.feed(SECOND, ModelAdded(bad))
        for id_ in range(800):
            when_ns = 2 * SECOND + int(rng.integers(LENGTH_NS - 4 * SECOND))
            name = BAD if id_ % 4 == 0 else models[int(rng.integers(len(models)))].name
            self.simulation.request(when_ns, id_, name, 1, SLO_NS)
        self.simulation.run(LENGTH_NS + 70 * SECOND)
        self.simulation.validate()

    def _see(self, now_ns: int, entry: Event | Command) -> None:
        """Have a worker end when it begins what is fatal."""
        match entry:
            case WorkerLeft(name):
                self.gone += 1
                self._prepares.pop(name, None)
            case Prepare(worker=name):
                self._prepares[name].append(entry)
            case Result(action_id=id_, worker=name):
                self._prepares[name] = [each for each in self._prepares[name] if each.action_id != id_]
            case Open(model=model) | Infer(model=model) if model == BAD and isinstance(entry, self.kind):
                self._die(entry.predicted_begin_ns + 1 if isinstance(entry, Infer) else now_ns, entry.worker)
        if self.kind is Prepare and isinstance(entry, Prepare | Result):
            # It makes one after the other.
            first = next(iter(self._prepares[entry.worker]), None)
            if first is not None and first.model.name == BAD:
                self._die(now_ns, entry.worker)

    def _die(self, when_ns: int, name: str) -> None:
        def die() -> None:
            if self.simulation.workers[name].alive:
                self.deaths += 1
                self.simulation.fleet._crash(name, DOWN_NS)

        self.simulation.at(when_ns, die)


@pytest.mark.parametrize("kind", [Prepare, Open, Infer])
@seeded(3)
def test_it_is_given_up_and_the_others_are_served(seed: int, kind: type[Prepare | Open | Infer]) -> None:
    run = Run(seed, kind)
    # Workers that are lost within `FATAL_APART_NS` count once.
    assert FATAL_ATTEMPTS <= run.deaths <= (FATAL_ATTEMPTS + 1) * len(run.simulation.workers)
    cluster = run.simulation.scheduler.cluster
    assert FATAL in why_not(cluster, cluster.models[BAD], takers(cluster))
    late_ns = LENGTH_NS - 10 * SECOND
    late = [each for each in run.simulation.outcomes.values() if each.arrived_ns > late_ns]
    assert all(each.answers == 1 for each in run.simulation.outcomes.values())
    others = [each.in_time for each in late if each.request.model != BAD]
    assert len(others) > 50
    assert sum(others) >= 0.95 * len(others), "others are served as before"
    assert not any(each.in_time for each in late if each.request.model == BAD)
    for name in cluster.models:
        assert name == BAD or why_not(cluster, cluster.models[name], takers(cluster)) == ""
