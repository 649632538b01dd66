"""Streams as they should not be: begun in the middle, with what nobody would write, and without end."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.console.queries.asking import recent
from mainspring.console.queries.cluster import cluster
from mainspring.console.queries.models import models
from mainspring.console.queries.request import request
from mainspring.console.queries.schedule import schedule
from mainspring.console.queries.worker import memory
from mainspring.console.view.models import EVICTIONS
from mainspring.console.view.series import Limits
from mainspring.console.view.view import View
from mainspring.messages.actions import DropWorker, Infer, Load, Prepare, Reject, Release, Result, Unload
from mainspring.messages.codes import Reason, Status
from mainspring.messages.events import (
    GatewayLeft,
    ModelAdded,
    ModelRemoved,
    RequestArrived,
    RequestCancelled,
    Resident,
    Wakeup,
    WorkerJoined,
    WorkerLeft,
)
from mainspring.messages.model import Artifact, ModelSpec, Profile
from mainspring.messages.snapshot import ModelServed, RecencyState, WorkerState
from mainspring.telemetry.entries import FORMAT, SegmentHeader
from tests.console.view.streams import EVERYTHING, Watched, feed
from tests.scheduler.hand import spec

SECOND = 1_000_000_000
names = st.sampled_from(["a", "b", ""])
ids = st.integers(0, 6)
instants = st.one_of(st.integers(0, 5 * SECOND), st.sampled_from([0, 1 << 62, (1 << 64) - 1, -5]))
pages = st.lists(st.one_of(st.integers(0, 12), st.sampled_from([-1, 1 << 40])), max_size=4).map(tuple)
artifacts = st.builds(Artifact, st.just("h"), st.just("x"), st.just((1, 4)))
specs = st.builds(
    ModelSpec,
    name=names,
    weights_hash=st.sampled_from(["h", "i"]),
    executable=st.just("x"),
    batch_sizes=st.sampled_from([(1, 4), (2,)]),
    weights_bytes=st.integers(0, 3),
    extents=st.just((1,)),
    inputs=st.just(()),
    outputs=st.just(()),
    profiles=st.sampled_from([{}, {"gpu": Profile({1: 5}, 7)}]),
)
entries = st.one_of(
    st.builds(RequestArrived, ids, names, st.integers(0, 5), st.none() | instants),
    st.builds(RequestCancelled, ids),
    st.builds(GatewayLeft, st.integers(0, 1)),
    st.builds(ModelAdded, specs),
    st.builds(ModelRemoved, names),
    st.builds(WorkerLeft, names, names),
    st.builds(DropWorker, names, names),
    st.builds(
        WorkerJoined,
        names,
        st.just("gpu"),
        st.integers(0, 9),
        st.dictionaries(names, artifacts),
        st.lists(st.builds(Resident, names, artifacts, pages), max_size=2).map(tuple),
    ),
    st.builds(Prepare, ids, names, specs),
    st.builds(Release, ids, names, names),
    st.builds(Unload, ids, names, names),
    st.builds(Load, ids, names, names, pages, instants, instants, instants, instants),
    st.builds(
        Infer,
        ids,
        names,
        names,
        st.sampled_from([1, 4, 7]),
        st.lists(ids, max_size=3).map(tuple),
        st.just((1,)),
        st.just((True,)),
        *[instants] * 4,
    ),
    st.builds(Result, ids, names, st.sampled_from(Status), instants, instants, instants, names, instants),
    st.builds(Reject, ids, st.sampled_from(Reason), names, st.none() | instants),
    st.builds(ModelServed, ids, specs),
    st.builds(WorkerState, names, ids, st.just("gpu"), st.integers(0, 9)),
    st.builds(RecencyState, names, st.lists(names, max_size=2).map(tuple)),
    st.builds(SegmentHeader, st.just(FORMAT), st.integers(1, 2), st.booleans(), instants, st.just({})),
    st.builds(Wakeup),
    st.just("no record at all"),
)


def ask_everything(view: View) -> None:
    """Ask each query once; each has to answer."""
    cluster(view)
    models(view)
    for worker in view.cluster.workers:
        memory(view, worker)
    schedule(view, 0, max(view.now_ns, 0) + SECOND)
    for line in recent(view, outcomes=("rejected", "late", "lost", "in_time", "cancelled"), limit=20):
        request(view, line.id)
    for request_id in list(view.cluster.requests)[:20]:
        request(view, str(request_id))


@settings(max_examples=300, deadline=None)
@given(stream=st.lists(st.tuples(instants, entries), max_size=40), reset_at=st.integers(0, 60))
def test_no_record_whatever_it_says_stops_the_view_or_a_query(
    stream: list[tuple[int, object]], reset_at: int
) -> None:
    view = View(Limits(notable_requests=3, other_requests=3, sessions=2, actions=5))
    for index, (now_ns, entry) in enumerate(stream):
        if index == reset_at:
            view.reset(keep_history=bool(reset_at % 2))
        view.take(now_ns, entry)
    ask_everything(view)


@pytest.mark.parametrize("seed", [0, 3, 6, 9])
def test_a_stream_whose_beginning_is_missing_is_learnt(seed: int) -> None:
    watched = Watched(seed)
    records = watched.everything()
    view = View(EVERYTHING)
    half = len(records) // 2
    feed(view, records[half:])
    ask_everything(view)
    told = {entry.worker for _, entry in records[half:] if isinstance(entry, Infer | Load)}
    assert told <= {*view.cluster.workers, *view.gone()}
    joined = {entry.worker for _, entry in records[half:] if isinstance(entry, WorkerJoined)}
    assert {name for name, each in view.cluster.workers.items() if each.device_kind} <= joined


def test_what_is_over_is_forgotten_in_time_and_by_number() -> None:
    limits = Limits(keep_ns=20 * SECOND, notable_requests=50, other_requests=40, actions=60, sessions=2)
    view = View(limits)
    view.take(0, ModelAdded(spec("m")))
    view.take(0, WorkerJoined("w", "gpu", 10))
    for number in range(1, 2_000):
        now_ns = number * SECOND // 10
        view.take(now_ns, RequestArrived(number, "m", 1, now_ns + SECOND))
        if number % 2:
            view.take(now_ns, Reject(number, Reason.DEADLINE_PASSED, "late"))
        else:
            infer = Infer(number, "w", "m", 1, (number,), (1,), (False,), now_ns, now_ns, now_ns, 5)
            view.take(now_ns, infer)
            view.take(now_ns, Result(number, "w", Status.OK, now_ns, now_ns + 5))
        view.take(now_ns, Load(10_000 + number, "w", "m", (1,), now_ns, now_ns, now_ns, 5))
        view.take(now_ns, Result(10_000 + number, "w", Status.OK, now_ns, now_ns + 5))
        view.take(now_ns, Unload(20_000 + number, "w", "m"))
        view.take(now_ns, Result(20_000 + number, "w", Status.OK, now_ns, now_ns))
    history = view.histories["w"]
    remembered = sum(len(lane) for lane in history.lanes)
    # What came since the last whole second is not cut off yet.
    assert 40 <= remembered <= limits.actions + 30
    book = view.traffic.ended
    assert 40 <= len(list(book.newest(("rejected",)))) <= limits.notable_requests
    assert 30 <= len(list(book.newest(("in_time",)))) <= limits.other_requests
    assert len(view.traffic.seconds.past) <= 300
    assert view.first_ns == view.now_ns - limits.keep_ns
    assert sum(view.traffic.model("m").counts[:1]) <= 10 * 35
    view.take(view.now_ns + 100 * SECOND, Wakeup())
    assert len(book) == 0
    assert sum(len(lane) for lane in history.lanes) == 0
    assert view.traffic.model("m").counts == [0] * (EVICTIONS + 1)
    assert view.traffic.model("m").demand == 0
