"""The policy against appendix B written down literally: every request's every strategy in one list."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.cluster.models import Model
from mainspring.cluster.placements import State
from mainspring.cluster.requests import Request
from mainspring.cluster.workers import Worker
from mainspring.messages.actions import Infer, Load, Prepare, Result
from mainspring.messages.codes import Status
from mainspring.messages.events import ModelAdded, RequestArrived, WorkerJoined
from mainspring.messages.model import PAGE_BYTES, ModelSpec, Profile, TensorSpec
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.core import Scheduler
from mainspring.scheduler.policies.clockwork import Clockwork
from mainspring.scheduler.policies.demand import DemandLoads
from mainspring.scheduler.policies.options import NoOptions
from mainspring.scheduler.state import SchedulerState
from tests.cluster import made

MS = 1_000_000
SIZES = (1, 2, 4)
TENSOR = (TensorSpec("x", "float32", (4,)),)


def spec(name: str, infer_ms: tuple[int, ...] = (4, 6, 10), load_ms: int = 8, pages: int = 1) -> ModelSpec:
    infer_ns = {size: duration * MS for size, duration in zip(SIZES, infer_ms, strict=True)}
    return ModelSpec(
        name,
        f"weights of {name}",
        f"graph of {name}",
        SIZES,
        pages * PAGE_BYTES,
        (1,) * pages,
        TENSOR,
        TENSOR,
        {"gpu": Profile(infer_ns, load_ms * MS)},
    )


class Bench:
    """A policy with models resident on one worker, fed by hand."""

    def __init__(self, specs: list[ModelSpec], pad: bool = False) -> None:
        self.state = SchedulerState(SchedulerConfig(pad_batches=pad, load_capacity_ms=100))
        self.policy = Clockwork(self.state, NoOptions())
        self.worker = Worker("w0", 1, "gpu", 64)
        self.state.cluster.workers["w0"] = self.worker
        self.models = []
        for number, model_spec in enumerate(specs, start=1):
            model = Model(model_spec, number)
            self.state.cluster.models[model.name] = model
            placement = self.state.cluster.place(model, self.worker)
            placement.enter(State.RESIDENT)
            self.models.append(model)

    def queue(self, id_: int, model: Model, due_ms: int) -> Request:
        request = made.request(id_, model, 1, 0, due_ms * MS)
        model.queue.add(request)
        self.policy.queued(0, request)
        return request


def literal_appendix_b(bench: Bench, available_ns: int) -> tuple[str, int, list[int]] | None:
    """Iterate the strategy queue by required start time, skipping what the paper skips."""
    strategies = []
    for model in bench.models:
        times = model.infer_times["gpu"]
        for request in model.queue:
            assert request.due_ns is not None
            for index, size in enumerate(SIZES):
                strategies.append((request.due_ns - times.ns[index], model.number, request.id, index, size))
    live = [strategy for strategy in sorted(strategies) if strategy[0] >= available_ns]
    for _, number, request_id, index, size in live:
        model = bench.models[number - 1]
        same = {i: sum(1 for s in live if s[1] == number and s[3] == i) for i in range(len(SIZES))}
        too_big = same[index] < size
        too_small = any(same[i] >= SIZES[i] for i in range(index + 1, len(SIZES)))
        if not too_big and not too_small:
            ids = [request.id for request in model.queue]
            return model.name, size, ids[ids.index(request_id) : ids.index(request_id) + size]
    return None


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(0, 12)), min_size=1, max_size=3),
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 2), st.integers(1, 60)), max_size=8),
            st.integers(1, 40),
            st.booleans(),
        ),
        min_size=1,
        max_size=5,
    ),
)
def test_the_batch_is_the_one_that_appendix_b_selects(
    durations: list[tuple[int, int, int]], rounds: list[tuple[list[tuple[int, int]], int, bool]]
) -> None:
    """Rounds of arrivals and questions; some of the batches are dispatched, and the rest waits on."""
    bench = Bench([spec(f"m{i}", (a, a + b, a + b + c)) for i, (a, b, c) in enumerate(durations)])
    id_ = 0
    for requests, available_ms, dispatches in rounds:
        for index, due_ms in requests:
            id_ += 1
            bench.queue(id_, bench.models[index % len(bench.models)], due_ms)
        expected = literal_appendix_b(bench, available_ms * MS)
        batch = bench.policy.next_batch(0, bench.worker, available_ms * MS)
        if batch is None:
            assert expected is None
            continue
        chosen = batch.placement.times.sizes[batch.size_index]
        assert (batch.placement.model.name, chosen, [r.id for r in batch.requests]) == expected
        if dispatches:
            for request in batch.requests:
                batch.placement.model.queue.remove(request)
            bench.policy.dispatched(0, batch)


def test_a_padded_batch_is_taken_where_it_ends_sooner() -> None:
    for infer_ms, expected in (((4, 6, 9), 4), ((4, 6, 10), 2)):
        bench = Bench([spec("m", infer_ms)], pad=True)
        for id_ in (1, 2, 3):
            bench.queue(id_, bench.models[0], 60)
        batch = bench.policy.next_batch(0, bench.worker, 0)
        assert batch is not None
        assert batch.placement.times.sizes[batch.size_index] == expected


@pytest.mark.parametrize(("rows", "size"), [((3,), 4), ((2, 1), 2), ((3, 2), 4), ((1, 3), 4)])
def test_requests_of_several_rows_get_a_batch_that_holds_them(rows: tuple[int, ...], size: int) -> None:
    bench = Bench([spec("m")])
    for id_, count in enumerate(rows, start=1):
        request = made.request(id_, bench.models[0], count, 0, 60 * MS)
        bench.models[0].queue.add(request)
        bench.policy.queued(0, request)
    batch = bench.policy.next_batch(0, bench.worker, 0)
    assert batch is not None
    assert batch.placement.times.sizes[batch.size_index] == size
    assert sum(request.rows for request in batch.requests) <= size


def test_the_load_priority_is_that_of_appendix_b() -> None:
    """Two models on one worker: p = d - a * capacity / l, with a = d on the only worker."""
    bench = Bench([spec("a"), spec("b")])
    loads = DemandLoads(bench.state)
    for id_ in range(1, 31):
        bench.queue(id_, bench.models[0], 500)
    for id_ in range(31, 41):
        bench.queue(id_, bench.models[1], 500)
    for _ in range(2):
        for model in bench.models:
            loads.update(0, model)
    demand_a, demand_b = loads.of(bench.models[0]), loads.of(bench.models[1])
    assert demand_a.priority_ns == 120 * MS - 120 * MS * 100 // 160
    assert demand_b.priority_ns == 40 * MS - 40 * MS * 100 // 160


def test_demand_counts_only_what_a_load_can_still_save() -> None:
    bench = Bench([spec("a")])
    loads = DemandLoads(bench.state)
    for id_, due_ms in enumerate((5, 12, 13, 40), start=1):
        bench.queue(id_, bench.models[0], due_ms)
    loads.update(0, bench.models[0])
    assert loads.of(bench.models[0]).demand_ns == 2 * 4 * MS, "0.5 ms + 8 ms LOAD + 4 ms EXEC is 12.5 ms"


class Live:
    """A scheduler with models prepared on workers, fed by hand."""

    def __init__(self, specs: list[ModelSpec], workers: int = 1, pages: int = 8) -> None:
        self.scheduler = Scheduler(SchedulerConfig(policy="clockwork", response_margin_ms=1))
        for model_spec in specs:
            self.scheduler.handle(0, ModelAdded(model_spec))
        for index in range(workers):
            self.scheduler.handle(0, WorkerJoined(f"w{index}", "gpu", pages))
        while prepares := [c for c in self.scheduler.schedule(0) if isinstance(c, Prepare)]:
            for action in prepares:
                self.scheduler.handle(0, Result(action.action_id, action.worker, Status.OK, 0, 0))

    def ask(self, now_ms: int, id_: int, model: str, slo_ms: int = 100) -> list[Load | Infer]:
        self.scheduler.handle(now_ms * MS, RequestArrived(id_, model, 1, (now_ms + slo_ms) * MS))
        commands = self.scheduler.schedule(now_ms * MS)
        self.scheduler.validate()
        return [command for command in commands if isinstance(command, Load | Infer)]


def test_the_model_with_the_most_unfulfilled_work_is_loaded_first() -> None:
    live = Live([spec("cheap", (2, 3, 4)), spec("dear", (9, 12, 18)), spec("first")])
    assert [c.model for c in live.ask(0, 1, "first")] == ["first"]
    assert live.ask(1, 2, "cheap") == [], "the LOAD executor is busy for the whole lookahead"
    assert live.ask(2, 3, "dear") == []
    commands = live.scheduler.schedule(5 * MS)
    assert [command.model for command in commands if isinstance(command, Load)] == ["dear"]


def test_a_fulfilled_model_is_not_loaded_again() -> None:
    live = Live([spec("m")], workers=2)
    load = live.ask(0, 1, "m")[0]
    assert isinstance(load, Load)
    live.scheduler.handle(9 * MS, Result(load.action_id, load.worker, Status.OK, MS, 9 * MS))
    live.scheduler.schedule(9 * MS)
    for id_ in range(2, 12):
        assert not any(isinstance(command, Load) for command in live.ask(10, id_, "m"))


def test_an_overloaded_model_is_replicated() -> None:
    live = Live([spec("m")], workers=2)
    load = live.ask(0, 1, "m")[0]
    live.scheduler.handle(9 * MS, Result(load.action_id, load.worker, Status.OK, MS, 9 * MS))
    live.scheduler.schedule(9 * MS)
    commands = [command for id_ in range(2, 60) for command in live.ask(10, id_, "m", slo_ms=100)]
    copies = [command for command in commands if isinstance(command, Load)]
    assert [copy.worker for copy in copies] == ["w1"]


@pytest.mark.parametrize(("capacity_ms", "replicated"), [(None, False), (100, True)])
def test_what_a_device_can_do_follows_the_slo_unless_it_is_set(
    capacity_ms: float | None, replicated: bool
) -> None:
    """A device does the work of 58 requests within 300 ms, but not within 100."""
    state = SchedulerState(SchedulerConfig(load_capacity_ms=capacity_ms))
    loads = DemandLoads(state)
    workers = [Worker(f"w{number}", number, "gpu", 64) for number in range(2)]
    model = Model(spec("m"), 1)
    for worker in workers:
        state.cluster.seat(worker)
        state.cluster.place(model, worker).enter(State.PREPARED)
    model.placements["w0"].enter(State.RESIDENT)
    for id_ in range(58):
        model.queue.add(made.request(id_, model, 1, 0, 300 * MS))
    assert 100 * MS < 58 * model.infer_times["gpu"].ns[0] < 300 * MS
    assert loads.refresh(0, model) is replicated
