"""What the policy `mainspring` runs, and when."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mainspring.cluster.residency import at
from mainspring.messages.actions import Command, Infer, Load, Reject, Unload
from mainspring.messages.codes import Reason, Status
from mainspring.messages.events import Event, OperatorAsked, RequestArrived, Wakeup
from mainspring.messages.model import PAGE_BYTES, ModelSpec, Profile, TensorSpec
from mainspring.messages.operating import DrainWorker
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.policies.base import Batch
from mainspring.scheduler.policies.mainspring.constants import CAPACITY_DOUBT, LONGEST_DELAY_NS, SHORT_QUEUE
from mainspring.scheduler.policies.mainspring.policy import Mainspring, held_until_ns
from mainspring.scheduler.policies.notes import model_note
from mainspring.scheduler.policies.ready_queue import ReadyQueuePolicy
from mainspring.scheduler.policies.registry import make_policy
from mainspring.scheduler.state import SchedulerState
from mainspring.simulator.scenario import random_scenario, run_to_end
from tests.scheduler.hand import MS, Hand, reasons, spec
from tests.scheduler.policies.warm import Warm

CONFIG = SchedulerConfig(policy="mainspring", dispatch_delay_ms=0.2, response_margin_ms=0.0)


def model(name: str, infer_ms: dict[int, float]) -> ModelSpec:
    infer_ns = {size: round(ms * MS) for size, ms in infer_ms.items()}
    tensor = (TensorSpec("x", "float32", (4,)),)
    profile = Profile(infer_ns, 8 * MS)
    sizes = tuple(infer_ns)
    return ModelSpec(name, name, name, sizes, PAGE_BYTES, (1,), tensor, tensor, {"gpu": profile})


USUAL = {1: 2.0, 2: 3.0, 4: 4.0, 8: 6.0}


def policy_of(warm: Warm) -> Mainspring:
    policy = warm.scheduler._policy
    assert isinstance(policy, Mainspring)
    return policy


def begun(sent: list[tuple[float, Infer]]) -> list[tuple[str, int]]:
    return [(action.model, len(action.request_ids)) for _, action in sent]


class Watch:
    """Checks that no INFER is predicted to end after a request of it is due."""

    def __init__(self) -> None:
        self.deadlines: dict[int, int | None] = {}
        self.infers = 0

    def __call__(self, now_ns: int, message: Event | Command) -> None:
        if isinstance(message, RequestArrived):
            self.deadlines[message.request_id] = message.deadline_ns
        if isinstance(message, Infer):
            self.infers += 1
            end_ns = message.predicted_begin_ns + message.predicted_duration_ns
            for request_id in message.request_ids:
                deadline_ns = self.deadlines[request_id]
                assert deadline_ns is None or end_ns <= deadline_ns, f"{message} ends too late"


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
@example(seed=5505)  # A batch is cut at a suspect while an outlier stands as the smaller size's estimate.
@example(seed=255)  # Unlike kinds share a model, one size's inputs are expected later than a larger one's.
def test_nothing_is_dispatched_that_can_not_end_in_time(seed: int) -> None:
    watch = Watch()
    simulation = random_scenario(seed, policy="mainspring", length_ns=500 * MS, record=watch)
    run_to_end(simulation, 500 * MS)
    simulation.validate()


waits = st.tuples(st.integers(0, 3), st.integers(2, 60), st.integers(1, 4))
"""(model, SLO in ms, rows)"""


@settings(max_examples=60, deadline=None)
@given(
    st.lists(waits, min_size=1, max_size=30),
    st.lists(st.floats(0, 3), min_size=4, max_size=4),
    st.booleans(),
)
def test_the_index_finds_what_a_search_of_all_models_finds(
    requests: list[tuple[int, int, int]], boosts: list[float], pads: bool
) -> None:
    """The heap gives the candidate of the lowest rank among all models that a worker holds."""
    tables = [USUAL, {1: 1.0, 4: 2.0}, {1: 7.0, 2: 8.0, 8: 20.0}, {2: 3.0, 4: 5.0}]
    specs = [model(f"m{number}", table) for number, table in enumerate(tables)]
    config = SchedulerConfig(policy="mainspring", response_margin_ms=0.0, pad_batches=pads)
    warm = Warm(config, specs)
    policy = policy_of(warm)
    state = warm.scheduler._state
    worker = state.cluster.workers["w0"]
    for number, boost in enumerate(boosts):
        model_note(state.cluster.models[f"m{number}"]).boost = boost
    for id_, (number, slo_ms, rows) in enumerate(requests, 1):
        warm.scheduler.handle(0, RequestArrived(id_, f"m{number}", rows, slo_ms * MS))
    available_ns = state.soonest_ns(0) + 5 * MS
    inputs_ns = worker.exec.inputs_at_ns(state.soonest_ns(0), 0)
    candidates = []
    for placement in worker.placements.values():
        if placement.model.queue:
            found = policy.candidate(0, placement, available_ns, inputs_ns)
            if found is not None:
                candidates.append((found[0], placement.model.number, found[1]))
    batch = ReadyQueuePolicy.next_batch(policy, 0, worker, available_ns)
    assert (batch is None) == (not candidates)
    if batch is not None:
        _, number, size_index = min(candidates)
        assert (batch.placement.model.number, batch.size_index) == (number, size_index)
        end_ns = available_ns + batch.placement.times.ns[size_index]
        assert all(request.due_ns is not None and request.due_ns >= end_ns for request in batch.requests)
        assert sum(request.rows for request in batch.requests) <= batch.placement.times.sizes[size_index]
        again = ReadyQueuePolicy.next_batch(policy, 0, worker, available_ns)
        assert again is not None
        assert again.requests == batch.requests


@pytest.mark.parametrize(("missed", "goes_first"), [(0, ("few", 1)), (200, ("many", 8))])
def test_the_denser_batch_goes_first_once_requests_are_dropped(
    missed: int, goes_first: tuple[str, int]
) -> None:
    """Both could wait: while everybody can be served, who is due first goes first."""
    warm = Warm(CONFIG, [model("few", USUAL), model("many", USUAL), model("other", USUAL)])
    policy = policy_of(warm)
    for _ in range(missed):
        policy.refused(0, warm.scheduler._state.cluster.models["other"], 1)
    ((_, first),) = warm.ask(0, "few", 100)
    warm.ask(0.1, "few", 40)
    warm.ask(0.1, "many", 50, count=8)
    assert begun(warm.end(2.2, first)) == [goes_first]


def test_a_batch_that_must_start_goes_before_a_denser_one() -> None:
    warm = Warm(CONFIG, [model("few", USUAL), model("many", USUAL)])
    ((_, first),) = warm.ask(0, "few", 100)
    warm.ask(0.1, "few", 8)
    warm.ask(0.1, "many", 300, count=8)
    assert begun(warm.end(2.2, first))[0] == ("few", 1)


def test_a_head_that_is_too_late_for_the_dense_batch_does_not_cut_it() -> None:
    """The head can only be served alone; the others can wait for it, and fill a batch without it."""
    warm = Warm(CONFIG, [model("m", USUAL)])
    ((_, first),) = warm.ask(0, "m", 100)
    warm.ask(0.1, "m", 5)
    warm.ask(0.1, "m", 50, count=8)
    ((_, alone),) = warm.end(2.2, first)
    assert alone.request_ids == (2,)
    ((_, infer),) = warm.end(4.2, alone)
    assert len(infer.request_ids) == 8


def test_batches_are_padded_where_that_serves_more_for_each_millisecond() -> None:
    warm = Warm(CONFIG, [model("m", {1: 2.0, 2: 3.9, 8: 4.0})])
    ((_, first),) = warm.ask(0, "m", 100)
    warm.ask(0.1, "m", 50, count=5)
    ((_, infer),) = warm.end(2.2, first)
    assert (infer.batch_size, len(infer.request_ids)) == (8, 5)


def test_the_next_action_is_decided_as_late_as_its_way_allows() -> None:
    near = Mainspring.complete(SchedulerConfig(dispatch_delay_ms=0.05))
    far = Mainspring.complete(SchedulerConfig(dispatch_delay_ms=1.0))
    own = Mainspring.complete(SchedulerConfig(dispatch_delay_ms=1.0, lookahead_ms=4.0))
    assert near.lookahead_ms == 0.5
    assert far.lookahead_ms == pytest.approx(2.3)
    assert own.lookahead_ms == 4.0


@pytest.mark.parametrize("fairness", [-0.1, 1.1, math.nan])
def test_fairness_is_from_0_to_1(fairness: float) -> None:
    config = SchedulerConfig(policy="mainspring", policy_options={"fairness": fairness})
    with pytest.raises(ValueError, match="fairness"):
        make_policy("mainspring", SchedulerState(config))


@settings(deadline=None)
@given(
    rows=st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8]),
    slack_ms=st.integers(0, 2_000).map(lambda tenths: tenths / 10),
    utilisation=st.integers(70, 120).map(lambda percent: percent / 100),
    waiting=st.sampled_from([1, 2, 3]),
)
def test_waiting_costs_no_request_its_deadline(
    rows: int, slack_ms: float, utilisation: float, waiting: int
) -> None:
    """What is held can still be served in the next larger size when the wait ends."""
    warm = Warm(CONFIG, [model("m", USUAL)], workers=2)
    state = warm.scheduler._state
    now_ns = 1000 * MS
    placement = at(state.cluster, state.cluster.models["m"], state.cluster.workers["w0"])
    index = placement.times.index_for(rows)
    due_ns = now_ns + 2 * MS + placement.times.ns[index] + round(slack_ms * MS)
    for id_ in range(rows):
        warm.scheduler.handle(now_ns, RequestArrived(id_ + 1, "m", 1, due_ns))
    requests = placement.model.queue.fill(0, rows)
    until_ns = held_until_ns(Batch(placement, index, requests), now_ns, waiting, utilisation)
    if until_ns is None:
        return
    assert utilisation > 0.8
    assert waiting <= 2
    assert now_ns < until_ns <= now_ns + LONGEST_DELAY_NS
    larger = index + (rows == placement.times.sizes[index])
    assert until_ns + placement.times.ns[larger] <= due_ns


def test_a_held_executor_runs_nothing_without_a_deadline_meanwhile() -> None:
    hand = Hand(spec("a"), spec("b"), policy="mainspring")  # type: ignore[arg-type]
    hand.warm("a")
    hand.warm("b", 20)
    worker = hand.scheduler._state.cluster.workers["w0"]
    hand.scheduler._state.hold(110 * MS, worker)
    assert not [c for c in hand.request(100, 7, "b", None) if isinstance(c, Infer)]
    assert [c for c in hand.feed(110, RequestArrived(8, "a", 1, 200 * MS)) if isinstance(c, Infer)]


def test_a_best_effort_request_is_served_on_an_idle_cluster_however_rare_its_model_is() -> None:
    config = {"policy": "mainspring"}
    hand = Hand(spec("popular", pages=2), spec("rare", pages=7), pages=8, **config)  # type: ignore[arg-type]
    (load,) = hand.request(1, 1, "popular", 100)
    (infer,) = [each for each in hand.ok(10, load) if isinstance(each, Infer)]
    hand.ok(15, infer)
    for request_id in range(2, 40):
        (again,) = hand.request(20 * request_id, request_id, "popular", 100)
        hand.ok(20 * request_id + 5, again)
    assert hand.request(800, 100, "rare", None) == []
    came: list[Command] = []
    now_ms = 800
    while not came and now_ms < 4_000:
        now_ms += 100
        came = hand.feed(now_ms, Wakeup())
    assert [type(each) for each in came] == [Unload, Load]


@pytest.mark.parametrize("policy", ["mainspring", "clockwork", "edf", "symphony", "nexus"])
def test_a_batch_that_cannot_be_in_time_yet_runs_if_the_executor_is_free_early(policy: str) -> None:
    """Behind the predicted end of ``first`` it could not be in time, but that ends a millisecond earlier."""
    config = SchedulerConfig(policy=policy, response_margin_ms=0.0, lookahead_ms=1.3)
    each = [model(name, {1: ms}) for name, ms in (("busy", 4.0), ("first", 10.0), ("late", 4.0))]
    warm = Warm(config, each)
    ((_, busy),) = warm.ask(100, "busy", 50)
    assert warm.ask(101, "first", 14) + warm.ask(101, "late", 16.6) == []
    ((_, first),) = warm.end(104, busy)
    assert first.model == "first"
    assert warm.until(112.9) == [], "behind the predicted end it would be late"
    assert begun(warm.end(113, first)) == [("late", 1)]


def test_what_fails_after_its_dispatch_counts_as_missed_and_not_as_answered() -> None:
    hand = Hand(spec("m"), policy="mainspring")  # type: ignore[arg-type]
    hand.warm("m")
    policy = hand.scheduler._policy
    assert isinstance(policy, Mainspring)
    for id_ in range(20):
        now_ms = 100 * (id_ + 1)
        sent = hand.request(now_ms, id_, "m", 20)
        while infers := [command for command in sent if isinstance(command, Infer)]:
            now_ms += 5
            sent = hand.end(now_ms, infers[0], Status.TOO_LATE)
        assert reasons(sent) == [Reason.DEADLINE_PASSED]
    assert policy._fairness.dropped > 0.03, "each of 20 missed, though some were sent several times"


def test_an_answer_that_comes_late_counts_as_missed() -> None:
    hand = Hand(spec("m"), policy="mainspring")  # type: ignore[arg-type]
    hand.warm("m")
    policy = hand.scheduler._policy
    assert isinstance(policy, Mainspring)
    (infer,) = hand.request(100, 1, "m", 20)
    hand.ok(110, infer)
    assert policy._fairness.dropped == 0.0
    (infer,) = hand.request(200, 2, "m", 20)
    hand.ok(221, infer)
    assert policy._fairness.dropped > 0.0


def test_the_time_of_drained_workers_is_not_counted_as_idle() -> None:
    hand = Hand(spec("m"), workers=2, policy="mainspring")  # type: ignore[arg-type]
    hand.warm("m")
    policy = hand.scheduler._policy
    assert isinstance(policy, Mainspring)
    hand.request(30, 1, "m", 100)
    both = policy._utilisation.share(30 * MS)
    (holder,) = hand.scheduler.status().models[0].resident_on
    hand.feed(30, OperatorAsked("ann", DrainWorker({"w0": "w1", "w1": "w0"}[holder])))
    assert policy._utilisation.share(30 * MS) == pytest.approx(2 * both)


ROW_MS = 2.5
"""What a row of `spec("m")` takes in the best batch: 10 ms for four."""


def crowded(count: int, slo_ms: float, workers: int = 1, gap_ms: float = 0.0) -> tuple[Hand, list[Command]]:
    """Return a cluster whose devices hold the model, and what becomes of that number of requests at once."""
    hand = Hand(spec("m"), workers=workers, policy="mainspring")  # type: ignore[arg-type]
    hand.warm("m")
    commands: list[Command] = []
    for number in range(count):
        commands += hand.request(100 + number * gap_ms, number, "m", slo_ms - number * gap_ms)
    return hand, commands


def played(hand: Hand, commands: list[Command], until_ms: float) -> tuple[dict[int, float], set[int]]:
    """Let each INFER take what is predicted; return when each request was refused, and who was answered."""
    refused: dict[int, float] = {}
    answered: set[int] = set()
    ends: list[tuple[float, Infer]] = []
    now_ms = 100.0
    while True:
        for command in commands:
            if isinstance(command, Reject):
                assert command.request_id not in refused
                refused[command.request_id] = now_ms
            elif isinstance(command, Infer):
                begin_ns = max(command.predicted_begin_ns, int(now_ms * MS))
                ends.append(((begin_ns + command.predicted_duration_ns) / MS, command))
        ends.sort(key=lambda end: (end[0], end[1].action_id))
        wakeup_ns = hand.scheduler.next_wakeup_ns()
        next_ms = until_ms if wakeup_ns is None else max(now_ms, wakeup_ns / MS)
        if ends and ends[0][0] <= next_ms:
            now_ms, infer = ends.pop(0)
            answered.update(infer.request_ids)
            commands = hand.ok(now_ms, infer)
        elif next_ms < until_ms:
            now_ms = next_ms
            commands = hand.scheduler.schedule(wakeup_ns or 0)
            hand.scheduler.validate()
        else:
            return refused, answered


def test_a_crowd_is_refused_bit_by_bit_and_not_at_its_deadline() -> None:
    hand, commands = crowded(400, 500)
    refused, answered = played(hand, commands, 700)
    assert len(refused) + len(answered) == 400
    assert not set(refused) & answered
    last_ms = 600 - ROW_MS * SHORT_QUEUE
    early = [at_ms for at_ms in refused.values() if at_ms < last_ms]
    assert len(early) >= len(refused) - CAPACITY_DOUBT * SHORT_QUEUE
    at_once = max(sum(at_ms <= each < at_ms + 5 for each in early if each > 100) for at_ms in early)
    assert at_once <= 2 * CAPACITY_DOUBT * 5 / ROW_MS, "not much faster than they could be answered"


def test_what_is_refused_would_not_have_been_answered_in_its_place() -> None:
    hand, commands = crowded(400, 500)
    _, answered = played(hand, commands, 700)
    assert len(answered) >= int(500 / 10) * 4 - 8, "as many as the device can do"


def test_the_last_in_the_queue_are_refused_first() -> None:
    hand, commands = crowded(400, 500)
    refused, answered = played(hand, commands, 700)
    assert max(answered) < min(each for each, at_ms in refused.items() if at_ms < 400)


def test_what_twice_the_capacity_could_serve_is_kept() -> None:
    count = int(CAPACITY_DOUBT * 500 / ROW_MS)
    _, commands = crowded(count - 1, 500)
    assert not [each for each in commands if isinstance(each, Reject)]
    _, commands = crowded(2 * count, 500)
    refused = [each.request_id for each in commands if isinstance(each, Reject)]
    assert min(refused) >= count


def test_more_workers_keep_more_though_none_of_them_has_loaded_the_model() -> None:
    _, alone = crowded(600, 500)
    _, together = crowded(600, 500, workers=2)
    assert [each for each in alone if isinstance(each, Reject)]
    assert not [each for each in together if isinstance(each, Reject)]


def test_a_refusal_says_how_many_are_before_it() -> None:
    _, commands = crowded(600, 500)
    refusal = next(each for each in commands if isinstance(each, Reject))
    assert "twice as many as could be served by its deadline wait before it" in refusal.detail
    assert refusal.earliest_finish_ns is None, "when it could have been answered is not known"


@settings(max_examples=20, deadline=None)
@given(count=st.integers(1, 60), slo_ms=st.integers(20, 300), workers=st.integers(1, 3))
def test_each_has_one_outcome(count: int, slo_ms: int, workers: int) -> None:
    hand, commands = crowded(count, slo_ms, workers, gap_ms=0.1)
    refused, answered = played(hand, commands, 100 + slo_ms + 200)
    assert set(refused) | answered == set(range(count))
    assert not set(refused) & answered
