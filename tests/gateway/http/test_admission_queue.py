"""Which requests are worked off at once, which later, and which are refused: with a clock of the test's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic_ns

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from mainspring.gateway.http import admission_queue
from mainspring.gateway.http.admission_queue import ALERT_NS, SHARE_NS, STANDING_NS, AdmissionQueue
from mainspring.gateway.http.exchange import Exchange
from mainspring.messages.codes import Reason

MS = 1_000_000
LIMIT_NS = 10 * MS
WORK_NS = SHARE_NS // 4
"""What it takes to work a request off here."""


class Stage:
    """An inlet, a loop whose turns the test makes, and a clock that only work moves."""

    triton = False

    def __init__(self) -> None:
        self.now_ns = 1_000 * MS
        self.turn_ns = self.now_ns
        self.soon: list[Callable[[], None]] = []
        self.done: list[Exchange] = []
        self.shed: list[Exchange] = []
        self.most_ns = 0
        self.inlet = AdmissionQueue(self._work, LIMIT_NS, self._on_shed)

    # What the inlet asks of the loop and of its clock.

    def spent_ns(self, now_ns: int) -> int:
        return now_ns - self.turn_ns

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    # What the inlet does with requests.

    def replied(self, exchange: Exchange) -> None:
        """The exchange's sender hears of its reply."""

    def _work(self, exchange: Exchange) -> None:
        self.now_ns += WORK_NS
        self.done.append(exchange)

    def _on_shed(self, exchange: Exchange, reason: Reason) -> None:
        assert reason is Reason.OVERLOADED
        self.shed.append(exchange)

    # What the test does.

    def come(self, count: int) -> list[Exchange]:
        came = [Exchange(self, b"POST", b"/", {}, self.now_ns) for _ in range(count)]
        for exchange in came:
            self.inlet.take(exchange)
        return came

    def turn(self, passed_ns: int = 0) -> None:
        self.now_ns += passed_ns
        self.turn_ns = began_ns = self.now_ns
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()
        self.most_ns = max(self.most_ns, self.now_ns - began_ns)

    def settle(self) -> None:
        while self.soon:
            self.turn()


def set_up(patch: pytest.MonkeyPatch) -> Stage:
    stage = Stage.__new__(Stage)
    patch.setattr(asyncio, "get_running_loop", lambda: stage)
    patch.setattr(admission_queue, "TurnClock", lambda: stage)
    patch.setattr(admission_queue, "monotonic_ns", lambda: stage.now_ns)
    stage.__init__()  # type: ignore[misc]
    return stage


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return set_up(monkeypatch)


def test_a_request_alone_is_worked_off_at_once(stage: Stage) -> None:
    came = stage.come(1)
    assert stage.done == came
    assert not stage.soon


def test_new_requests_have_a_share_of_a_turn_and_keep_their_order(stage: Stage) -> None:
    came = stage.come(20)
    assert stage.done == came[: SHARE_NS // WORK_NS]
    stage.settle()
    assert stage.done == came
    assert stage.most_ns <= SHARE_NS


def test_a_burst_alone_is_worked_off_whole(stage: Stage) -> None:
    came = stage.come(STANDING_NS // WORK_NS)
    stage.settle()
    assert stage.done == came
    assert not stage.shed


def overload(stage: Stage, turns: int, came_each: int) -> list[Exchange]:
    """In each turn more comes than its share works off."""
    came = []
    for _ in range(turns):
        came += stage.come(came_each)
        stage.turn(WORK_NS)
    return came


def test_a_wait_that_stands_has_the_oldest_refused_and_the_rest_soon_worked_off(stage: Stage) -> None:
    overload(stage, 400, 8)
    assert stage.shed
    assert all(each.reply_parts is not None and b" 503 " in each.reply_parts[0] for each in stage.shed)
    stage.done.clear()
    latest = overload(stage, 50, 8)
    served = [each for each in latest if each in stage.done]
    assert len(served) > len(latest) / 4, "to refuse must not be all that is done"
    stage.settle()
    ended = {*map(id, stage.done), *map(id, stage.shed)}
    assert ended >= set(map(id, latest))


def test_after_a_refusal_it_waits_less_long_with_the_next_and_forgets_that(stage: Stage) -> None:
    overload(stage, 400, 8)
    stage.settle()
    before = len(stage.shed)
    stage.come(4 * LIMIT_NS // WORK_NS)
    stage.settle()
    assert len(stage.shed) > before, "the next burst meets a gateway on its guard"
    before = len(stage.shed)
    stage.turn(2 * ALERT_NS)
    stage.come(4 * LIMIT_NS // WORK_NS)
    stage.settle()
    assert len(stage.shed) == before, "which it is not for ever"


def test_a_client_that_left_costs_nothing(stage: Stage) -> None:
    came = stage.come(20)
    for exchange in came[10:]:
        exchange.abandoned = True
    stage.settle()
    assert stage.done == came[:10]
    assert not stage.shed


def test_work_that_fails_is_answered_and_keeps_nobody_waiting(stage: Stage) -> None:
    came = stage.come(10)

    def fails(exchange: Exchange) -> None:
        stage.now_ns += WORK_NS
        raise RuntimeError("the test's")

    stage.inlet._work = fails
    stage.settle()
    assert all(b" 500 " in each.reply_parts[0] for each in came[4:] if each.reply_parts is not None)
    assert all(each.reply_parts is not None for each in came[4:])


def test_the_loop_that_the_gateway_runs_on_is_not_held_for_longer_than_a_share() -> None:
    class Sender:
        triton = False

        def replied(self, exchange: Exchange) -> None:
            """Nothing is sent."""

    def work(_: Exchange) -> None:
        until_ns = monotonic_ns() + SHARE_NS
        while monotonic_ns() < until_ns:
            pass
        done.append(len(turns))

    async def run() -> None:
        loop = asyncio.get_running_loop()
        inlet = AdmissionQueue(work, 1_000 * LIMIT_NS, lambda *_: None)
        for _ in range(10):
            inlet.take(Exchange(Sender(), b"POST", b"/", {}, monotonic_ns()))
        ended = loop.create_future()

        def turn() -> None:
            turns.append(len(done))
            if len(done) < 10:
                loop.call_soon(turn)
            else:
                ended.set_result(None)

        loop.call_soon(turn)
        await ended

    done: list[int] = []
    turns: list[int] = []
    uvloop.run(run())
    # The first two: one as it comes, and one of those that wait.
    assert done == [0, 0, *range(1, 9)]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 40)), max_size=60))
def test_each_request_is_worked_off_or_refused_once(steps: list[tuple[int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        made = set_up(patch)
        came = []
        for count, passed_ms in steps:
            came += made.come(count)
            made.turn(passed_ms * MS)
        made.settle()
        assert sorted(map(id, [*made.done, *made.shed])) == sorted(map(id, came))
