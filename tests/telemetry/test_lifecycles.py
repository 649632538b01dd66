"""Records joined into what became of each request and action."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from mainspring.messages.actions import DropWorker, Infer, Reject, Result
from mainspring.messages.codes import Reason, Status
from mainspring.messages.events import (
    Event,
    GatewayLeft,
    ModelAdded,
    RequestArrived,
    RequestCancelled,
    WorkerJoined,
    WorkerLeft,
)
from mainspring.telemetry.entries import SegmentHeader
from mainspring.telemetry.lifecycles import ActionLife, Lifecycles, RequestLife
from mainspring.telemetry.log import read_entries, read_log, segments
from mainspring.telemetry.summary import analyse_log
from tests.controller.peers import spec
from tests.telemetry.recordings import record

SPEC = spec("m")
W = WorkerJoined("w", "cpu", 8, {"m": SPEC.artifact})


class Book:
    """Lifecycles of a cluster of two workers and a model, with what they handed out."""

    def __init__(self, *begin: Event) -> None:
        self.requests: list[RequestLife] = []
        self.actions: list[ActionLife] = []
        self.lives = Lifecycles(self.requests.append, self.actions.append)
        for entry in begin or (ModelAdded(SPEC), W, msgspec.structs.replace(W, worker="other")):
            self.lives.take(0, entry)

    def arrive(self, at: int, id_: int, deadline: int | None = 100, model: str = "m") -> None:
        self.lives.take(at, RequestArrived(id_, model, 1, deadline))

    def infer(self, at: int, action_id: int, *ids: int, worker: str = "w") -> None:
        ones = (1,) * len(ids)
        colds = (True,) * len(ids)
        self.lives.take(at, Infer(action_id, worker, "m", 4, ids, ones, colds, at, at + 9, at, 5))

    def result(self, at: int, action_id: int, end: int, status: Status = Status.OK) -> None:
        self.lives.take(at, Result(action_id, "w", status, end - 5, end))

    def outcomes(self) -> list[tuple[int, str, int | None]]:
        return [(each.request.request_id, each.outcome, each.ended_ns) for each in self.requests]

    def open(self) -> list[tuple[int, str]]:
        return [(each.request.request_id, each.outcome) for each in self.lives.requests()]


def test_what_is_executed_by_its_deadline_is_in_time() -> None:
    book = Book()
    for id_, deadline in ((1, 50), (2, 49), (3, None)):
        book.arrive(10, id_, deadline)
    assert book.lives.queued == 3
    book.infer(20, 7, 2, 1)
    book.infer(20, 8, 3)
    assert book.lives.queued == 0
    assert book.open() == [(1, "running"), (2, "running"), (3, "running")]
    book.result(60, 7, 50)
    book.result(62, 8, 61)
    assert book.outcomes() == [(2, "late", 50), (1, "in_time", 50), (3, "in_time", 61)]
    assert all(each.cold and each.attempts == 1 for each in book.requests)
    assert [(each.kind, each.status, each.ended_ns) for each in book.actions] == [
        ("INFER", "ok", 60),
        ("INFER", "ok", 62),
    ]
    assert book.open() == []


def test_a_failed_infer_lets_its_requests_wait_again() -> None:
    book = Book()
    book.arrive(1, 1)
    book.infer(2, 7, 1)
    book.result(9, 7, 8, Status.TOO_LATE)
    assert book.lives.queued == 1
    (life,) = book.lives.requests()
    assert (life.outcome, life.attempts, life.infer) == ("waiting", 1, book.actions[0])
    book.infer(10, 8, 1)
    book.result(20, 8, 19)
    (request,) = book.requests
    assert (request.outcome, request.attempts) == ("in_time", 2)
    assert request.infer is book.actions[1]


def test_a_lost_worker_takes_its_actions_along() -> None:
    for entry in (WorkerLeft("w", "no heartbeat"), DropWorker("w", "no heartbeat")):
        book = Book()
        book.arrive(1, 1)
        book.infer(2, 7, 1)
        book.arrive(1, 2)
        book.infer(2, 8, 2, worker="other")
        book.lives.take(5, entry)
        assert [(each.action.action_id, each.status, each.lost) for each in book.actions] == [
            (7, "lost", "no heartbeat")
        ]
        assert "w" not in book.lives.cluster.workers
        assert book.open() == [(1, "waiting"), (2, "running")]
        book.result(9, 7, 8)
        assert book.outcomes() == [], "a result of a lost worker's action ends nothing"


def test_rejected_cancelled_and_left_behind() -> None:
    book = Book()
    for id_ in (1, 2, 3 << 40, (3 << 40) + 1, 4 << 40):
        book.arrive(1, id_)
    book.infer(2, 7, 3 << 40)
    book.lives.take(3, Reject(1, Reason.DEADLINE_UNREACHABLE, "why", 120))
    book.lives.take(4, RequestCancelled(2))
    book.lives.take(5, GatewayLeft(3))
    assert [each[1:] for each in book.outcomes()] == [("rejected", 3)] + [("cancelled", 4)] + [
        ("cancelled", 5)
    ] * 2
    assert book.requests[0].earliest_finish_ns == 120
    assert book.open() == [(4 << 40, "waiting")]
    book.lives.finish()
    assert book.outcomes()[-1] == (4 << 40, "waiting", None)
    assert book.actions[-1].status == ""


def test_a_request_that_is_cancelled_while_it_runs_has_its_infer() -> None:
    book = Book()
    book.arrive(1, 1)
    book.arrive(1, 2)
    book.infer(2, 7, 1, 2)
    book.lives.take(3, RequestCancelled(1))
    assert book.outcomes() == [(1, "cancelled", 3)]
    (cancelled,) = book.requests
    assert cancelled.infer is not None
    assert (cancelled.infer.action.action_id, cancelled.attempts) == (7, 1)
    book.result(9, 7, 8)
    assert book.outcomes()[1:] == [(2, "in_time", 8)]


def test_a_request_for_a_model_that_is_not_served_ends_with_its_rejection() -> None:
    book = Book()
    book.arrive(1, 1, model="nobody")
    assert book.open() == [(1, "waiting")]
    book.lives.take(1, Reject(1, Reason.UNKNOWN_MODEL, "why"))
    assert book.outcomes() == [(1, "rejected", 1)]
    assert book.open() == []


def test_it_knows_whether_something_earlier_is_open() -> None:
    book = Book()
    assert not book.lives.awaits(100)
    book.arrive(4, 1)
    book.infer(5, 7, 1)
    assert (book.lives.awaits(4), book.lives.awaits(5)) == (False, True)
    book.lives.take(6, RequestCancelled(1))
    assert (book.lives.awaits(5), book.lives.awaits(6)) == (False, True), "its INFER still runs"
    book.result(9, 7, 8)
    assert not book.lives.awaits(100)
    book.arrive(10, 2, model="nobody")
    assert (book.lives.awaits(10), book.lives.awaits(11)) == (False, True)


def test_the_header_of_another_run_begins_a_new_cluster_with_its_settings() -> None:
    book = Book()
    about = {"scheduler": {"dispatch_delay_ms": 0.25, "response_margin_ms": 2, "estimate_rank": 2}}
    for run in (5, 5):
        book.lives.take(7, SegmentHeader(2, run, True, 0, about))
    cluster = book.lives.cluster
    assert not cluster.models
    assert (cluster.dispatch_delay_ns, cluster.response_margin_ns) == (250_000, 2_000_000)
    assert cluster.estimates.rank == 2
    book.lives.take(8, ModelAdded(SPEC))
    book.lives.take(9, SegmentHeader(2, 5, False, 0, about))
    assert list(book.lives.cluster.models) == ["m"], "a later segment of the same run goes on"
    book.lives.take(9, SegmentHeader(2, 6, True, 0, about))
    assert not book.lives.cluster.models


def test_without_the_log_s_beginning_what_began_later_has_the_same_end(tmp_path: Path) -> None:
    record(tmp_path, segment_bytes=100_000)
    told: list[tuple[set[tuple[int, int, Any, Any, Any, Any]], set[tuple[int, int, str, Any, str]]]] = []
    begins_ns = 0
    for _ in range(2):
        book = Book()
        book.lives.reset()
        for now_ns, entry in read_entries(tmp_path):
            book.lives.take(now_ns, entry)
        book.lives.finish()
        requests = {
            (each.request.request_id, each.arrived_ns, each.outcome, each.ended_ns, each.reason, each.cold)
            for each in book.requests
            if each.arrived_ns > begins_ns
        }
        actions = {
            (each.action.action_id, each.sent_ns, each.status, each.ended_ns, each.lost)
            for each in book.actions
            if each.sent_ns > begins_ns
        }
        told.append((requests, actions))
        if not begins_ns:
            for path in segments(tmp_path)[:3]:
                path.unlink()
            begins_ns = next(now_ns for now_ns, _ in read_log(tmp_path))
    whole, rest = told
    assert rest[0] == {each for each in whole[0] if each[1] > begins_ns}
    assert rest[1] == {each for each in whole[1] if each[1] > begins_ns}
    assert len(rest[0]) > 500


def test_it_agrees_with_the_summary_of_a_whole_run(tmp_path: Path) -> None:
    record(tmp_path)
    book = Book(ModelAdded(SPEC))
    book.lives.reset()
    for now_ns, entry in read_log(tmp_path):
        book.lives.take(now_ns, entry)
    summary = analyse_log(tmp_path).summary
    rejected = [each.reason for each in book.requests if each.outcome == "rejected"]
    assert {reason: rejected.count(reason) for reason in set(rejected)} == summary.scheduler_rejected
    ok = [each for each in book.actions if each.kind == "INFER" and each.status == "ok"]
    assert len(ok) == summary.infers
    assert len(book.requests) + len(book.open()) == summary.requests_seen
