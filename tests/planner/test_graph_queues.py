"""Graphs as stations: query for query what a simulation of events does, and what queueing theory says."""

from __future__ import annotations

import heapq
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.planner import queues
from mainspring.planner.graph_queues import (
    GraphProblem,
    GraphQueues,
    Station,
    Step,
    read_graph_problem,
)
from mainspring.planner.problem import DeviceKind, PlanError, Queries
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.graph_groups import FamilyGroup, GraphGroup, GraphStep
from mainspring.simulator.objective import Objective
from mainspring.simulator.run import simulate
from mainspring.simulator.spec import (
    DeviceGroup,
    FaultsSpec,
    ModelGroup,
    SimulationSpec,
    SpecError,
    WorkloadSpec,
)

SECOND_NS = 1_000_000_000


def pipeline(**changes: Any) -> SimulationSpec:
    """Return a graph of three steps on two kinds, one ten times as fast as the other."""
    sizes = (1, 2, 4, 8, 16)
    usual = SimulationSpec(
        devices=(
            DeviceGroup(kind="gpu", price=0.7, most=20),
            DeviceGroup(kind="cpu", price=0.05, most=60, speed=0.1),
        ),
        models=tuple(
            ModelGroup(name=name, infer_ms={str(size): a + b * size for size in sizes})
            for name, a, b in (("detect", 6, 3), ("read", 4, 2), ("word", 0.5, 0.1))
        ),
        graphs=(
            GraphGroup(
                name="plates",
                steps=(
                    GraphStep(model="detect"),
                    GraphStep(model="read", share=0.4),
                    GraphStep(model="word", after=("detect",)),
                ),
            ),
        ),
        workload=(WorkloadSpec(models="plates", rate=150, slo_ms=120),),
        objective=Objective(attainment=0.99),
        warm_up_s=0,
        duration_s=20,
    )
    return msgspec.structs.replace(usual, **changes)


def problem_of(
    due_ns: list[int] | np.ndarray, steps: list[Step], slo_ns: int = SECOND_NS, between_ns: int = 0
) -> GraphProblem:
    due = np.array(due_ns, np.int64)
    queries = Queries(due, np.ones_like(due), np.zeros_like(due), np.full_like(due, slo_ns), 0)
    kinds = (DeviceKind("gpu", 1.0, 0, 0),)
    return GraphProblem(pipeline(), "g", kinds, tuple(steps), queries, between_ns, 0)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[GraphProblem, tuple[Station, ...]]:
    """Draw arrivals with ties, steps with conditions and several rows, and stations with batches."""
    due_ns = np.cumsum(draw(st.lists(st.integers(0, 6), min_size=1, max_size=40)), dtype=np.int64)
    steps, stations = [], []
    for place in range(draw(st.integers(1, 4))):
        after = tuple(sorted(draw(st.sets(st.integers(0, place - 1))))) if place else ()
        counts = draw(st.lists(st.integers(0, 3), min_size=len(due_ns), max_size=len(due_ns)))
        query = np.repeat(np.arange(len(due_ns)), counts)
        spread = np.array(draw(st.lists(st.integers(1, 3), min_size=len(query), max_size=len(query))), float)
        table_ns = np.cumsum(draw(st.lists(st.integers(1, 9), min_size=4, max_size=4))).astype(float)
        steps.append(Step(f"s{place}", "m", after, query, (table_ns,), (spread,)))
        stations.append(Station(0, draw(st.integers(1, 4)), draw(st.integers(1, 3))))
    return problem_of(due_ns, steps, between_ns=draw(st.integers(0, 2))), tuple(stations)


