"""Operators' wishes: what each does, when it is refused, and that no policy works around it."""

import heapq
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.messages.actions import Action, Infer, Load, Prepare, Release, Result, Unload
from mainspring.messages.codes import Reason, Status
from mainspring.messages.commands import Command, DropWorker, Reject
from mainspring.messages.events import ModelAdded, OperatorAsked, RequestArrived, WorkerJoined, WorkerLeft
from mainspring.messages.operating import (
    DrainWorker,
    LoadOn,
    PinModel,
    ResumeWorker,
    UnloadFrom,
    UnpinModel,
    Wish,
)
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.core import Scheduler
from mainspring.scheduler.policies.registry import policy_names
from tests.scheduler.hand import MS, Hand, reasons, spec


def ask(hand: Hand, now_ms: float, wish: Wish) -> list[Command]:
    assert hand.scheduler.refusal(wish) is None
    return hand.feed(now_ms, OperatorAsked("ann", wish))


def refusal(hand: Hand, wish: Wish) -> str:
    found = hand.scheduler.refusal(wish)
    assert found is not None
    return found


def test_a_drained_worker_finishes_what_it_has_and_gets_nothing_more() -> None:
    hand = Hand(spec("m"))
    hand.warm("m")
    (infer,) = hand.request(20, 1, "m", 100)
    assert ask(hand, 21, DrainWorker("w0")) == []
    assert reasons(hand.request(22, 2, "m", 100)) == [Reason.NO_WORKER]
    assert hand.ok(24, infer) == []
    assert ask(hand, 30, ResumeWorker("w0")) == []
    assert isinstance(hand.request(31, 3, "m", 100)[0], Infer), "its memory is as it was"


def test_what_waits_goes_to_another_worker_once_its_own_is_drained() -> None:
    hand = Hand(spec("m"), workers=2)
    hand.warm("m")
    holder = hand.scheduler.status().models[0].resident_on[0]
    ask(hand, 30, DrainWorker(holder))
    (load,) = hand.request(31, 1, "m", 100)
    assert isinstance(load, Load)
    assert load.worker != holder


def test_a_drained_worker_that_comes_back_is_still_drained() -> None:
    hand = Hand(spec("m"))
    ask(hand, 1, DrainWorker("w0"))
    hand.feed(2, WorkerLeft("w0", "gone"))
    assert hand.feed(3, WorkerJoined("w0", "gpu", 8)) == []
    assert [type(each) for each in ask(hand, 4, ResumeWorker("w0"))] == [Prepare]


def test_a_pinned_model_is_loaded_and_never_evicted() -> None:
    hand = Hand(spec("pinned"), *[spec(f"m{i}") for i in range(3)], pages=2)
    (load,) = ask(hand, 1, PinModel("pinned"))
    assert isinstance(load, Load)
    hand.ok(10, load)
    for number, now_ms in enumerate(range(20, 220, 50)):
        commands = hand.request(now_ms, number, f"m{number % 3}", 45)
        evicted = [each.model for each in commands if isinstance(each, Unload)]
        assert "pinned" not in evicted
        for each in commands:
            if isinstance(each, Unload):
                hand.ok(now_ms, each)
        (load,) = [each for each in commands if isinstance(each, Load)]
        (infer,) = [each for each in hand.ok(now_ms + 9, load) if isinstance(each, Infer)]
        hand.ok(now_ms + 14, infer)
    assert "pinned" in {model.name for model in hand.scheduler.status().models if model.resident_on}
    assert refusal(hand, UnloadFrom("pinned")) == "'pinned' is pinned; unpin it first"
    assert ask(hand, 300, UnpinModel("pinned")) == []
    assert isinstance(ask(hand, 301, UnloadFrom("pinned"))[0], Unload)


def test_a_pinned_model_is_loaded_anew_where_its_worker_left() -> None:
    hand = Hand(spec("pinned"), workers=2)
    (load,) = ask(hand, 1, PinModel("pinned"))
    assert isinstance(load, Load)
    hand.ok(10, load)
    (again,) = hand.feed(20, WorkerLeft(load.worker, "gone"))
    assert isinstance(again, Load)
    assert again.worker != load.worker


def test_loading_and_unloading_by_hand() -> None:
    hand = Hand(spec("m", pages=2), spec("big", pages=9), workers=2)
    (load,) = ask(hand, 1, LoadOn("m", "w1"))
    assert isinstance(load, Load)
    assert (load.model, load.worker) == ("m", "w1")
    hand.ok(10, load)
    assert refusal(hand, LoadOn("m", "w1")) == "'m' is resident on w1 already"
    assert [each.worker for each in ask(hand, 11, LoadOn("m")) if isinstance(each, Load)] == ["w0"]
    assert refusal(hand, LoadOn("m")) == "'m' is resident, or loading, on every worker"
    assert refusal(hand, LoadOn("big", "w0")) == "'big' needs 9 pages and w0 has 8"
    (infer,) = [each for each in hand.request(12, 1, "m", 100) if isinstance(each, Infer)]
    assert "1 INFERs of 'm' outstanding; ask again" in refusal(hand, UnloadFrom("m", infer.worker))
    hand.ok(16, infer)
    (unload,) = ask(hand, 17, UnloadFrom("m", "w1"))
    assert isinstance(unload, Unload)
    assert unload.worker == "w1"
    assert refusal(hand, UnloadFrom("m", "w1")) == "'m' is not resident on w1"


