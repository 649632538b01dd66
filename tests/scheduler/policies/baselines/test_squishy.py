"""Squishy bin packing: what fits has the time, the pages and the rate that it was promised."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.cluster.models import Model
from mainspring.cluster.placements import State
from mainspring.cluster.state import Cluster
from mainspring.cluster.workers import Worker
from mainspring.messages.model import PAGE_BYTES, ModelSpec, Profile, TensorSpec
from mainspring.scheduler.policies.baselines.nexus_sessions import Session, Sessions
from mainspring.scheduler.policies.baselines.squishy import (
    Node,
    Packing,
    Planner,
    residual_duty_ns,
    saturating,
)

MS = 1_000_000
SECOND = 1_000_000_000
SIZES = (1, 2, 4, 8)
TENSOR = (TensorSpec("x", "float32", (4,)),)


def session(number: int, infer_ms: tuple[float, ...], rate: float, slo_ms: float, pages: int = 1) -> Session:
    """A session of ``rate`` rows a second."""
    infer_ns = {size: round(ms * MS) for size, ms in zip(SIZES, infer_ms, strict=True)}
    spec = ModelSpec(
        *(f"m{number}", f"w{number}", f"g{number}", SIZES, pages * PAGE_BYTES, (1,) * pages, TENSOR, TENSOR),
        {"gpu": Profile(infer_ns, 8 * MS)},
    )
    made = Session(Model(spec, number))
    made.rows_per_epoch, made.slo_ns = rate, round(slo_ms * MS)
    return made


def cluster_of(sessions: list[Session], workers: int, pages: int = 64) -> list[Worker]:
    """Workers that could load each of the models."""
    cluster = Cluster()
    made = [Worker(f"w{number}", number, "gpu", pages) for number in range(workers)]
    for worker in made:
        for each in sessions:
            cluster.place(each.model, worker).make_up(State.PREPARED)
    return made


def packed(
    sessions: list[Session], workers: list[Worker], homes: dict[int, list[str]], limit: int = 1
) -> list[Node]:
    planner = Planner(sessions, workers, homes, SECOND, 0.0)
    while (nodes := planner.advance(limit)) is None:
        pass
    return nodes


def batches(node: Node) -> list[tuple[str, int]]:
    return [(share.model.name, SIZES[share.index]) for share in node.shares]


def rates(nodes: list[Node], one: Session) -> float:
    """Rows a second that nodes have time for."""
    return sum(
        SIZES[share.index] / node.duty_ns * SECOND
        for node in nodes
        for share in node.shares
        if share.model is one.model
    )


drawn = st.lists(
    st.tuples(
        st.floats(1, 12),
        st.tuples(*[st.floats(0.1, 1) for _ in SIZES[1:]]),
        st.floats(0.2, 900),
        st.floats(5, 200),
        st.integers(1, 5),
    ),
    min_size=1,
    max_size=12,
)


@given(drawn, st.integers(1, 5), st.integers(4, 12))
def test_what_fits_has_the_time_the_pages_and_the_rate_that_it_needs(
    models: list[tuple[float, tuple[float, ...], float, float, int]], workers: int, pages: int
) -> None:
    sessions = []
    for number, (single_ms, growths, rate, slo_ms, need) in enumerate(models, start=1):
        infer_ms = [single_ms]
        for growth, size, smaller in zip(growths, SIZES[1:], SIZES, strict=False):
            infer_ms.append(infer_ms[-1] + growth * single_ms * (size - smaller))
        sessions.append(session(number, tuple(infer_ms), rate, slo_ms, need))
    packing = Packing(sessions, cluster_of(sessions, workers, pages), {}, 1 / SECOND)
    assert packing.advance(1000)
    for node in packing.nodes:
        assert node.busy_ns <= node.duty_ns
        assert sum(share.model.pages for share in node.shares) <= pages
        assert len({share.model.number for share in node.shares}) == len(node.shares)
        for share in node.shares:
            assert node.duty_ns + share.times.ns[share.index] <= share.slo_ns
    if not packing.left:
        for each in sessions:
            assert rates(packing.nodes, each) >= each.rows_per_epoch * 0.999
    nodes = packed(sessions, cluster_of(sessions, workers, pages), {})
    assert [batches(node) for node in nodes] == [
        batches(node) for node in packed(sessions, cluster_of(sessions, workers, pages), {})
    ], "the same sessions are packed in the same way"


def test_a_session_that_keeps_devices_busy_has_them_to_itself() -> None:
    """4 rows in 10 ms are 400 a second; 8 in 18 ms would take more than half of 30 ms."""
    sessions = [session(1, (4, 6, 10, 18), 900, 30), session(2, (4, 6, 10, 18), 50, 30)]
    nodes = packed(sessions, cluster_of(sessions, 3), {})
    alone = [batches(node) for node in nodes if batches(node) == [("m1", 4)]]
    assert len(alone) == 2
    (shared,) = [batches(node) for node in nodes if len(node.shares) == 2]
    assert {name for name, _ in shared} == {"m1", "m2"}


def test_batches_shrink_to_the_shortest_cycle() -> None:
    """Alone it would gather 8 rows in 80 ms; beside one with a cycle of 20 ms it takes 2."""
    slow, tight = session(1, (2, 3, 4, 6), 100, 200), session(2, (2, 3, 4, 6), 50, 22)
    assert residual_duty_ns(cluster_times(slow), slow.slo_ns, 100 / SECOND) == 80 * MS
    nodes = packed([slow, tight], cluster_of([slow, tight], 1), {})
    assert dict(batches(nodes[0])) == {"m1": 2, "m2": 1}
    assert nodes[0].duty_ns == 20 * MS


def cluster_times(one: Session):  # type: ignore[no-untyped-def]
    cluster_of([one], 1)
    return one.model.infer_times["gpu"]


def test_a_batch_may_take_half_of_the_slo_on_a_device_of_its_own() -> None:
    times = cluster_times(session(1, (4, 6, 10, 18), 1, 100))
    assert [SIZES[saturating(times, ms * MS)] for ms in (7, 8, 12, 20, 35, 36)] == [1, 1, 2, 4, 4, 8]


def test_a_model_stays_where_it_was() -> None:
    sessions = [session(number, (4, 6, 10, 18), 20, 100) for number in (1, 2)]
    workers = cluster_of(sessions, 2)
    homes = {1: ["w1"], 2: ["w0"]}
    nodes = packed(sessions, workers, homes)
    assert [[name for name, _ in batches(node)] for node in nodes] == [["m2"], ["m1"]]


def test_too_much_is_scaled_down_and_what_never_fits_is_put_somewhere_all_the_same() -> None:
    busy = [session(number, (4, 6, 10, 18), 300, 60) for number in (1, 2, 3)]
    nodes = packed(busy, cluster_of(busy, 1), {})
    assert len(nodes[0].shares) == 3
    assert nodes[0].busy_ns <= nodes[0].duty_ns, "smaller rates fit"
    tight = [session(number, (4, 6, 10, 18), 1, 9) for number in (1, 2, 3)]
    nodes = packed(tight, cluster_of(tight, 1), {})
    assert len(nodes[0].shares) == 3, "no cycle of three batches is short enough"


def test_a_model_larger_than_what_is_left_of_a_device_goes_elsewhere() -> None:
    sessions = [session(number, (4, 6, 10, 18), 10, 100, pages=5) for number in (1, 2, 3)]
    nodes = packed(sessions, cluster_of(sessions, 2, pages=8), {})
    assert [len(node.shares) for node in nodes] == [1, 1]


def test_rates_are_means_until_there_are_enough_of_them() -> None:
    sessions = Sessions()
    model = session(1, (4, 6, 10, 18), 0, 100).model
    rates_seen = []
    for rows in (4, 8, 0, 0):
        if rows:
            sessions.count(model, rows, 50 * MS)
            sessions.count(model, 0, 0)
        (one,) = sessions.end_epoch(0.5, 1.0)
        rates_seen.append(one.rows_per_epoch)
        assert one.slo_ns == 50 * MS
    assert rates_seen == pytest.approx([4, 6, 3, 1.5])
    for _ in range(10):
        left = sessions.end_epoch(0.5, 1.0)
    assert left == []
    assert not sessions


def test_a_short_first_epoch_gives_the_rate_and_weighs_by_its_length() -> None:
    sessions = Sessions()
    model = session(1, (4, 6, 10, 18), 0, 100).model
    rates_seen = []
    for rows, length in ((1, 0.25), (3, 0.25), (4, 0.5), (16, 1.0)):
        sessions.count(model, rows, 50 * MS)
        (one,) = sessions.end_epoch(0.2, length)
        rates_seen.append(one.rows_per_epoch)
    assert rates_seen == pytest.approx([4, 8, 8, 12])
