"""Records joined into what became of each request and action."""

from __future__ import annotations

from pathlib import Path

from mainspring.messages.actions import Infer, Load, Result, Unload
from mainspring.messages.codes import Reason, Status
from mainspring.messages.commands import DropWorker, Reject
from mainspring.messages.events import (
    GatewayLeft,
    ModelRemoved,
    OperatorAsked,
    RequestArrived,
    RequestCancelled,
    WorkerJoined,
    WorkerLeft,
)
from mainspring.messages.observing import Holding
from mainspring.messages.operating import (
    DrainWorker,
    LoadOn,
    PinModel,
    ResumeWorker,
    SetDefaultSlo,
    UnpinModel,
    Wish,
)
from mainspring.telemetry.lifecycles import ActionLife, Lifecycles, RequestLife
from mainspring.telemetry.log import read_log
from mainspring.telemetry.summary import analyse_log
from tests.telemetry.recordings import record


class Book:
    """Lifecycles with what they handed out."""

    def __init__(self) -> None:
        self.requests: list[RequestLife] = []
        self.actions: list[ActionLife] = []
        self.lives = Lifecycles(self.requests.append, self.actions.append)
        self.lives.take(0, WorkerJoined("w", "gpu", 8))

    def arrive(self, at: int, id_: int, deadline: int | None = 100) -> None:
        self.lives.take(at, RequestArrived(id_, "m", 1, deadline))

    def infer(self, at: int, action_id: int, *ids: int, worker: str = "w") -> None:
        ones = (1,) * len(ids)
        colds = (True,) * len(ids)
        self.lives.take(at, Infer(action_id, worker, "m", 4, ids, ones, colds, at, at + 9, at, 5))

    def result(self, at: int, action_id: int, end: int, status: Status = Status.OK) -> None:
        self.lives.take(at, Result(action_id, "w", status, end - 5, end))

    def outcomes(self) -> list[tuple[int, str, int | None]]:
        return [(each.request.request_id, each.outcome, each.ended_ns) for each in self.requests]


def test_what_is_executed_by_its_deadline_is_in_time() -> None:
    book = Book()
    for id_, deadline in ((1, 50), (2, 49), (3, None)):
        book.arrive(10, id_, deadline)
    book.infer(20, 7, 1, 2, 3)
    assert (book.lives.queued, book.lives.running) == (0, 3)
    book.result(60, 7, 50)
    assert book.outcomes() == [(1, "in_time", 50), (2, "late", 50), (3, "in_time", 50)]
    assert all(each.cold and each.attempts == 1 for each in book.requests)
    assert [(each.kind, each.status, each.ended_ns) for each in book.actions] == [("INFER", "ok", 60)]
    assert not book.lives.requests
    assert book.lives.running == 0


def test_a_failed_infer_lets_its_requests_wait_again() -> None:
    book = Book()
    book.arrive(1, 1)
    book.infer(2, 7, 1)
    book.result(9, 7, 8, Status.TOO_LATE)
    assert (book.lives.queued, book.lives.running) == (1, 0)
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
        book.infer(2, 8, worker="other")
        book.lives.take(5, entry)
        assert [(each.action.action_id, each.status, each.lost) for each in book.actions] == [
            (7, "lost", "no heartbeat")
        ]
        assert "w" not in book.lives.workers
        assert (book.lives.queued, book.lives.running) == (1, 0)
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
    assert (book.lives.queued, book.lives.running) == (1, 0)
    book.lives.finish()
    assert book.outcomes()[-1] == (4 << 40, "waiting", None)
    assert book.actions[-1].status == ""


def test_records_that_come_twice_change_nothing() -> None:
    once, twice = Book(), Book()
    for book, times in ((once, 1), (twice, 2)):
        for _ in range(times):
            book.arrive(1, 1)
        for _ in range(times):
            book.infer(2, 7, 1)
        for _ in range(times):
            book.result(9, 7, 8)
    assert twice.outcomes() == once.outcomes()
    assert len(twice.actions) == 1
    assert twice.requests[0].attempts == 1


def test_pages_follow_loads_and_unloads() -> None:
    book = Book()
    book.lives.take(1, Load(1, "w", "m", (2, 3, 4), 1, 9, 1, 5))
    assert book.lives.workers["w"].pages_free == 8
    book.result(9, 1, 8)
    assert book.lives.workers["w"].pages_free == 5
    assert book.lives.workers["w"].resident["m"].pages == (2, 3, 4)
    book.lives.take(10, Unload(2, "w", "m"))
    book.result(11, 2, 11, Status.BUSY)
    assert book.lives.workers["w"].pages_free == 5
    book.lives.take(12, Unload(3, "w", "m"))
    book.result(13, 3, 13)
    assert book.lives.workers["w"].pages_free == 8


def test_a_picture_of_a_live_controller_says_what_workers_hold() -> None:
    book = Book()
    book.lives.take(1, Holding("w", ("a",), {"b": (0, 1, 2)}, {"c": "bad graph"}))
    held = book.lives.workers["w"]
    assert (sorted(held.prepared), list(held.resident), held.pages_free) == (["a", "b"], ["b"], 5)
    book.lives.take(1, Holding("stranger", ("a",)))


def test_what_operators_set_holds_until_they_say_otherwise() -> None:
    book = Book()
    wishes: tuple[Wish, ...] = (
        DrainWorker("w"),
        PinModel("a"),
        SetDefaultSlo("a", 5),
        LoadOn("b"),
        PinModel("b"),
        UnpinModel("a"),
    )
    for at, wish in enumerate(wishes):
        book.lives.take(at, OperatorAsked("who", wish))
    kept = [each.wish for _, each in book.lives.asked.values()]
    assert kept == [DrainWorker("w"), SetDefaultSlo("a", 5), PinModel("b"), UnpinModel("a")]
    book.lives.take(9, OperatorAsked("who", ResumeWorker("w")))
    assert book.lives.asked["worker", "w"] == (9, OperatorAsked("who", ResumeWorker("w")))
    book.lives.take(10, ModelRemoved("b"))
    assert ("model", "b") not in book.lives.asked


def test_it_agrees_with_the_summary_of_a_whole_run(tmp_path: Path) -> None:
    record(tmp_path)
    book = Book()
    for now_ns, entry in read_log(tmp_path):
        book.lives.take(now_ns, entry)
    summary = analyse_log(tmp_path).summary
    rejected = [each.reason for each in book.requests if each.outcome == "rejected"]
    assert {reason: rejected.count(reason) for reason in set(rejected)} == summary.scheduler_rejected
    ok = [each for each in book.actions if each.kind == "INFER" and each.status == "ok"]
    assert len(ok) == summary.infers
    assert len(book.requests) + len(book.lives.requests) == summary.requests_seen