def test_wishes_that_make_no_sense_are_refused_with_what_is_there() -> None:
    hand = Hand(spec("m"), spec("half", pages=5))
    assert refusal(hand, DrainWorker("w7")) == "there is no worker 'w7'; connected are w0"
    assert refusal(hand, ResumeWorker("w0")) == "'w0' is not drained"
    assert refusal(hand, LoadOn("nobody")) == "there is no model 'nobody'"
    assert refusal(hand, UnpinModel("m")) == "'m' is not pinned"
    assert "5 pages, and 4 is the most" in refusal(hand, PinModel("half"))


WISHES = (
    DrainWorker("w0"),
    DrainWorker("w1"),
    ResumeWorker("w0"),
    ResumeWorker("w1"),
    PinModel("m0"),
    PinModel("m1"),
    UnpinModel("m0"),
    LoadOn("m2"),
    LoadOn("m3", "w1"),
    UnloadFrom("m1"),
    UnloadFrom("m3", "w0"),
)


class Played:
    """A scheduler whose workers do everything as predicted, under requests and wishes of a seed."""

    def __init__(self, policy: str, seed: int) -> None:
        self.scheduler = Scheduler(SchedulerConfig(policy=policy, idle_loads=True))
        self.drained: set[str] = set()
        self.answers: dict[int, int] = {}
        self._ends: list[tuple[int, int, Action]] = []
        self._last_end_ns: dict[tuple[str, str], int] = {}
        self._random = random.Random(seed)

    def step(self, now_ns: int, event: object) -> None:
        self.scheduler.handle(now_ns, event)  # type: ignore[arg-type]
        for command in self.scheduler.schedule(now_ns):
            self.take(now_ns, command)
        self.scheduler.validate()

    def take(self, now_ns: int, command: Command) -> None:
        assert not isinstance(command, DropWorker), command
        if isinstance(command, Reject):
            self.answers[command.request_id] = self.answers.get(command.request_id, 0) + 1
            return
        if not isinstance(command, Unload | Release):
            assert command.worker not in self.drained, f"{command} though the worker is drained"
        end_ns = now_ns
        if isinstance(command, Infer | Load):
            key = command.worker, type(command).__name__
            begin_ns = max(self._last_end_ns.get(key, 0), command.predicted_begin_ns)
            end_ns = self._last_end_ns[key] = begin_ns + command.predicted_duration_ns
        heapq.heappush(self._ends, (end_ns, command.action_id, command))

    def let_end(self, until_ns: int) -> None:
        while self._ends and self._ends[0][0] <= until_ns:
            end_ns, action_id, action = heapq.heappop(self._ends)
            begin_ns = end_ns
            if isinstance(action, Infer | Load):
                begin_ns = end_ns - action.predicted_duration_ns
            if isinstance(action, Infer):
                for request_id in action.request_ids:
                    self.answers[request_id] = self.answers.get(request_id, 0) + 1
            self.step(end_ns, Result(action_id, action.worker, Status.OK, begin_ns, end_ns))

    def run(self) -> None:
        for number in range(6):
            self.step(0, ModelAdded(spec(f"m{number}", pages=1 + number % 2)))
        for number in range(2):
            self.step(0, WorkerJoined(f"w{number}", "gpu", 6))
        now_ns = 0
        for request_id in range(150):
            now_ns += self._random.randrange(4 * MS)
            self.let_end(now_ns)
            if self._random.random() < 0.2:
                self._operate(now_ns, self._random.choice(WISHES))
            deadline_ns = self._random.choice((None, now_ns + self._random.randrange(1, 80) * MS))
            model = f"m{min(self._random.randrange(6), self._random.randrange(6))}"
            self.step(now_ns, RequestArrived(request_id, model, 1, deadline_ns))
        for name in list(self.drained):
            self._operate(now_ns, ResumeWorker(name))
        self._finish(now_ns)

    def _operate(self, now_ns: int, wish: Wish) -> None:
        if self.scheduler.refusal(wish) is not None:
            return
        if isinstance(wish, DrainWorker):
            self.drained.add(wish.worker)
        if isinstance(wish, ResumeWorker):
            self.drained.discard(wish.worker)
        self.step(now_ns, OperatorAsked("ann", wish))

    def _finish(self, now_ns: int) -> None:
        until_ns = now_ns + 60_000 * MS
        while now_ns < until_ns and len(self.answers) < 150:
            wakeup_ns = self.scheduler.next_wakeup_ns()
            end_ns = self._ends[0][0] if self._ends else until_ns
            now_ns = min(end_ns, max(now_ns, wakeup_ns if wakeup_ns is not None else until_ns))
            self.let_end(now_ns)
            for command in self.scheduler.schedule(now_ns):
                self.take(now_ns, command)
            now_ns += 1


@pytest.mark.parametrize("policy", policy_names())
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_no_policy_works_around_an_operator(policy: str, seed: int) -> None:
    played = Played(policy, seed)
    played.run()
    assert played.answers == dict.fromkeys(range(150), 1), "every request has exactly one answer"