def play_by_events(problem: GraphProblem, stations: tuple[Station, ...]) -> list[int]:
    """Return when each query ends: all steps' arrivals and ends one after the other, by one queue."""
    steps, queries = problem.steps, len(problem.queries)
    items = [[np.flatnonzero(step.query == query).tolist() for query in range(queries)] for step in steps]
    durations = [step.durations_ns(0).tolist() for step in steps]
    left = [[len(each) for each in mine] for mine in items]
    ended = [[-1] * queries for _ in steps]
    begun = [[False] * queries for _ in steps]
    waiting: list[list[int]] = [[] for _ in steps]
    idle = [[*range(station.replicas)] for station in stations]
    batches: list[dict[int, list[int]]] = [{} for _ in steps]
    events: list[tuple[int, int, int, int]] = [
        (due, 0, query, 0) for query, due in enumerate(problem.queries.due_ns.tolist())
    ]
    heapq.heapify(events)
    while events:
        now_ns, touched, came = events[0][0], set(), [list[int]() for _ in steps]
        while events and events[0][0] == now_ns:
            _, what, which, server = heapq.heappop(events)
            if not what:
                touched.add(which)
                continue
            idle[what - 1].append(server)
            for query in batches[what - 1].pop(server):
                left[what - 1][query] -= 1
                touched.add(query)
        for query in touched:
            for place, step in enumerate(steps):
                if not begun[place][query] and all(ended[each][query] >= 0 for each in step.after):
                    begun[place][query] = True
                    came[place] += items[place][query]
                if begun[place][query] and not left[place][query] and ended[place][query] < 0:
                    ended[place][query] = now_ns
        for place, station in enumerate(stations):
            waiting[place] += sorted(came[place])
            while waiting[place] and idle[place]:
                server = min(idle[place])
                idle[place].remove(server)
                batch, waiting[place] = (
                    waiting[place][: station.batch],
                    waiting[place][station.batch :],
                )
                table, longest = steps[place].tables_ns[0], max(durations[place][each] for each in batch)
                took_ns = int(longest * (table[len(batch) - 1] / table[0]) + 0.5) + problem.between_ns
                batches[place][server] = steps[place].query[batch].tolist()
                heapq.heappush(events, (now_ns + took_ns, place + 1, 0, server))
    return [max(ended[place][query] for place in range(len(steps))) for query in range(queries)]


@settings(max_examples=300, deadline=None)
@given(graphs())
def test_each_query_ends_as_in_a_simulation_of_events(
    drawn: tuple[GraphProblem, tuple[Station, ...]],
) -> None:
    problem, stations = drawn
    found = GraphQueues(problem, 0).play(stations)
    assert found is not None
    assert found.tolist() == play_by_events(problem, stations)


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_interpreted_and_compiled_do_the_same(drawn: tuple[GraphProblem, tuple[Station, ...]]) -> None:
    pytest.importorskip("numba")
    problem, stations = drawn
    found = GraphQueues(problem, 0).play(stations)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queues, "compiled", lambda: None)
        again = GraphQueues(problem, 0).play(stations)
    assert found is not None
    assert again is not None
    assert found.tolist() == again.tolist()


def mean_wait(rate: float, servers: int) -> float:
    """Return the mean wait in an M/D/c queue of services of length 1 (Crommelin).

    A service later there is what was there beyond the servers, and what came meanwhile.
    """
    size = 400
    counts = np.arange(size)
    logs = np.concatenate([[0.0], np.cumsum(np.log(counts[1:]))])
    came = np.exp(counts * np.log(rate) - rate - logs)
    there = np.zeros(size)
    there[0] = 1.0
    for _ in range(3_000):
        left = np.concatenate([[there[: servers + 1].sum()], there[servers + 1 :]])
        there = np.convolve(left, came)[:size]
    return float((np.maximum(0, counts - servers) * there).sum() / rate)


@pytest.mark.parametrize(("servers", "load"), [(1, 0.5), (1, 0.7), (3, 0.8)])
def test_waits_are_those_of_an_m_d_c_queue(servers: int, load: float) -> None:
    pytest.importorskip("numba")
    took_ns, count = 10_000_000, 2_000_000
    gaps = np.random.default_rng(2).exponential(took_ns / (servers * load), count)
    step = Step("s", "m", (), np.arange(count), (np.array([float(took_ns)]),), (np.ones(count),))
    problem = problem_of(np.rint(np.cumsum(gaps)).astype(np.int64), [step])
    latency_ns = GraphQueues(problem, 0).latencies_ns((Station(0, 1, servers),))
    assert latency_ns is not None
    waited = float(latency_ns.mean()) / took_ns - 1
    assert waited == pytest.approx(mean_wait(servers * load, servers), rel=0.01)
    if servers == 1:
        assert waited == pytest.approx(load / (2 * (1 - load)), rel=0.01)


def test_a_graph_of_one_step_waits_as_in_a_simulated_cluster() -> None:
    one = (GraphGroup(name="plates", steps=(GraphStep(model="detect"),)),)
    spec = pipeline(
        devices=(DeviceGroup(kind="gpu", price=0.7, count=2),),
        graphs=one,
        faults=FaultsSpec(duration_jitter=0),
    )
    found = GraphQueues(read_graph_problem(spec), 0).evaluate((Station(0, 1, 2),))
    config = msgspec.structs.replace(spec.scheduler, policy="first-free")
    loose = (msgspec.structs.replace(spec.workload[0], slo_ms=10_000),)
    run = simulate(msgspec.structs.replace(spec, scheduler=config, workload=loose))
    sent, replied = run.records.columns()
    latency_ms = (replied["replied_ns"] - sent["intended_ns"]) / 1e6
    assert found.p99_ms == pytest.approx(float(np.quantile(latency_ms, 0.99)), rel=0.05)


