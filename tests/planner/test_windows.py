"""A window of a cluster's own requests, on a cluster that a test plays."""

from __future__ import annotations

import pytest

from mainspring.messages.status import ClusterStatus, ModelStatus
from mainspring.planner import windows
from mainspring.planner.estimate import Estimate
from mainspring.planner.problem import PlanError, Problem, read_problem
from mainspring.planner.windows import Served
from tests.planner.specs import spec, workload

SECONDS = 0.2
RATE = 200


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "LOOK_S", 0.01)
    monkeypatch.setattr(windows, "SETTLE_S", 0.0)
    monkeypatch.setattr(windows, "STUCK_S", 0.2)
    monkeypatch.setattr(windows, "BACKLOG_S", 0.3)


class Cluster:
    """Answers some requests between two looks: late while a former pool's wait, in time from then on."""

    def __init__(self, waiting: int, served: int, arriving: int = 100) -> None:
        self.waiting = waiting
        self.served = served
        self.arriving = arriving
        self.arrived, self.in_time, self.late = waiting, 0, 0

    def status(self) -> ClusterStatus:
        answered = min(self.served, self.waiting + self.arriving)
        late = min(answered, self.waiting)
        self.late += late
        self.in_time += answered - late
        self.arrived += self.arriving
        self.waiting += self.arriving - answered
        models = (
            ModelStatus("ranker", 1, (), (), 0, arrived=self.arrived, finished=self.in_time, late=self.late),
        )
        return ClusterStatus("first-free", (), models, self.waiting, {})


def problem() -> Problem:
    return read_problem(spec(workload=workload(rate=RATE), duration_s=20))


def watched(cluster: Cluster, limit: int = 50) -> Estimate:
    served = Served(problem(), cluster, SECONDS)  # type: ignore[arg-type]
    return served.run((1, 1), 0.0, limit, lambda: None)


def test_what_waited_before_is_not_the_new_pools() -> None:
    found = watched(Cluster(waiting=2_000, served=300))
    assert found.complete
    assert found.attainment == 1.0, "the 2,000 were late, and are not counted"


def test_a_pool_that_does_not_get_through_it_violates() -> None:
    found = watched(Cluster(waiting=2_000, served=100))
    assert not found.complete
    assert not found.holds(0.0)
    assert found.queries == 0, "its share in time is not known"


def test_too_few_requests_are_said_with_what_would_do() -> None:
    with pytest.raises(PlanError, match=r"too few to tell .* so give a longer --window"):
        watched(Cluster(waiting=0, served=1, arriving=1))
