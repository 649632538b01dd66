"""When a turn began, and since when what is read may have been there; on the gateway's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic_ns

import pytest
import uvloop

from mainspring.gateway.http import admission_queue
from mainspring.gateway.http.admission_queue import TurnClock, thread_waits

LONG_NS = 5_000_000


def spin() -> None:
    until_ns = monotonic_ns() + LONG_NS
    while monotonic_ns() < until_ns:
        pass


def in_turns(*steps: Callable[[TurnClock], int]) -> list[int]:
    """Call each in a turn of its own, in turns that follow each other; return what they return."""

    async def run() -> list[int]:
        loop, clock, found = asyncio.get_running_loop(), TurnClock(), []
        ended = loop.create_future()

        def turn(left: list[Callable[[TurnClock], int]]) -> None:
            found.append(left[0](clock))
            if left[1:]:
                loop.call_soon(turn, left[1:])
            else:
                ended.set_result(None)

        loop.call_soon(turn, list(steps))
        await ended
        return found

    return uvloop.run(run())


@pytest.fixture(autouse=True)
def _never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission_queue, "thread_waits", lambda: 7)


def test_a_turn_is_as_long_as_what_was_done_in_it() -> None:
    def first(clock: TurnClock) -> int:
        clock.read_at_ns()
        spin()
        return clock.spent_ns(monotonic_ns())

    spent_ns, next_ns = in_turns(first, lambda clock: clock.spent_ns(monotonic_ns()))
    assert spent_ns >= LONG_NS
    assert next_ns == 0, "the next turn begins anew"


def test_what_the_next_turn_reads_may_have_come_since_this_one_began() -> None:
    def first(clock: TurnClock) -> int:
        clock.spent_ns(began_ns := monotonic_ns())
        spin()
        return began_ns

    began_ns, since_ns = in_turns(first, lambda clock: clock.read_at_ns())
    assert since_ns == began_ns


def test_everything_of_one_turn_was_there_at_its_begin() -> None:
    def first(clock: TurnClock) -> int:
        since_ns = clock.read_at_ns()
        spin()
        return clock.read_at_ns() - since_ns

    assert in_turns(first) == [0]


def test_what_a_loop_reads_that_has_waited_has_just_come(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = iter(range(100))
    monkeypatch.setattr(admission_queue, "thread_waits", lambda: next(waits))
    before_ns = monotonic_ns()

    def first(clock: TurnClock) -> int:
        clock.read_at_ns()
        spin()
        return monotonic_ns()

    ended_ns, since_ns = in_turns(first, lambda clock: clock.read_at_ns())
    assert before_ns + LONG_NS <= ended_ns <= since_ns


def test_what_is_read_long_after_other_work_is_not_taken_for_as_old(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = 1_000 * LONG_NS
    monkeypatch.setattr(admission_queue, "monotonic_ns", lambda: now_ns)

    def other(_: TurnClock) -> int:
        nonlocal now_ns
        now_ns += 20 * LONG_NS
        return 0

    first_ns, _, third_ns = in_turns(TurnClock.read_at_ns, other, TurnClock.read_at_ns)
    assert third_ns - first_ns == 20 * LONG_NS


def test_behind_a_long_pause_nobody_asks_whether_the_loop_has_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    """That would be a system call for each request of a client that sends one at a time."""
    asked: list[int] = []

    def waits() -> int:
        asked.append(7)
        return 7

    monkeypatch.setattr(admission_queue, "thread_waits", waits)

    async def run() -> None:
        clock = TurnClock()
        for _ in range(3):
            clock.read_at_ns()
            await asyncio.sleep(0.01)

    uvloop.run(run())
    assert not asked


def test_a_loop_that_waits_is_seen_to() -> None:
    async def run() -> tuple[int, int]:
        before = thread_waits()
        await asyncio.sleep(0.01)
        return before, thread_waits()

    before, after = uvloop.run(run())
    assert after > before