def test_conditions_are_drawn_by_their_shares() -> None:
    problem = read_graph_problem(pipeline(duration_s=60))
    assert [rate / problem.rates[0] for rate in problem.rates] == pytest.approx([1, 0.4, 1], rel=0.05)


def test_a_clear_violation_is_given_up() -> None:
    estimate = GraphQueues(read_graph_problem(pipeline())).evaluate((Station(0, 1, 1),) * 3)
    assert not estimate.complete
    assert not estimate.holds(0.5)


def test_the_least_slo_is_that_of_the_longest_path_and_names_its_longest_step() -> None:
    spec = pipeline(faults=FaultsSpec(duration_jitter=0))
    slo_ms, step = GraphQueues(read_graph_problem(spec)).least_slo()
    assert slo_ms == pytest.approx(9 + 6, rel=0.15)
    assert step == "detect"
    spared = msgspec.structs.replace(
        spec.graphs[0], steps=(spec.graphs[0].steps[0], GraphStep(model="read", share=0.002))
    )
    rarely = msgspec.structs.replace(spec, graphs=(spared,))
    assert GraphQueues(read_graph_problem(rarely)).least_slo()[0] == pytest.approx(9, rel=0.1)


def test_what_cannot_be_planned_is_named() -> None:
    spec = pipeline()
    short = pipeline(duration_s=5, objective=Objective(attainment=0.9))
    with pytest.raises(PlanError, match=r"a sample of \d+ arrivals is too short: it takes 1,000"):
        read_graph_problem(short)
    unknown = (GraphGroup(name="plates", steps=(GraphStep(model="detectt"),)),)
    with pytest.raises(PlanError, match="a step of model 'detectt', which there is not"):
        read_graph_problem(msgspec.structs.replace(spec, graphs=unknown))
    both = (*spec.workload, WorkloadSpec(models="word", rate=20))
    with pytest.raises(PlanError, match="the workloads ask for word, plates: give them models = 'plates'"):
        read_graph_problem(msgspec.structs.replace(spec, workload=both))
    family = (FamilyGroup(name="read", members=("detect", "word"), score=(0.8, 0.5)),)
    with pytest.raises(PlanError, match="families, which can't be planned"):
        read_graph_problem(msgspec.structs.replace(spec, families=family))
    with pytest.raises(ValueError, match="no step before 'a' is called 'b'"):
        GraphGroup(name="ring", steps=(GraphStep(model="a", after=("b",)), GraphStep(model="b")))


def test_a_kind_without_profile_is_named(tmp_path: Any) -> None:
    columns = "model,input_kb,output_kb,weights_mb,transfer_ms,b1_ms,b2_ms,b4_ms,b8_ms,b16_ms"
    (tmp_path / "tpu.csv").write_text(f"{columns}\ndetect,1,1,1,1,3,4,5,6,7\n")
    kinds = (*pipeline().devices, DeviceGroup(kind="tpu", price=1, profiles=str(tmp_path / "tpu.csv")))
    with pytest.raises(SpecError, match=r"tpu.csv has no row for read, as devices 'tpu' need"):
        read_graph_problem(pipeline(devices=kinds))


@pytest.mark.parametrize("cv", [1, 2])
def test_the_99th_percentile_of_several_steps_is_a_simulated_cluster_s_within_5_percent(cv: float) -> None:
    workload = WorkloadSpec(models="plates", kind="gamma", cv=cv, rate=150, slo_ms=10_000)
    spec = pipeline(workload=(workload,), duration_s=60)
    stations = (Station(0, 4, 3), Station(0, 2, 1), Station(1, 1, 3))
    estimate = GraphQueues(read_graph_problem(spec)).evaluate(stations)
    steps = zip(("detect", "read", "word"), stations, strict=True)
    own = tuple(
        msgspec.structs.replace(
            spec.devices[each.kind], count=each.replicas, serves=name, max_batch=each.batch
        )
        for name, each in steps
    )
    config = SchedulerConfig(policy="first-free")
    run = simulate(msgspec.structs.replace(spec, devices=own, scheduler=config))
    assert run.summary.p99_ms == pytest.approx(estimate.p99_ms, rel=0.05)
    assert run.summary.p50_ms == pytest.approx(estimate.p50_ms, rel=0.05)
