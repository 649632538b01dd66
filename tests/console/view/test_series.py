"""Numbers by second are those that a plain count gives, and no more of them are kept than are shown."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.console.queries.models import model
from mainspring.console.queries.worker import worker
from mainspring.console.view.series import Limits, ModelSeconds, Ring
from mainspring.console.view.view import View
from mainspring.messages.actions import Infer, Result
from mainspring.messages.codes import Status
from mainspring.messages.events import RequestArrived
from tests.console.view.streams import EVERYTHING, SECOND, Watched, feed, never_removed


@given(st.integers(1, 8), st.lists(st.tuples(st.integers(0, 40), st.integers(-5, 99)), max_size=60))
def test_a_ring_has_the_last_seconds_and_no_others(size: int, entries: list[tuple[int, int]]) -> None:
    ring, counts, newest = Ring(size), Counter[int](), -1
    for second, amount in entries:
        ring.add(second, amount)
        newest = max(newest, second)
        # What is entered for a second that is forgotten is dropped.
        if second > newest - size:
            counts[second] += amount
        kept = {each: counts[each] for each in range(50) if newest - size < each <= newest}
        assert {each: ring[each] for each in range(50)} == {each: kept.get(each, 0) for each in range(50)}


@given(st.lists(st.integers(0, 9), max_size=60), st.integers(1, 20))
def test_a_models_seconds_are_kept_as_long_as_they_are_shown(steps: list[int], keep: int) -> None:
    seconds, counts, now = ModelSeconds(), Counter[int](), 0
    for step in steps:
        now += step
        seconds.at(now, keep).offered += 1
        counts[now] += 1
        found = {each.second: each.offered for each in seconds.points(now - keep, now + 1)}
        assert found == {each: count for each, count in counts.items() if each >= now - keep}
        assert len([*seconds.points(0, now + 1)]) <= keep + 1


@pytest.mark.parametrize("seed", range(3))
def test_the_curves_of_models_and_workers_have_each_request_and_each_batch_once(seed: int) -> None:
    watched, view = Watched(seed, length_ns=3 * SECOND), View(EVERYTHING)
    stream = watched.everything()
    feed(view, stream)
    end_ns = view.now_ns // SECOND * SECOND
    arrived = Counter(
        entry.model for now_ns, entry in stream if isinstance(entry, RequestArrived) and now_ns < end_ns
    )
    names = never_removed(watched.scheduler._state)
    assert sum(arrived[name] for name in names) > 100
    for name in names:
        page = model(view, name)
        series, line = page.series, page.line
        lengths = {len(series.offered), len(series.late), len(series.mean_ms), len(series.longest_ms)}
        assert lengths == {(end_ns - series.first_ns) // SECOND}
        assert sum(series.offered) == arrived[name]
        assert sum(series.in_time) <= line.in_time
        assert sum(series.late) <= line.late
        assert sum(series.rejected) <= line.rejected
        for mean_ms, longest_ms, executed in zip(
            series.mean_ms,
            series.longest_ms,
            map(sum, zip(series.in_time, series.late, strict=True)),
            strict=True,
        ):
            assert (mean_ms is None) == (longest_ms is None) == (executed == 0)
            assert mean_ms is None or longest_ms is None or 0 < mean_ms <= longest_ms * (1 + 1e-9)
    infers = {entry.action_id: entry for _, entry in stream if isinstance(entry, Infer)}
    ended = [
        (entry.worker, sum(infers[entry.action_id].rows))
        for now_ns, entry in stream
        if isinstance(entry, Result) and entry.status is Status.OK and entry.action_id in infers
        if now_ns < end_ns
    ]
    for name in watched.scheduler.cluster.workers:
        found = worker(view, name).series
        own = [rows for each, rows in ended if each == name]
        assert (sum(found.batches), sum(found.rows)) == (len(own), sum(own))
        assert all(0 <= share <= 1.000001 for share in found.exec_busy + found.load_busy)
        assert not own or max(found.exec_busy) > 0


def test_a_worker_whose_clock_is_far_ahead_does_not_hide_what_it_does_later() -> None:
    view = View(Limits())
    for now_s, end_s in ((5, 4_000_000), (6, 6)):
        now_ns = now_s * SECOND
        begin_ns = now_ns - SECOND // 2
        window = (0, 1 << 60, begin_ns, SECOND)
        view.take(begin_ns, Infer(now_s, "w", "m", 1, (now_s,), (1,), (False,), *window))
        view.take(now_ns, Result(now_s, "w", Status.OK, begin_ns, end_s * SECOND))
    lane = view.history("w").exec
    assert (lane.busy_ns[4], lane.busy_ns[5]) == (SECOND // 2, SECOND // 2)
