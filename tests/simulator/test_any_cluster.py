"""Whatever a cluster is made of and whatever happens to it: by one seed, all that every run must keep."""

from __future__ import annotations

import random
from typing import Any

from mainspring.cluster.apply import apply, settle
from mainspring.cluster.validate import validate
from mainspring.messages.actions import Infer
from mainspring.messages.events import RequestArrived
from mainspring.scheduler.policies.registry import policy_names
from mainspring.simulator.scenario import MILLISECOND, random_scenario, run_to_end
from mainspring.simulator.simulation import Simulation
from tests.cluster.described import described
from tests.cluster.test_apply import OPEN_NS, disturb, reader
from tests.cluster.test_restore import replace_models
from tests.fuzz import seeded
from tests.simulator.played import Stream, decided_again

PREDICTING = {"clockwork", "edf", "mainspring", "nexus", "symphony"}
"""Policies that dispatch nothing that they predict to be late."""


class Drawn:
    """A cluster with all that can be drawn, under a policy that is drawn too, played to its end."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.policy = rng.choice(policy_names())
        length_ns = rng.choice((300, 500, 1_000)) * MILLISECOND
        self.stream: Stream = []
        kinds: dict[str, Any] = {"shaped": rng.random() < 0.4, "unlike": rng.random() < 0.4}
        self.simulation: Simulation = random_scenario(
            *(seed, self.policy, length_ns, rng.choice((1, 7, 50))),
            record=lambda now_ns, entry: self.stream.append((now_ns, entry)),
            open_ns=rng.choice(OPEN_NS),
            refuse_wrongly=rng.choice((0.15, 0.0)),
            **kinds,
        )
        self.disturbed = rng.random() < 0.5
        if self.disturbed:
            disturb(self.simulation, seed)
        if rng.random() < 0.3:
            replace_models(self.simulation, seed)
        run_to_end(self.simulation, length_ns)
        self.simulation.validate()


@seeded(10)
def test_it_keeps_all_that_is_promised(seed: int) -> None:
    drawn = Drawn(seed)
    check_answers(drawn)
    if drawn.policy in PREDICTING:
        check_predictions(drawn.stream)
    assert decided_again(drawn.simulation, drawn.stream) == drawn.stream
    cluster = reader(drawn.simulation.scheduler.config)
    for now_ns, entry in drawn.stream:
        apply(cluster, now_ns, entry)
    settle(cluster)
    validate(cluster)
    assert described(cluster) == described(drawn.simulation.scheduler.cluster)


def check_answers(drawn: Drawn) -> None:
    """Each request has one answer, and nothing is left over."""
    for outcome in drawn.simulation.outcomes.values():
        assert outcome.answers == 1, outcome
    status = drawn.simulation.scheduler.status()
    assert not any(worker.outstanding for worker in status.workers)
    # The requests of a disturbance have no gateway that would ever give them up.
    assert drawn.disturbed or not status.requests_queued


def check_predictions(stream: Stream) -> None:
    """No INFER is predicted to end after a request of it is due."""
    deadlines: dict[int, int | None] = {}
    for now_ns, entry in stream:
        if isinstance(entry, RequestArrived):
            deadlines[entry.request_id] = entry.deadline_ns
        elif isinstance(entry, Infer):
            assert entry.predicted_begin_ns >= now_ns
            end_ns = entry.predicted_begin_ns + entry.predicted_duration_ns
            dues = [deadlines[request_id] for request_id in entry.request_ids]
            assert all(due_ns is None or end_ns <= due_ns for due_ns in dues), f"{entry} ends too late"
