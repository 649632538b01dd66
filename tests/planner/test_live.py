"""A live estimator on a cluster that a test plays: how it is scaled, watched, and evaluated again."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from mainspring.client.errors import InvalidRequest
from mainspring.messages.scaling import KindStatus
from mainspring.messages.status import ClusterStatus, ModelStatus, WorkerStatus
from mainspring.planner import live
from mainspring.planner.estimate import Estimate
from mainspring.planner.live import LOOKS, Gone, Live, LoadWatch, Watch
from mainspring.planner.plan import plan
from mainspring.planner.problem import PlanError, Pool, Problem, read_problem
from mainspring.planner.queues import Queues
from tests.planner.specs import spec, workload


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LOOK_S", 0.0)
    monkeypatch.setattr(live, "RELIEF_S", 0.1)


class Cluster:
    """Kinds with as many workers as it was told, at once, unless ``stuck``."""

    def __init__(self, **counts: int) -> None:
        self.counts = counts
        self.moves: list[dict[str, int]] = []
        self.queued = 0
        self.stuck = ""
        self.generation = 0
        self.backlog = 0
        """Requests that wait until there are more than five devices."""
        self.least = 0
        self.stopping = 0
        """Looks for which workers that were told to stop are still connected."""

    def scale_workers(self, kind: str, count: int) -> None:
        if count < self.least:
            raise InvalidRequest(f"{count} of kind {kind} are too few: 'ranker' is pinned; give at least 1")
        self.counts[kind] = count
        self.backlog *= sum(self.counts.values()) <= 5
        self.moves.append(dict(self.counts))

    def status(self) -> ClusterStatus:
        names = {
            kind: [f"{kind}-{self.generation}-{number}" for number in range(count)]
            for kind, count in self.counts.items()
            if kind != self.stuck
        }
        everyone = tuple(name for of_kind in names.values() for name in of_kind)
        running = {kind: len(of_kind) for kind, of_kind in names.items()}
        if self.stopping:
            self.stopping -= 1
            names["fast"].append("fast-on-its-way-out")
        return ClusterStatus(
            policy="first-free",
            workers=tuple(
                WorkerStatus(name, kind, 1, 1, 1, 1, 0, 0, ()) for kind in names for name in names[kind]
            ),
            models=(ModelStatus("ranker", 1, everyone, everyone, 0),),
            requests_queued=self.queued + self.backlog,
            dropped_messages={},
            kinds=tuple(self.kind(kind, count, running.get(kind, 0)) for kind, count in self.counts.items()),
        )

    def kind(self, kind: str, wanted: int, running: int) -> KindStatus:
        return KindStatus(kind, "launcher", 8, wanted, running, fault="no room" * (kind == self.stuck))


class Window:
    """Says what the quick estimator says, after a look at the watch."""

    def __init__(self, problem: Problem, during: Callable[[], None] = lambda: None) -> None:
        self.queues = Queues(problem, confidence=0.0)
        self.during = during
        self.seen: list[tuple[Pool, Gone | None]] = []

    def run(self, pool: Pool, confidence: float, limit: int, watch: Watch) -> Estimate:
        self.during()
        watch()
        thread = watch._thread  # type: ignore[attr-defined]
        if thread is not None:
            thread.join()
        self.seen.append((pool, watch()))
        return self.queues.evaluate(pool)


def estimator(
    cluster: Cluster,
    window: Window,
    problem: Problem,
    patience_s: float = 5.0,
    say: Callable[[str], None] = lambda _: None,
) -> Live:
    return Live(
        problem,
        0.0,
        client=cluster,  # type: ignore[arg-type]
        window=window,
        patience_s=patience_s,
        say=say,
    )


def problem() -> Problem:
    return read_problem(spec(workload=workload(rate=200), duration_s=20))


def test_it_never_has_less_than_both_pools_have_in_common() -> None:
    asked, cluster = problem(), Cluster(fast=3, cheap=0)
    estimator(cluster, Window(asked), asked).evaluate((1, 4))
    assert cluster.moves == [{"fast": 3, "cheap": 4}, {"fast": 1, "cheap": 4}]


def test_a_plan_leaves_the_cluster_as_it_has_it_and_evaluates_nothing_beside_the_search() -> None:
    asked, cluster = problem(), Cluster(fast=1, cheap=0)
    window = Window(asked)
    found = plan(
        asked.spec,
        search="informed",
        prior="queues",
        evaluate=lambda given, _: estimator(cluster, window, given),
        confidence=0.0,
    )
    assert found.best is not None
    assert tuple(cluster.counts.values()) == found.best.pool
    assert len(window.seen) == len(found.evaluations)
    assert found.evaluate == "live"


def test_without_a_pool_that_holds_the_cluster_is_what_it_was() -> None:
    asked, cluster = read_problem(spec(workload=workload(rate=2000), duration_s=5)), Cluster(fast=2, cheap=1)
    window = Window(asked)
    found = plan(
        asked.spec,
        search="ribbon",
        evaluate=lambda given, _: estimator(cluster, window, given),
        evaluations=2,
        confidence=0.0,
    )
    assert found.best is None
    assert tuple(cluster.counts.values()) == (2, 1)


def test_a_pool_is_evaluated_again_if_workers_were_lost_meanwhile() -> None:
    asked, cluster = problem(), Cluster(fast=3, cheap=0)
    times = iter(range(10))

    def lose() -> None:
        cluster.generation += next(times) == 0

    window = Window(asked, lose)
    estimator(cluster, window, asked).evaluate((2, 1))
    assert [pool for pool, _ in window.seen] == [(2, 1), (2, 1)]

    def always() -> None:
        cluster.generation += 1

    with pytest.raises(PlanError, match=r"workers of 2 fast \+ 1 cheap were lost in each of 3 windows"):
        estimator(cluster, Window(asked, always), asked).evaluate((2, 1))


def test_what_waits_is_served_by_more_devices_before_a_window_begins() -> None:
    asked, cluster = problem(), Cluster(fast=2, cheap=1)
    cluster.backlog = 1_000
    window = Window(asked)
    estimator(cluster, window, asked).evaluate((3, 1))
    assert {"fast": 5, "cheap": 2} in cluster.moves
    assert cluster.moves[-1] == {"fast": 3, "cheap": 1}
    assert window.seen == [((3, 1), None)], "nothing waits any more"


def test_a_window_begins_once_those_that_were_told_to_stop_have_gone() -> None:
    asked, cluster = problem(), Cluster(fast=2, cheap=1)
    cluster.stopping = 3
    window = Window(asked)
    estimator(cluster, window, asked).evaluate((2, 1))
    assert window.seen == [((2, 1), None)], "no worker of the pool was lost"


@pytest.mark.parametrize("why", [KeyboardInterrupt, PlanError])
def test_a_search_that_does_not_end_leaves_the_best_pool_that_holds_so_far(why: type[BaseException]) -> None:
    asked, cluster = problem(), Cluster(fast=1, cheap=0)
    said: list[str] = []

    def search(windows: int) -> None:
        """Search from a pool that holds on, and fail in a window."""
        left = iter(range(windows))

        def fail() -> None:
            if next(left, None) is None:
                raise why

        with pytest.raises(why):
            plan(
                asked.spec,
                search="ribbon",
                starts=((3, 0),),
                evaluate=lambda given, _: estimator(cluster, Window(given, fail), given, say=said.append),
                confidence=0.0,
            )

    search(0)
    assert tuple(cluster.counts.values()) == (1, 0)
    assert "becomes 1 fast again, the pool that it was at first" in said[-1]
    search(1)
    assert tuple(cluster.counts.values()) == (3, 0)
    assert "becomes 3 fast again, the best that holds so far" in said[-1]


def test_a_cluster_that_can_not_go_back_stays_as_it_is_and_that_is_said() -> None:
    asked, cluster = problem(), Cluster(fast=1, cheap=2)
    said: list[str] = []
    given = estimator(cluster, Window(asked), asked, patience_s=0.0, say=said.append)
    cluster.counts, cluster.stuck = {"fast": 1, "cheap": 0}, "cheap"
    given.abandon(None)
    assert "it stays as it is, see mainspring scale: the cluster did not become the pool" in said[-1]


def test_a_queue_of_which_most_must_be_late_ends_a_window() -> None:
    asked, cluster = problem(), Cluster(fast=3, cheap=0)
    window = Window(asked)
    given = estimator(cluster, window, asked)
    given.evaluate((3, 0))
    cluster.queued = 100
    given.evaluate((2, 0))
    given.evaluate((2, 0), whole=True)
    assert [why for _, why in window.seen] == [None, Gone.VIOLATES, None]


def test_a_cluster_that_can_not_be_the_pool_says_why() -> None:
    asked = problem()
    with pytest.raises(PlanError, match="can't start workers of cheap; those that it can are of fast"):
        estimator(Cluster(fast=1), Window(asked), asked)
    cluster = Cluster(fast=1, cheap=0)
    given = estimator(cluster, Window(asked), asked, patience_s=0.0)
    cluster.stuck = "cheap"
    with pytest.raises(PlanError, match="cheap: 0 of 2 workers; no room"):
        given.evaluate((1, 2))
    cluster.least = 1
    with pytest.raises(
        PlanError, match=r"can't have 0 workers of fast: .*at least 1 .*with least in the spec"
    ):
        given.evaluate((0, 2))
    wide = tuple(msgspec.structs.replace(group, most=9) for group in spec().devices)
    with pytest.raises(PlanError, match="can have 8 workers of fast and the plan may want 9"):
        estimator(Cluster(fast=1, cheap=0), Window(asked), read_problem(spec(devices=wide)))


def counts(arrived: int, queued: int = 0) -> live.Counts:
    return live.Counts(arrived, 0, 0, queued)


def test_a_change_of_load_is_noticed_by_its_rate() -> None:
    watch = LoadWatch(rate=100, slo_s=0.1)
    assert not any(watch.take(second, counts(round(101 * second))) for second in range(40))
    found = [watch.take(second, counts(4040 + 150 * (second - 40))) for second in range(40, 60)]
    first = next(rate for rate in found if rate is not None)
    assert 115 < first <= 150
    assert found[-1] == pytest.approx(150, rel=0.01)


def test_a_long_queue_says_so_sooner() -> None:
    def noticed(queued: int) -> int:
        watch = LoadWatch(rate=100, slo_s=0.1)
        for second in range(30):
            watch.take(second, counts(100 * second))
        for second in range(30, 60):
            if watch.take(second, counts(2900 + 190 * (second - 29), queued)) is not None:
                return second - 29
        return 99

    assert LOOKS <= noticed(queued=50) < noticed(queued=0) or noticed(queued=0) <= LOOKS
    quiet = LoadWatch(rate=100, slo_s=0.1)
    assert not any(quiet.take(second, counts(100 * second, 50)) for second in range(40)), "same rate"
