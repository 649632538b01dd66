"""Which model is loaded next, and where."""

from __future__ import annotations

from mainspring.cluster.placements import Model, Placement, State, Worker
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.policies.baselines.ordered_loads import LOOKED_AT, PASSED_OVER_NS, OrderedLoads
from mainspring.scheduler.state import SchedulerState
from tests.scheduler.hand import MS, spec


def cluster(models: int, workers: int, pages: int = 2) -> tuple[SchedulerState, list[Model]]:
    """Return state of workers that have models of one page prepared."""
    state = SchedulerState(SchedulerConfig())
    for number in range(workers):
        worker = Worker(f"w{number}", number, "gpu", pages)
        state.cluster.workers[worker.name] = state.load_room[worker.name] = worker
    made = []
    for number in range(models):
        model = state.cluster.models[f"m{number}"] = Model(spec(f"m{number}"), number)
        made.append(model)
        for worker in state.cluster.workers.values():
            state.cluster.place(model, worker).enter(State.PREPARED)
    return state, made


def hold(model: Model, worker: str) -> Placement:
    """Enter a model as resident on a worker."""
    placement = model.placements[worker]
    placement.pages = placement.worker.pages.place((1,)) or ()
    placement.worker.pages.take(model.name, placement.pages)
    placement.enter(State.RESIDENT)
    placement.worker.lru[model.name] = placement
    return placement


def always(placement: Placement, ready_ns: int) -> bool:
    return True


def test_wishes_are_fulfilled_in_the_order_of_their_lowest_keys() -> None:
    state, (a, b, c) = cluster(models=3, workers=1, pages=3)
    wishes = OrderedLoads(state, evicts=True)
    for model, key in ((a, 30), (b, 20), (c, 25), (a, 10), (c, 40)):
        wishes.wish(model, key)
    assert state.loads_dirty
    wishes.drop(b)
    found = [wishes.next_load(0, always) for _ in range(3)]
    assert [plan and plan.placement.model.name for plan in found] == ["m0", "m2", None]


def test_a_worker_with_room_comes_before_one_that_must_evict_and_copies_never_evict() -> None:
    state, (a, b, c, _) = cluster(models=4, workers=2, pages=2)
    for model, worker in ((a, "w0"), (b, "w0"), (a, "w1")):
        hold(model, worker)
    for evicts in (True, False):
        wishes = OrderedLoads(state, evicts)
        wishes.wish(c, 1)
        plan = wishes.next_load(0, always)
        assert plan is not None
        assert (plan.placement.worker.name, plan.victims) == ("w1", ())
    hold(b, "w1")
    evicting, copying = OrderedLoads(state, evicts=True), OrderedLoads(state, evicts=False)
    for wishes in (evicting, copying):
        wishes.wish(c, 1)
    plan = evicting.next_load(0, always)
    assert plan is not None
    assert [victim.model.name for victim in plan.victims] == ["m0"], "the least recently used"
    assert copying.next_load(0, always) is None


def test_what_nobody_can_load_is_passed_over_for_a_while() -> None:
    state, models = cluster(models=LOOKED_AT + 3, workers=1)
    wishes = OrderedLoads(state, evicts=True)
    asked: list[str] = []

    def never(placement: Placement, ready_ns: int) -> bool:
        asked.append(placement.model.name)
        return False

    for key, model in enumerate(models):
        wishes.wish(model, key)
    assert wishes.next_load(0, never) is None
    assert asked == [model.name for model in models[:LOOKED_AT]]
    assert state.alarms.next_ns() == PASSED_OVER_NS, "it is asked again then"
    assert wishes.next_load(PASSED_OVER_NS - 1, never) is None
    assert len(asked) == LOOKED_AT, "not before"
    plan = wishes.next_load(PASSED_OVER_NS, always)
    assert plan is not None
    assert plan.placement.model is models[0]


def test_a_load_is_judged_by_when_its_weights_would_be_there() -> None:
    state, (model,) = cluster(models=1, workers=1)
    wishes = OrderedLoads(state, evicts=True)
    wishes.wish(model, 1)
    seen: list[int] = []

    def note(placement: Placement, ready_ns: int) -> bool:
        seen.append(ready_ns)
        return True

    wishes.next_load(10 * MS, note)
    assert seen == [10 * MS + state.ns.dispatch_delay + 8 * MS]
