"""The ready queue: a choice finds the lowest key of all models by lower bounds, in any order of events."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mainspring.cluster.models import Model
from mainspring.cluster.placements import Placement, State
from mainspring.cluster.workers import Worker
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.placing import LoadPlan
from mainspring.scheduler.policies.notes import worker_note
from mainspring.scheduler.policies.options import NoOptions
from mainspring.scheduler.policies.ready_queue import PUT_OFF, SWEPT_FROM, ReadyQueuePolicy
from mainspring.scheduler.state import SchedulerState
from tests.cluster import made
from tests.scheduler.hand import MS, spec

MODELS = 5


class ByHand(ReadyQueuePolicy):
    """Keys, and what each model could run, as the test says."""

    name = "by-hand"

    def __init__(self) -> None:
        super().__init__(SchedulerState(SchedulerConfig()), NoOptions())
        self.true_key = dict.fromkeys(range(1, MODELS + 1), 0)
        self.slack = dict.fromkeys(range(1, MODELS + 1), 0)
        """By how much the bound is below the key."""
        self.unable: set[int] = set()
        self.put_off: set[int] = set()
        self.asked: list[int] = []
        self.worker = Worker("w0", 1, "gpu", 64)
        self.state.cluster.workers["w0"] = self.worker
        for number in self.true_key:
            model = Model(spec(f"m{number}"), number)
            self.state.cluster.models[model.name] = model
            self.state.cluster.place(model, self.worker).make_up(State.RESIDENT)
            model.queue.add(made.request(number, model, 1, 0, 100 * MS))

    def placement(self, number: int) -> Placement:
        return self.worker.placements[f"m{number}"]

    def key(self, placement: Placement) -> int:
        return self.true_key[placement.model.number] - self.slack[placement.model.number]

    def candidate(
        self, now_ns: int, placement: Placement, available_ns: int, inputs_ns: int
    ) -> tuple[int, int, int] | None:
        number = placement.model.number
        self.asked.append(number)
        if number in self.put_off:
            return PUT_OFF
        return None if number in self.unable else (self.true_key[number], 0, 0)

    def next_load(self, now_ns: int) -> LoadPlan | None:
        return None

    def choose(self) -> int | None:
        """Return the number of the model whose batch is chosen."""
        self.asked.clear()
        batch = self.next_batch(0, self.worker, 0)
        return None if batch is None else batch.placement.model.number

    def offer_everything(self) -> None:
        for number in self.true_key:
            self.offer(self.placement(number))


numbers = st.sets(st.integers(1, MODELS))
tables = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)), min_size=MODELS, max_size=MODELS)


@given(st.lists(st.tuples(tables, numbers, numbers, numbers), min_size=1, max_size=5))
def test_the_choice_is_the_lowest_key_of_the_models_that_can_run_a_batch(
    rounds: list[tuple[list[tuple[int, int]], set[int], set[int], set[int]]],
) -> None:
    """Keys only fall between choices: a bound that was entered before must stay one."""
    policy = ByHand()
    policy.true_key = dict.fromkeys(policy.true_key, 1000)
    for table, unable, put_off, gone in rounds:
        for number, (less, slack) in enumerate(table, 1):
            policy.true_key[number] -= less
            policy.slack[number] = slack
            state = State.PREPARED if number in gone else State.RESIDENT
            policy.placement(number).make_up(state)
            policy.residency_changed(0, policy.placement(number))
        policy.unable, policy.put_off = unable, put_off - unable
        policy.offer_everything()
        able = [(key, n) for n, key in policy.true_key.items() if n not in unable | put_off | gone]
        assert policy.choose() == (min(able)[1] if able else None)


def test_no_model_is_looked_at_whose_bound_is_above_the_best_key() -> None:
    policy = ByHand()
    policy.true_key = {1: 50, 2: 10, 3: 40, 4: 12, 5: 9}
    policy.slack = {1: 0, 2: 5, 3: 35, 4: 1, 5: 0}
    policy.offer_everything()
    assert policy.choose() == 5
    assert sorted(policy.asked) == [2, 3, 5]


def test_what_is_put_off_comes_up_again_only_once_it_is_offered() -> None:
    policy = ByHand()
    policy.true_key = {1: 1, 2: 2, 3: 3, 4: 4, 5: 5}
    policy.put_off = {1}
    policy.offer_everything()
    assert policy.choose() == 2
    assert policy.asked == [1, 2]
    policy.put_off = set()
    assert policy.choose() == 2
    assert policy.asked == [2]
    policy.offer(policy.placement(1))
    assert policy.choose() == 1


def test_what_can_run_nothing_now_comes_up_again_by_itself() -> None:
    policy = ByHand()
    policy.true_key = {1: 1, 2: 2, 3: 3, 4: 4, 5: 5}
    policy.unable = {1}
    policy.offer_everything()
    assert policy.choose() == 2
    policy.unable = set()
    assert policy.choose() == 1


def test_the_heap_is_bounded_however_often_keys_fall() -> None:
    policy = ByHand()
    for fallen in range(1000):
        policy.true_key = dict.fromkeys(policy.true_key, -fallen)
        policy.offer_everything()
        assert len(worker_note(policy.worker).ready.entries) <= 2 * MODELS + SWEPT_FROM + 1
    model: Model = policy.placement(1).model
    model.queue.clear()
    assert policy.choose() == 2, "nothing waits for the first model any more"
