"""What the queries say of simulated clusters, beside the scheduler's own state."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.console.payloads import Cluster, Memory, Models, Schedule
from mainspring.console.queries.asking import BadQuery, Unknown, head, recent
from mainspring.console.queries.cluster import cluster
from mainspring.console.queries.models import SORTS, model, models
from mainspring.console.queries.request import request
from mainspring.console.queries.schedule import in_order, schedule
from mainspring.console.queries.worker import memory
from mainspring.console.view.view import View
from mainspring.messages.events import OperatorAsked, RequestArrived, Wakeup, WorkerLeft
from mainspring.messages.model import bucket_name
from mainspring.messages.operating import DrainWorker, PinModel, ResumeWorker, SetDefaultSlo
from tests.console.view.streams import EVERYTHING, Watched, feed, never_removed, tallied
from tests.fuzz import seeded

SECOND = 1_000_000_000


def at(seed: int, ms: float) -> tuple[View, Watched]:
    watched, view = Watched(seed), View(EVERYTHING)
    feed(view, watched.run_ms(ms))
    return view, watched


@pytest.mark.parametrize("seed", range(5))
def test_pages_models_and_workers_are_the_schedulers(seed: int) -> None:
    view, watched = at(seed, 700)
    state = watched.scheduler._state
    status = watched.scheduler.status()
    shown = cluster(view)
    assert shown.models == len(status.models)
    assert shown.queued == status.requests_queued
    serving = {each.name: each for each in shown.workers if each.state != "gone"}
    assert set(serving) == {each.worker for each in status.workers}
    for each in status.workers:
        mine = serving[each.worker]
        assert (mine.pages, mine.pages_free, mine.resident) == (each.pages, each.pages_free, each.resident)
        assert (mine.prepared, mine.outstanding) == (each.prepared, each.outstanding)
        pages = memory(view, each.worker)
        owners: list[str | None] = []
        for extent in pages.extents:
            owners += [None if extent.model < 0 else pages.models[extent.model]] * extent.count
            assert (extent.state == "free") == (extent.model < 0)
        table = state.cluster.workers[each.worker].pages
        assert owners == [table.owner(page) for page in range(table.size)]
    rows = {row.name: row for row in models(view, limit=1000).rows}
    for told in status.models:
        row = rows[told.name]
        assert row.queued == told.queued
        assert tuple(row.resident_on) == tuple(name for name in row.resident_on if name in told.resident_on)
        assert set(row.resident_on) == set(told.resident_on)
        assert row.prepared_on == len(told.prepared_on)
        page = model(view, told.name)
        assert page.line == row
        assert {w for w, where in page.placements.items() if where == "resident"} == set(told.resident_on)
        assert not (page.not_ready and told.resident_on), "what is resident on a worker that serves is ready"
        assert row.infer_ms == {
            size: state.cluster.models[told.name].infer_times[kind].ns[index] / 1e6
            for kind in [_kind(view)]
            for index, size in enumerate(state.cluster.models[told.name].spec.batch_sizes)
            if kind in state.cluster.models[told.name].infer_times
        }


def test_a_model_with_open_dimensions_has_estimates_by_bucket() -> None:
    watched, view = Watched(4, shaped=True), View(EVERYTHING)
    feed(view, watched.run_ms(400))
    kind = _kind(view)
    opened = [each for each in watched.scheduler._state.cluster.models.values() if each.buckets]
    assert opened
    for known in opened:
        page = model(view, known.name)
        assert [*page.buckets] == [bucket_name(ceilings) for ceilings in known.buckets]
        for bucket in known.buckets.values():
            times = bucket.infer_times[kind]
            shown = page.buckets[bucket.name.partition("@")[2]]
            assert shown == {size: ns / 1e6 for size, ns in zip(times.sizes, times.ns, strict=True)}
        assert page.line.infer_ms == shown, "the table has the largest"
    waiting = {each.model.base.name for each in view.cluster.requests.values() if each.model.of is not None}
    assert waiting, "some have not ended"
    assert all(model(view, name).recent for name in waiting)


def _kind(view: View) -> str:
    kinds = [worker.device_kind for worker in view.cluster.workers.values()]
    return min(set(kinds), key=lambda kind: (-kinds.count(kind), kind))


@seeded(5)
def test_attainment_adds_up_to_what_the_controller_counts(seed: int) -> None:
    watched, view = Watched(seed), View(EVERYTHING)
    feed(view, watched.everything())
    # The last second counts once it is over.
    view.take(view.now_ns + SECOND, Wakeup())
    shown = cluster(view)
    minute = shown.last_300s
    book = view.traffic.ended
    assert minute.seconds == len(shown.series.offered)
    assert minute.offered_rps * minute.seconds == pytest.approx(sum(shown.series.offered))
    assert sum(shown.series.offered) == len(book)
    in_time = len(list(book.newest(("in_time",))))
    assert minute.in_time_rps * minute.seconds == pytest.approx(in_time)
    assert minute.late == len(list(book.newest(("late",)))) == sum(shown.series.late)
    assert (
        sum(minute.rejected.values()) == len(list(book.newest(("rejected",)))) == sum(shown.series.rejected)
    )
    state = watched.scheduler._state
    rows = {row.name: row for row in models(view, limit=1000).rows}
    for name in never_removed(state):
        row = rows[name]
        assert (row.in_time, row.late, row.rejected) == tallied(state, name)[1:]
    latencies = sorted(each.latency_ns or 0 for each in book.newest(("in_time", "late")))
    for percent, value in ((50, minute.p50_ms), (99, minute.p99_ms), (99.99, minute.p9999_ms)):
        rank = max(1, -(-len(latencies) * percent // 100))
        assert value == pytest.approx(latencies[int(rank) - 1] / 1e6, rel=0.005, abs=0.005)


def test_a_schedule_asked_for_in_changes_is_the_whole_one() -> None:
    watched, view = Watched(4), View(EVERYTHING)
    feed(view, watched.run_ms(200))
    span = (0, 2 * SECOND)
    first = schedule(view, *span)
    known = {action.id: action for action in first.actions}
    version = first.version
    for now_ms in range(220, 900, 20):
        feed(view, watched.run_ms(now_ms))
        changed = schedule(view, *span, after=version)
        assert not changed.whole
        version = changed.version
        known.update({action.id: action for action in changed.actions})
    whole = schedule(view, *span)
    assert whole.whole
    assert known == {action.id: action for action in whole.actions}
    outstanding = {
        action_id
        for worker in watched.scheduler._state.cluster.workers.values()
        for action_id in (
            *[each.action_id for each in worker.exec.actions()],
            *[each.action_id for each in worker.load.actions()],
            *worker.others,
        )
    }
    assert {action.id for action in whole.actions if not action.status} == outstanding
    view.reset(keep_history=True)
    assert schedule(view, *span, after=version).whole


def test_a_schedule_holds_the_newest_actions_of_its_time_and_says_if_there_are_more() -> None:
    view, _ = at(4, 900)
    everything = schedule(view, 0, 2 * SECOND)
    few = schedule(view, 0, 2 * SECOND, limit=10)
    assert few.truncated
    assert not everything.truncated
    assert few.actions == everything.actions[:10]
    early = schedule(view, 100_000_000, 200_000_000)
    ids = {each.id for each in early.actions}
    for action in everything.actions:
        begin, end = action.predicted_begin_ns, action.predicted_end_ns
        if action.begin_ns is not None and action.end_ns is not None:
            begin, end = min(begin, action.begin_ns), max(end, action.end_ns)
        if action.status:
            assert (action.id in ids) == (begin <= 200_000_000 and end >= 100_000_000), action
    one = schedule(view, 0, 2 * SECOND, workers=("w0",))
    assert {lane.worker for lane in one.lanes} == {"w0"}
    assert one.actions == [
        msgspec.structs.replace(each, lane=each.lane)
        for each in everything.actions
        if everything.lanes[each.lane].worker == "w0"
    ]


def test_models_are_searched_sorted_and_cut() -> None:
    view, _ = at(0, 900)
    total = len(view.cluster.models)
    assert models(view).total == total
    for sort in SORTS:
        up = [row.name for row in models(view, sort=sort, limit=1000).rows]
        down = [row.name for row in models(view, sort=sort, descending=True, limit=1000).rows]
        assert sorted(up) == sorted(down) == sorted(view.cluster.models)
    busiest = models(view, sort="in_time", descending=True).rows
    assert [row.in_time for row in busiest] == sorted((row.in_time for row in busiest), reverse=True)
    assert busiest[0].in_time > 0
    assert models(view, search="M1", offset=1, limit=2).rows == models(view, search="m1").rows[1:3]
    assert models(view, search="nothing").rows == []


def test_evictions_say_for_whom() -> None:
    found = []
    for seed in range(6):
        watched, view = Watched(seed), View(EVERYTHING)
        feed(view, watched.everything())
        for worker in view.cluster.workers:
            found += memory(view, worker).evictions
            instants = [each.at_ns for each in memory(view, worker).evictions]
            assert instants == sorted(instants, reverse=True)
    assert found
    assert any(each.for_model and each.for_model != each.model for each in found)


def test_operators_are_shown_and_what_they_set() -> None:
    view, _ = at(4, 500)
    name, served = next(iter(view.cluster.workers)), next(iter(view.cluster.models))
    now_ns = view.now_ns
    for command in (DrainWorker(name), PinModel(served), SetDefaultSlo(served, 25_000_000)):
        view.take(now_ns, OperatorAsked("ada", command))
        view.take(now_ns, OperatorAsked("ada", command))
    shown = cluster(view)
    assert [each.what for each in shown.operations] == [
        f"give {served} a default SLO of 25 ms",
        f"pin {served}",
        f"drain {name}",
    ]
    worker = next(each for each in shown.workers if each.name == name)
    assert worker.state == "draining"
    assert "ada" in worker.detail
    row = model(view, served).line
    assert row.pinned
    assert row.slo_ms == 25.0
    view.take(now_ns + 5, OperatorAsked("ada", ResumeWorker(name)))
    assert next(each for each in cluster(view).workers if each.name == name).state == "serving"
    view.take(now_ns + 9, WorkerLeft(name, "it was unplugged"))
    gone = next(each for each in cluster(view).workers if each.name == name)
    assert (gone.state, gone.detail, gone.outstanding) == ("gone", "it was unplugged", 0)


def test_what_can_not_be_asked_is_refused_with_what_would_be_right() -> None:
    view, _ = at(4, 300)
    with pytest.raises(Unknown, match=r"there is no worker 'x'; there are: w0"):
        memory(view, "x")
    with pytest.raises(Unknown, match=r"there is no worker 'x'"):
        schedule(view, 0, 1, workers=("x",))
    with pytest.raises(Unknown, match=r"there is no model 'm00'; did you mean 'm0'\?"):
        model(view, "m00")
    with pytest.raises(BadQuery, match="the span ends before it begins"):
        schedule(view, 2, 1)
    with pytest.raises(BadQuery, match="to sort by: choose of name"):
        models(view, sort="beauty")
    with pytest.raises(BadQuery, match="there is no outcome 'won'"):
        recent(view, outcomes=("won",))
    with pytest.raises(BadQuery, match="not a request's id"):
        request(view, "last-ate")
    with pytest.raises(
        Unknown, match="no request was rejected, late or lost in the 300 s that are remembered"
    ):
        request(View(), "last")
    with pytest.raises(Unknown, match="no request was late in the 300 s"):
        request(View(), "last-late")
    with pytest.raises(Unknown, match="nothing is remembered of request 123456"):
        request(view, "123456")
    for request_id in (99901, 99902):
        view.take(view.now_ns, RequestArrived(request_id, "m0", 1, None))
    with pytest.raises(BadQuery, match="2 requests' ids begin with 999: 99901, 99902"):
        request(view, "999")
    assert request(view, "99902").outcome == "waiting"


def test_payloads_are_json_that_reads_back() -> None:
    view, _ = at(4, 600)
    told = head(view, "live")
    assert told.now_ns == view.now_ns
    assert told.policy == "mainspring"
    assert told.unix_ns == 1_700_000_000 * SECOND + view.now_ns
    for kind, payload in (
        (Cluster, cluster(view)),
        (Memory, memory(view, "w0")),
        (Models, models(view)),
        (Schedule, schedule(view, 0, SECOND)),
    ):
        assert msgspec.json.decode(msgspec.json.encode(payload), type=kind) == payload


@given(st.lists(st.text(max_size=6)))
def test_any_names_can_be_ordered(names: list[str]) -> None:
    assert sorted(sorted(names, key=in_order, reverse=True), key=in_order) == sorted(names, key=in_order)
    assert sorted(["w-10", "w-2", "a", "w"], key=in_order) == ["a", "w", "w-2", "w-10"]
