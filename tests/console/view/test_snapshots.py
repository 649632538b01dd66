"""A view that comes late, or again, holds what the scheduler holds once its snapshot is whole."""

from __future__ import annotations

import pytest

from mainspring.cluster.snapshot import snapshot
from mainspring.console.view.view import View
from mainspring.controller.logged_scheduler import about
from mainspring.messages.events import RequestArrived, Wakeup
from mainspring.telemetry.entries import FORMAT, SegmentHeader
from tests.console.view.streams import EVERYTHING, Watched, check, feed
from tests.fuzz import seeded

HALF_MS, STEP_MS = 500.0, 0.7


def catch_up(view: View, watched: Watched, now_ms: float, *, keep_history: bool) -> float:
    """Let a view take a snapshot, a few parts at a time, between live records; return when it was whole."""
    view.reset(keep_history=keep_history)
    now_ns = watched.simulation.now_ns
    view.take(now_ns, SegmentHeader(FORMAT, 7, False, 10**18 + now_ns, about(watched.scheduler.config)))
    for number, part in enumerate(snapshot(watched.scheduler._state.cluster)):
        for entry in part:
            view.take(watched.simulation.now_ns, entry)
        if number % 4 == 3:
            now_ms += STEP_MS
            feed(view, watched.run_ms(now_ms))
    return now_ms


@seeded(8)
def test_a_view_that_comes_late_agrees_from_its_snapshot_on(seed: int) -> None:
    watched, view = Watched(seed), View(EVERYTHING)
    watched.run_ms(HALF_MS)
    now_ms = catch_up(view, watched, HALF_MS, keep_history=False)
    while now_ms < 1_300:
        check(view, watched.scheduler._state)
        now_ms += 11
        feed(view, watched.run_ms(now_ms))
    feed(view, watched.everything())
    check(view, watched.scheduler._state)


@pytest.mark.parametrize("seed", range(4))
def test_what_was_over_before_the_connection_broke_is_remembered(seed: int) -> None:
    watched, view = Watched(seed), View(EVERYTHING)
    feed(view, watched.run_ms(HALF_MS))
    before = {each.id: each.outcome for each in view.traffic.ended.newest(("rejected", "late", "in_time"))}
    assert before
    actions = sum(len(lane) for each in view.histories.values() for lane in each.lanes)
    watched.run_ms(HALF_MS + 20)
    now_ms = catch_up(view, watched, HALF_MS + 20, keep_history=True)
    check(view, watched.scheduler._state)
    feed(view, watched.run_ms(now_ms + 100))
    check(view, watched.scheduler._state)
    for request_id, outcome in before.items():
        known = view.find(request_id)
        assert known is not None
        assert known.outcome == outcome
    assert sum(len(lane) for each in view.histories.values() for lane in each.lanes) > actions
    view.reset(keep_history=False)
    assert not len(view.traffic.ended)
    assert not view.histories


def test_arrivals_count_once_whatever_the_clock_says() -> None:
    watched, view = Watched(4), View(EVERYTHING)
    watched.run_ms(HALF_MS)
    now_ms = catch_up(view, watched, HALF_MS, keep_history=False)
    counted = offered(view)
    later = watched.run_ms(now_ms + 300)
    # A live stream says what time it is before it says what happened in the last 50 ms.
    view.take(round((now_ms + 50) * 1e6), Wakeup())
    feed(view, later)
    arrived = {entry.request_id for _, entry in later if isinstance(entry, RequestArrived)}
    assert len(arrived) > 20
    assert offered(view) == counted + len(arrived)


def offered(view: View) -> int:
    seconds = view.traffic.seconds
    return sum(each.totals.offered for each in seconds.past) + seconds.now.offered
