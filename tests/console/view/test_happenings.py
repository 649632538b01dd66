"""What happened to workers and the controller leaves a mark that outlasts it."""

from __future__ import annotations

import pytest

from mainspring.console.queries.asking import Unknown, happenings
from mainspring.console.queries.cluster import cluster
from mainspring.console.queries.models import model
from mainspring.console.queries.schedule import schedule
from mainspring.console.terminal.cluster import cluster_lines
from mainspring.console.view.series import Limits
from mainspring.console.view.view import View
from mainspring.messages.actions import Load, Result, Unload
from mainspring.messages.codes import Status
from mainspring.messages.events import (
    GatewayRefused,
    ModelAdded,
    ModelRemoved,
    OperatorAsked,
    Wakeup,
    WorkerJoined,
    WorkerLeft,
)
from mainspring.messages.observing import Unready
from mainspring.messages.operating import DrainWorker, ResumeWorker
from mainspring.telemetry.entries import FORMAT, SegmentHeader
from tests.scheduler.hand import spec

SECOND = 1_000_000_000
MS = 1_000_000


def header(run: int, unix_s: int = 1_700_000_000) -> SegmentHeader:
    return SegmentHeader(FORMAT, run, True, unix_s * SECOND, {})


def told(view: View) -> list[tuple[float, str, str]]:
    return [(each.at_ns / SECOND, each.worker, each.text) for each in cluster(view).happenings]


def load(view: View, now_ns: int, number: int, took_ms: int, predicted_ms: int = 20) -> None:
    end_ns = now_ns + took_ms * MS
    view.take(now_ns, Load(number, "w0", "m", (0,), now_ns, now_ns, now_ns, predicted_ms * MS))
    view.take(end_ns, Result(number, "w0", Status.OK, now_ns, end_ns))
    view.take(end_ns, Unload(100 + number, "w0", "m"))


def test_a_worker_that_was_away_is_marked_as_gone_and_as_back() -> None:
    view = View()
    view.take(0, header(1))
    view.take(1 * SECOND, WorkerJoined("w0", "gpu", 8))
    assert told(view) == [], "that a cluster begins is nothing that happened to it"
    view.take(5 * SECOND, WorkerLeft("w0", "silent for 1100 ms"))
    view.take(19 * SECOND, WorkerJoined("w0", "gpu", 8))
    expected = [(19.0, "w0", "back after 14.0 s"), (5.0, "w0", "gone: silent for 1100 ms")]
    assert told(view) == expected
    text = "\n".join(str(line) for line in cluster_lines(cluster(view), 120, view.now_ns))
    assert "w0: back after 14.0 s" in text
    view.reset(keep_history=True)
    view.take(20 * SECOND, WorkerJoined("w0", "gpu", 8))
    assert told(view) == expected, "a picture that names it again is not a return"


def test_the_schedule_of_a_worker_has_what_happened_to_it_and_to_the_controller() -> None:
    view = View()
    view.take(0, header(1))
    for worker in ("w0", "w1"):
        view.take(1 * SECOND, WorkerJoined(worker, "gpu", 8))
    view.take(2 * SECOND, OperatorAsked("ann", DrainWorker("w0")))
    view.take(3 * SECOND, OperatorAsked("ann", DrainWorker("w1")))
    view.take(5 * SECOND, OperatorAsked("ann", ResumeWorker("w0")))
    whole = schedule(view, 4 * SECOND, 6 * SECOND, workers=("w0",))
    assert whole.whole
    assert [each.text for each in whole.happenings] == ["resumed by ann", "drained by ann"]
    assert [each.worker for each in schedule(view, 0, 1).happenings] == ["w0", "w1", "w0"]
    part = schedule(view, 4 * SECOND, 6 * SECOND, after=whole.version, workers=("w0",))
    assert not part.whole
    assert [each.text for each in part.happenings] == ["resumed by ann"]


def test_what_operators_did_to_a_worker_is_marked() -> None:
    view = View()
    view.take(0, header(1))
    view.take(1 * SECOND, WorkerJoined("w0", "gpu", 8))
    for at_s, command in ((2, DrainWorker("w0")), (3, ResumeWorker("w0")), (3, ResumeWorker("w0"))):
        view.take(at_s * SECOND, OperatorAsked("ann", command))
    assert told(view) == [(3.0, "w0", "resumed by ann"), (2.0, "w0", "drained by ann")]


def test_a_far_slower_action_is_marked_once_in_a_while() -> None:
    view = View()
    view.take(0, header(1))
    view.take(1 * SECOND, ModelAdded(spec("m")))
    view.take(1 * SECOND, WorkerJoined("w0", "gpu", 8))
    for number, (at_s, took_ms) in enumerate([(2, 25), (3, 90), (4, 95), (20, 300)]):
        load(view, at_s * SECOND, number, took_ms)
    assert [text for _, _, text in told(view)] == [
        "slow: LOAD 3 of m took 300.0 ms, predicted 20.0 ms",
        "slow: LOAD 1 of m took 90.0 ms, predicted 20.0 ms",
    ]


