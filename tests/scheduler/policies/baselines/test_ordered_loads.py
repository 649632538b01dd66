"""Which model is loaded next, and where."""

from __future__ import annotations

import pytest

from mainspring.cluster.models import Model
from mainspring.cluster.placements import Placement, State
from mainspring.cluster.residency import at
from mainspring.cluster.workers import Worker
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.policies.baselines.ordered_loads import OrderedLoads
from mainspring.scheduler.policies.loads import LOOKED_AT, PASSED_OVER_NS
from mainspring.scheduler.state import SchedulerState
from tests.cluster.made import request
from tests.scheduler.hand import MS, spec


def cluster(models: int, workers: int, pages: int = 2) -> tuple[SchedulerState, list[Model]]:
    """Return state of workers that have models of one page prepared."""
    state = SchedulerState(SchedulerConfig())
    for number in range(workers):
        worker = Worker(f"w{number}", number, "gpu", pages)
        state.cluster.workers[worker.name] = worker
        state.consider_load_room(0, worker)
    state.take_wants_loads()
    made = []
    for number in range(models):
        model = state.cluster.models[f"m{number}"] = Model(spec(f"m{number}"), number)
        made.append(model)
        for worker in state.cluster.workers.values():
            state.cluster.place(model, worker).make_up(State.PREPARED)
    return state, made


def hold(model: Model, worker: str) -> Placement:
    """Enter a model as resident on a worker."""
    placement = model.placements[worker]
    placement.pages = placement.worker.pages.place((1,)) or ()
    placement.worker.pages.take(model.name, placement.pages)
    placement.make_up(State.RESIDENT)
    placement.worker.lru[model.name] = placement
    return placement


def test_models_are_loaded_in_the_order_of_their_lowest_keys() -> None:
    state, (a, b, c) = cluster(models=3, workers=1, pages=3)
    loads = OrderedLoads(state, evicts=True, serves_late=True)
    for model, key in ((a, 30), (b, 20), (c, 25), (a, 10), (c, 40)):
        loads.add(model, key)
    assert state.take_wants_loads()
    loads.drop(b)
    found = [loads.next_load(0) for _ in range(3)]
    assert [plan and plan.placement.model.name for plan in found] == ["m0", "m2", None]


def test_a_worker_with_room_comes_before_one_that_must_evict_and_copies_never_evict() -> None:
    state, (a, b, c, _) = cluster(models=4, workers=2, pages=2)
    for model, worker in ((a, "w0"), (b, "w0"), (a, "w1")):
        hold(model, worker)
    for evicts in (True, False):
        loads = OrderedLoads(state, evicts, serves_late=True)
        loads.add(c, 1)
        plan = loads.next_load(0)
        assert plan is not None
        assert (plan.placement.worker.name, plan.victims) == ("w1", ())
    hold(b, "w1")
    evicting, copying = (OrderedLoads(state, evicts, serves_late=True) for evicts in (True, False))
    for loads in (evicting, copying):
        loads.add(c, 1)
    plan = evicting.next_load(0)
    assert plan is not None
    assert [victim.model.name for victim in plan.victims] == ["m0"], "the least recently used"
    assert copying.next_load(0) is None


class Watched(OrderedLoads):
    """Notes which models it looks at, and loads them once it may."""

    def __init__(self, state: SchedulerState) -> None:
        super().__init__(state, evicts=True, serves_late=True)
        self.asked: list[str] = []
        self.able = False

    def worker_order(self, model: Model, worker: Worker, begin_ns: int) -> tuple[int, int, int] | None:
        self.asked.append(model.name)
        return super().worker_order(model, worker, begin_ns) if self.able else None


def test_what_no_worker_can_load_is_passed_over_for_a_while() -> None:
    state, models = cluster(models=LOOKED_AT + 3, workers=1)
    loads = Watched(state)
    for key, model in enumerate(models):
        loads.add(model, key)
    assert loads.next_load(0) is None
    assert loads.asked == [model.name for model in models[:LOOKED_AT]]
    assert state.alarms.next_ns() == PASSED_OVER_NS, "it is asked again then"
    assert loads.next_load(PASSED_OVER_NS - 1) is None
    assert len(loads.asked) == LOOKED_AT, "not before"
    loads.able = True
    plan = loads.next_load(PASSED_OVER_NS)
    assert plan is not None
    assert plan.placement.model is models[0]


def test_what_is_dropped_while_it_is_passed_over_makes_room_for_others() -> None:
    state, models = cluster(models=LOOKED_AT + 2, workers=1)
    loads = Watched(state)
    for key, model in enumerate(models):
        loads.add(model, key)
    assert loads.next_load(0) is None
    loads.drop(models[0])
    assert loads.next_load(1) is None
    assert loads.asked[LOOKED_AT:] == [models[LOOKED_AT].name]


@pytest.mark.parametrize(("due_ms", "loaded"), [(30, True), (10, False)])
def test_a_load_is_of_use_if_its_weights_are_there_in_time_for_a_request(due_ms: int, loaded: bool) -> None:
    state, (model,) = cluster(models=1, workers=1)
    begin_ns = 10 * MS + state.ns.dispatch_delay
    placement = at(state.cluster, model, state.cluster.workers["w0"])
    needed_ns = placement.load_time.ns + placement.times.ns[0]
    model.queue.add(request(1, model, 1, 0, due_ms * MS))
    assert loaded == (begin_ns + needed_ns <= due_ms * MS)
    loads = OrderedLoads(state, evicts=True, serves_late=False)
    loads.add(model, 1)
    assert (loads.next_load(10 * MS) is not None) == loaded
