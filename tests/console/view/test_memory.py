"""What a view takes of memory: no more once what it remembers is full."""

from __future__ import annotations

import tracemalloc
from collections import deque

from mainspring.console.view.actions import Action, Lane
from mainspring.console.view.models import LATENCIES, ModelHistory
from mainspring.console.view.requests import IN_TIME, Request

SECOND = 1_000_000_000
WINDOW_S = 20
A_SECOND = 150


def ended(number: int, done_ns: int) -> Action:
    times_ns = (done_ns - 30, done_ns - 20, done_ns - 10, done_ns - 20, 20)
    action = Action(number, "INFER", "a model of some name", 1, 1, (number,), *times_ns)
    action.done_seq, action.done_ns, action.status = number + 1, done_ns, "ok"
    action.begin_ns, action.end_ns = done_ns - 20, done_ns
    return action


def test_a_lane_takes_no_more_memory_after_its_window_is_full() -> None:
    lane, taken = Lane("w", "EXEC"), []
    tracemalloc.start()
    try:
        for number in range(5 * WINDOW_S * A_SECOND):
            lane.end(ended(number, number * SECOND // A_SECOND))
            if number % A_SECOND == 0:
                lane.forget((number // A_SECOND - WINDOW_S) * SECOND, 1 << 40)
                taken.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    full, later = taken[WINDOW_S], max(taken[WINDOW_S:])
    assert len(lane) >= WINDOW_S * A_SECOND
    assert later <= 1.1 * full, f"{full:,} bytes after a window, later {later:,}"
    newest = next(lane.newest())
    assert [each.id for each in lane.newest()] == [newest.id - index for index in range(len(lane))]


def test_of_a_model_that_nobody_asks_for_any_more_no_request_is_remembered() -> None:
    history = ModelHistory()
    recent: deque[Request] = deque(maxlen=16)
    history.recent = recent
    for second in range(1_000):
        history.took(second)
        history.seconds.at(second, 300).offered += 1
        recent.append(Request(second, "m", 1, 0, 0, None, IN_TIME, ended_ns=second * SECOND))
    assert list(history.latencies_ns) == [*range(1_000 - LATENCIES, 1_000)]
    history.forget(990 * SECOND)
    assert [each.id for each in recent] == [*range(990, 1_000)]
    assert [point.second for point in history.seconds.points(0, 1_000)] == [*range(990, 1_000)]
    history.forget(2_000 * SECOND)
    assert history.recent is None
    assert len([*history.seconds.points(0, 999)]) == 0