def test_a_controller_that_began_anew_is_marked_and_what_happened_before_stays() -> None:
    view = View()
    view.take(100 * SECOND, header(1))
    view.take(101 * SECOND, WorkerJoined("w0", "gpu", 8))
    view.take(105 * SECOND, WorkerLeft("w0", "silent"))
    view.reset(keep_history=False)
    # Another clock: 10 s of it are 12 s after the first run's header in the calendar.
    view.take(10 * SECOND, header(2, 1_700_000_012))
    view.take(11 * SECOND, WorkerJoined("w0", "gpu", 8))
    assert told(view) == [(10.0, "", "the controller started again"), (3.0, "w0", "gone: silent")]


def test_a_log_that_is_played_again_tells_nothing_twice_and_nothing_of_the_future() -> None:
    view = View(Limits(happenings=3))
    for _ in range(2):
        view.reset(keep_history=False)
        view.take(0, header(1))
        view.take(1 * SECOND, WorkerJoined("w0", "gpu", 8))
        seen = told(view)
        for at_s in range(2, 6):
            view.take(at_s * SECOND, OperatorAsked("ann", DrainWorker(f"w{at_s}")))
        assert [at_s for at_s, _, _ in told(view)] == [5.0, 4.0, 3.0]
        assert seen == []


def test_models_that_come_and_go_leave_a_line_for_each_second() -> None:
    view = View()
    view.take(0, header(1))
    for number in range(3):
        view.take(1 * SECOND, ModelAdded(spec(f"m{number}")))
    assert told(view) == [], "that a cluster begins is nothing that happened to it"
    for number in range(8):
        view.take(20 * SECOND + number, ModelAdded(spec(f"n{number}")))
    view.take(30 * SECOND, ModelRemoved("n0"))
    expected = [
        (30.0, "", "model removed: n0"),
        (20.0, "", "models added: n0, n1, n2, n3, n4 and 3 more"),
    ]
    assert told(view) == expected
    view.reset(keep_history=True)
    view.take(30 * SECOND, ModelRemoved("n0"))
    assert told(view) == expected, "a log that is played again repeats them"
    view.take(40 * SECOND, ModelRemoved("m1"))
    view.take(42 * SECOND, Wakeup())
    with pytest.raises(Unknown, match=r"model 'm1' was removed 2 s ago"):
        model(view, "m1")
    view.take(43 * SECOND, ModelAdded(spec("m1")))
    assert model(view, "m1").line.name == "m1"


def test_what_gateways_refuse_is_counted_each_second_and_marked_when_it_begins() -> None:
    view = View()
    view.take(0, header(1))
    for second in range(1, 200):
        requests = {"unknown_model": 3} if second <= 30 or second > 150 else {}
        requests |= {"bad_input": 1} if second == 20 else {}
        if requests:
            view.take(second * SECOND, GatewayRefused("g0", requests))
        view.take(second * SECOND + MS, Wakeup())
    found = cluster(view)
    assert found.last_300s.turned_away == {"bad_input": 1, "unknown_model": 30 * 3 + 48 * 3}
    assert found.last_10s.turned_away == {"unknown_model": 30}
    assert found.last_300s.offered_rps == 0
    assert sum(found.series.turned_away) == 30 * 3 + 1 + 48 * 3
    assert [(round(at_s), text.partition(": ")[2]) for at_s, _, text in reversed(told(view))] == [
        (1, "3 unknown model"),
        (20, "1 bad input"),
        (151, "3 unknown model"),
    ]
    lines = "\n".join(line.plain for line in cluster_lines(found, 120, view.now_ns))
    assert "refused by gateways themselves: bad_input 1, unknown_model 234" in lines
    assert "gateway g0 refuses requests" in lines
    assert happenings(view, ("w0",)) == []


def test_a_worker_that_gives_no_sign_of_life_and_models_awaited_are_shown_while_it_is_so() -> None:
    view = View()
    view.take(0, header(1))
    view.take(0, ModelAdded(spec("m")))
    view.take(1 * SECOND, WorkerJoined("w0", "gpu", 8, {"m": spec("m").artifact}))
    assert model(view, "m").not_ready == ""
    view.take(20 * SECOND, Wakeup())
    view.told(Unready(("w0",), {"big": "being compiled"}, 7))
    found = cluster(view)
    assert (found.workers[0].state, found.workers[0].detail) == ("silent", "it gives no sign of life")
    assert model(view, "m").not_ready == "no worker: w0 gives no sign of life"
    assert (found.awaited, found.awaited_more) == ({"big": "being compiled"}, 7)
    assert told(view) == [(20.0, "w0", "gives no sign of life")]
    lines = "\n".join(line.plain for line in cluster_lines(found, 120, view.now_ns))
    assert "big is not served yet: being compiled" in lines
    assert "and 7 more models are not served yet" in lines
    view.told(Unready())
    assert cluster(view).workers[0].state == "serving"
    assert model(view, "m").not_ready == ""
