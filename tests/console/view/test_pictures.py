"""Whoever comes late, or again, knows from a picture what the scheduler holds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mainspring.cluster.picture import picture as snapshot
from mainspring.console.queries.request import request
from mainspring.console.view.view import View
from mainspring.controller.logged_scheduler import about
from mainspring.messages.events import RequestArrived, Wakeup
from mainspring.scheduler.state import SchedulerState
from mainspring.telemetry.log import FORMAT, SegmentHeader
from tests.console.view.streams import EVERYTHING, Watched, check, feed

HALF_MS, STEP_MS = 500.0, 0.7
OUTCOMES = ("rejected", "late", "lost", "in_time", "cancelled")


def told(view: View, watched: Watched, state: SchedulerState) -> Iterator[None]:
    """Let a view take a picture, a few parts at a time, while the scheduler goes on."""
    now_ns = watched.simulation.now_ns
    view.take(now_ns, SegmentHeader(FORMAT, 7, False, 10**18 + now_ns, about(watched.scheduler.config)))
    for number, part in enumerate(snapshot(state.cluster)):
        for at_ns, entry in part:
            view.take(watched.simulation.now_ns if at_ns is None else at_ns, entry)
        if number % 4 == 3:
            yield


def catch_up(view: View, watched: Watched, now_ms: float, *, keep_history: bool) -> float:
    """Let a view take a picture between live records; return when it was whole."""
    view.reset(keep_history=keep_history)
    for _ in told(view, watched, watched.scheduler._state):
        now_ms += STEP_MS
        feed(view, watched.run_ms(now_ms))
    return now_ms


@pytest.mark.parametrize("seed", range(8))
def test_a_view_that_comes_late_agrees_from_its_picture_on(seed: int) -> None:
    watched, view = Watched(seed), View(EVERYTHING)
    watched.run_ms(HALF_MS)
    now_ms = catch_up(view, watched, HALF_MS, keep_history=False)
    while now_ms < 1_300:
        check(view, watched.scheduler._state, but_leaving=True)
        now_ms += 11
        feed(view, watched.run_ms(now_ms))
    feed(view, watched.everything())
    check(view, watched.scheduler._state, but_leaving=True)


@pytest.mark.parametrize("seed", range(4))
def test_what_was_over_before_the_connection_broke_is_remembered(seed: int) -> None:
    watched, view = Watched(seed), View(EVERYTHING)
    feed(view, watched.run_ms(HALF_MS))
    before = {each.id: each.outcome for each in view.traffic.book.newest(("rejected", "late", "in_time"))}
    assert before
    actions = sum(len(lane) for each in view.fleet.histories.values() for lane in each.lanes())
    watched.run_ms(HALF_MS + 20)
    now_ms = catch_up(view, watched, HALF_MS + 20, keep_history=True)
    check(view, watched.scheduler._state, but_leaving=True)
    feed(view, watched.run_ms(now_ms + 100))
    check(view, watched.scheduler._state, but_leaving=True)
    for request_id, outcome in before.items():
        known = view.traffic.book.get(request_id)
        assert known is not None
        assert known.outcome == outcome
    assert sum(len(lane) for each in view.fleet.histories.values() for lane in each.lanes()) > actions
    view.reset(keep_history=False)
    assert not len(view.traffic.book)
    assert not view.fleet.histories


def test_arrivals_count_once_however_far_the_clock_was_told_to_be() -> None:
    watched, view = Watched(4), View(EVERYTHING)
    watched.run_ms(HALF_MS)
    now_ms = catch_up(view, watched, HALF_MS, keep_history=False)
    came = view.traffic.book.open.keys() | {each.id for each in view.traffic.book.newest(OUTCOMES)}
    counted = (
        sum(each.totals.offered for each in view.traffic.seconds.past) + view.traffic.seconds.now.offered
    )
    later = watched.run_ms(now_ms + 300)
    # A live stream says what time it is before it says what happened in the last 50 ms.
    view.take(round((now_ms + 50) * 1e6), Wakeup())
    feed(view, later)
    arrived = {entry.request_id for _, entry in later if isinstance(entry, RequestArrived)} - came
    assert len(arrived) > 20
    assert offered(view) == counted + len(arrived)


def offered(view: View) -> int:
    seconds = view.traffic.seconds
    return sum(each.totals.offered for each in seconds.past) + seconds.now.offered


def test_explanations_after_a_picture_are_exact() -> None:
    found = 0
    for seed in range(4):
        watched, view = Watched(seed), View(EVERYTHING)
        watched.run_ms(300)
        catch_up(view, watched, 300, keep_history=False)
        whole = view.seq
        feed(view, watched.everything())
        for each in view.traffic.book.newest(("rejected",)):
            if each.reason == "deadline_unreachable" and each.arrived_seq > whole:
                story = request(view, str(each.id))
                finish_ns = story.alternatives[0].finish_ns
                assert finish_ns is not None
                assert finish_ns + view.settings.response_margin_ns == story.earliest_finish_ns
                found += 1
    assert found > 30
