"""Connections are looked at once in a period, and a server without any sets no timer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from mainspring.gateway.http.server import SLOTS, Watch

SECOND_NS = 1_000_000_000


class Timer:
    def __init__(self, at_s: float, call: Callable[[], None]) -> None:
        self.at_s, self.call, self.cancelled = at_s, call, False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """An event loop whose time is set."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.timers: list[Timer] = []
        self.woken = 0

    def time(self) -> float:
        return self.now_s

    def call_at(self, at_s: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(at_s, call))
        return self.timers[-1]

    def run(self, seconds: float, late_s: float = 0.0) -> None:
        """Let time pass; timers come as late as this."""
        until_s = self.now_s + seconds
        while (due := min(self.timers, key=lambda timer: timer.at_s, default=None)) is not None:
            if due.at_s + late_s > until_s:
                break
            self.timers.remove(due)
            self.now_s = max(self.now_s, due.at_s + late_s)
            self.woken += 1
            if not due.cancelled:
                due.call()
        self.now_s = until_s


class Connection:
    def __init__(self, loop: Loop) -> None:
        self.loop, self.open = loop, True
        self.looks_s = [loop.now_s]
        self.added: Callable[[], object] = lambda: None

    def check(self, now_ns: int) -> bool:
        self.looks_s.append(self.loop.now_s)
        self.added()
        return self.open


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    made = Loop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: made)
    return made


def test_nobody_wakes_up_for_no_connection(loop: Loop) -> None:
    watch = Watch(8 * SECOND_NS)
    loop.run(60)
    assert not loop.timers
    connection = Connection(loop)
    watch.add(connection)
    assert len(loop.timers) == 1
    connection.open = False
    loop.run(60)
    assert len(connection.looks_s) == 2
    assert loop.woken <= 2
    assert not loop.timers


@pytest.mark.parametrize("late_s", [0.0, 0.03, 3.0])
def test_each_is_looked_at_once_in_a_period(loop: Loop, late_s: float) -> None:
    watch = Watch(8 * SECOND_NS)
    assert watch.period_s == 2
    rng = random.Random(1)
    connections = []
    for _ in range(100):
        loop.run(rng.random() * 0.3, late_s)
        connections.append(Connection(loop))
        watch.add(connections[-1])
    loop.run(30, late_s)
    for each in connections:
        gaps = [later - former for former, later in zip(each.looks_s, each.looks_s[1:], strict=False)]
        assert max(gaps) <= watch.period_s + late_s + 2 * watch.period_s / SLOTS
        assert loop.now_s - each.looks_s[-1] <= watch.period_s + 2 * late_s + 2 * watch.period_s / SLOTS
        if not late_s:
            assert min(gaps) >= watch.period_s * (1 - 1 / SLOTS) - 1e-6


def test_ten_thousand_are_looked_at_a_few_at_a_time(loop: Loop) -> None:
    watch = Watch(8 * SECOND_NS)
    connections = [Connection(loop) for _ in range(10_000)]
    for each in connections:
        loop.run(0.0002)
        watch.add(each)
    loop.run(3)
    at_once: dict[float, int] = {}
    for each in connections:
        for look_s in each.looks_s[1:]:
            at_once[look_s] = at_once.get(look_s, 0) + 1
    assert max(at_once.values()) <= 10_000 / SLOTS * 2


def test_one_that_comes_while_others_are_looked_at_is_looked_at_too(loop: Loop) -> None:
    watch = Watch(8 * SECOND_NS)
    first, second = Connection(loop), Connection(loop)

    def add() -> None:
        first.added = lambda: None
        watch.add(second)

    first.added = add
    watch.add(first)
    loop.run(20)
    assert len(second.looks_s) > 5


def test_after_the_end_nothing_is_looked_at(loop: Loop) -> None:
    watch = Watch(8 * SECOND_NS)
    connection = Connection(loop)
    watch.add(connection)
    watch.close()
    loop.run(20)
    watch.add(connection)
    assert not [timer for timer in loop.timers if not timer.cancelled]
    assert len(connection.looks_s) == 1
