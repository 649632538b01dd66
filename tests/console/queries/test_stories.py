"""What a story says of LOADs that did not end in time and of workers that were silent already."""

from __future__ import annotations

import msgspec
import pytest

from mainspring.console.payloads import Story
from mainspring.console.queries.request import explained, request
from mainspring.console.queries.schedule import schedule
from mainspring.console.view.view import View
from mainspring.messages.actions import (
    Candidate,
    DropWorker,
    Infer,
    Load,
    LoadEvidence,
    LoadReason,
    Open,
    PlanEvidence,
    Readiness,
    Reject,
    RejectEvidence,
    Result,
)
from mainspring.messages.codes import Reason, Status
from mainspring.messages.events import ModelAdded, QueryArrived, RequestArrived, WorkerJoined
from mainspring.messages.queries import Chosen, QueryStep
from mainspring.telemetry.entries import FORMAT, SegmentHeader
from tests.scheduler.hand import spec

MS = 1_000_000
START = 1_000 * MS


@pytest.fixture
def view() -> View:
    """A worker that is loading a model for a request which came at 0 and has 80 ms."""
    view = View()
    view.take(0, SegmentHeader(FORMAT, 1, True, 1_700_000_000_000_000_000, {}))
    view.take(1, WorkerJoined("w0", "gpu", 8))
    view.take(2, ModelAdded(spec("m")))
    view.take(START, RequestArrived(7, "m", 1, START + 80 * MS))
    view.take(START, Load(6039, "w0", "m", (0,), START, START + 5 * MS, START + MS, 17 * MS))
    return view


def evidence(at_ms: int) -> RejectEvidence:
    """The LOAD that the fixture's model waits for is overdue, and no other worker can run the model."""
    at_ns = START + at_ms * MS
    best = PlanEvidence(
        exec_free_ns=at_ns + MS // 2,
        inputs_ns=at_ns + MS // 2,
        weights_ns=at_ns + 40 * MS,
        load_id=6039,
        exec_after=0,
        exec_ahead=0,
        worker="w0",
        begin_ns=at_ns + 40 * MS,
        duration_ns=4 * MS,
        load_ns=0,
        load_after=0,
        load_ahead=0,
    )
    return RejectEvidence(best, (Candidate("w1", Readiness.FAILED, 0, "no memory"),), 5, 2)


def rejected(view: View, at_ms: int = 78) -> Story:
    detail = "w0 ended the action with not_resident"
    reject = Reject(7, Reason.DEADLINE_PASSED, detail, evidence=evidence(at_ms))
    view.take(START + at_ms * MS, reject)
    return request(view, "7")


def steps(story: Story) -> list[tuple[float, str, str]]:
    return [((step.at_ns - START) / MS, step.what, step.text) for step in story.steps]


def test_a_load_that_had_not_ended_is_told_and_stands_in_the_summary(view: View) -> None:
    story = rejected(view)
    overdue = "LOAD 6039 on w0 had not ended by +78.0 ms, 60.0 ms overdue"
    assert (78.0, "overdue", overdue) in steps(story)
    assert overdue in story.summary
    view.take(START + 92 * MS, Result(6039, "w0", Status.OK, START + MS, START + 92 * MS))
    assert overdue in request(view, "7").summary, "as it was then, whatever came later"


def test_a_load_that_ended_is_told_with_how_long_it_took(view: View) -> None:
    view.take(START + 40 * MS, Result(6039, "w0", Status.OK, START + MS, START + 40 * MS))
    story = rejected(view)
    assert (40.0, "loaded", "LOAD 6039 ended on w0: it took 39.0 ms, 22.0 ms longer than predicted") in steps(
        story
    )
    assert "overdue" not in story.summary


def test_what_actions_took_is_told_by_part_where_it_is_known(view: View) -> None:
    loaded = Result(6039, "w0", Status.OK, START + MS, START + 20 * MS, device_ns=18 * MS)
    view.take(START + 21 * MS, loaded)
    view.take(START + 21 * MS, Infer(6040, "w0", "m", 1, (7,), (1,), (True,), START, START + 99 * MS, 0, MS))
    view.take(START + 99 * MS, Result(6040, "w0", Status.OK, START + 90 * MS, START + 99 * MS, device_ns=MS))
    story = request(view, "7")
    parts = "(1.00 ms on the device, 8.00 ms on the host)"
    told = {what: text for _, what, text in steps(story)}
    assert told["loaded"].endswith(
        "2.0 ms longer than predicted (18.00 ms on the device, 1.00 ms on the host)"
    )
    assert told["ended"] == f"EXEC took 9.0 ms, 8.0 ms longer than predicted {parts}"
    assert story.summary.endswith(f"took 8.0 ms longer than predicted {parts}."), "it is late"
    lines = {line.id: line for line in schedule(view, START, START + 99 * MS).actions}
    assert (lines[6039].device_ns, lines[6040].device_ns) == (18 * MS, MS)


def test_an_action_without_parts_is_told_without(view: View) -> None:
    view.take(
        START + 21 * MS, Result(6039, "w0", Status.ENGINE_ERROR, START + MS, START + 20 * MS, device_ns=MS)
    )
    (line,) = schedule(view, START, START + 99 * MS).actions
    assert line.device_ns is None, "it did not end well"


def test_a_load_that_was_under_way_when_the_request_came_is_part_of_its_story(view: View) -> None:
    view.take(START + 10 * MS, RequestArrived(8, "m", 1, START + 70 * MS))
    view.take(START + 60 * MS, Reject(8, Reason.DEADLINE_PASSED, "queued", None))
    story = request(view, "8")
    assert [what for _, what, _ in steps(story)] == ["arrived", "sent", "overdue", "rejected"]
    assert "was under way" in story.steps[1].text
    assert "42.0 ms overdue" in story.summary


def opens(view: View, action_id: int, worker: str, model: str, at_ms: int, took_ms: int) -> None:
    """Have an OPEN sent that begins at once, and end it if it took any time."""
    at_ns = START + at_ms * MS
    view.take(at_ns, Open(action_id, worker, model, at_ns, at_ns + 10 * MS, at_ns, 50 * MS))
    if took_ms:
        view.take(at_ns + took_ms * MS, Result(action_id, worker, Status.OK, at_ns, at_ns + took_ms * MS))


def test_an_open_before_a_request_is_part_of_its_story(view: View) -> None:
    view.take(START, ModelAdded(spec("n")))
    opens(view, 6040, "w0", "n", 5, 60)
    told = steps(rejected(view))
    assert (5.0, "sent", "OPEN 6040 of the executable of n on w0, predicted +5.0 ms to +55.0 ms") in told
    assert (65.0, "opened", "OPEN 6040 ended on w0: it took 60.0 ms, 10.0 ms longer than predicted") in told


def test_an_open_that_has_not_ended_is_told_as_overdue(view: View) -> None:
    view.take(START, ModelAdded(spec("n")))
    opens(view, 6040, "w0", "n", 5, 0)
    assert (78.0, "overdue", "OPEN 6040 on w0 had not ended by +78.0 ms, 23.0 ms overdue") in steps(
        rejected(view)
    )


def test_an_open_of_the_requests_own_model_is_told_as_such(view: View) -> None:
    view.take(START - 9 * MS, WorkerJoined("w1", "gpu", 8))
    opens(view, 6040, "w1", "m", -5, 0)
    (told,) = [text for _, what, text in steps(rejected(view)) if what == "sent" and "OPEN" in text]
    assert (
        told == "OPEN 6040 of the executable of the model on w1 was under way, predicted -5.0 ms to +45.0 ms"
    )


def test_an_open_elsewhere_is_not_part_of_a_story(view: View) -> None:
    view.take(START, WorkerJoined("w1", "gpu", 8))
    view.take(START, ModelAdded(spec("n")))
    opens(view, 6040, "w1", "n", 5, 60)
    assert not [text for _, _, text in steps(rejected(view)) if "OPEN" in text]


def test_a_request_that_was_refused_for_an_open_says_that_others_come_first(view: View) -> None:
    why = "no worker has time left for it before it is due: w1 opens an executable"
    view.take(START + MS, Reject(7, Reason.DEADLINE_UNREACHABLE, why, evidence=evidence(1)))
    told = request(view, "7").summary
    assert told.startswith(f"Rejected on arrival: {why}. Before all that waits, the best was w0: ")


def test_a_worker_that_was_found_silent_soon_after_is_pointed_out(view: View) -> None:
    before = rejected(view).alternatives[0]
    assert "found to be gone" not in before.text
    view.take(START + 1_078 * MS, DropWorker("w0", "silent for 1100 ms"))
    after = request(view, "7").alternatives[0]
    assert after.text.endswith("; it was found to be gone 1000.0 ms later: silent for 1100 ms")


def test_a_story_tells_its_evidence(view: View) -> None:
    story = rejected(view)
    best, other = story.alternatives
    assert best.text == (
        "being loaded by LOAD 6039, weights there at +118.0 ms; EXEC idle; EXEC takes 4.0 ms, so done at "
        "+122.0 ms; 45.0 ms too late"
    )
    assert (other.worker, other.finish_ns) == ("w1", None)
    assert other.text == "it could not prepare the model: no memory"
    assert story.more == 5
    assert "the best was w0: being loaded by LOAD 6039" in story.summary
    assert story.summary.count("and 2 others waited for its model") == 1


def test_a_load_is_told_with_its_reason(view: View) -> None:
    window = START, START + 5 * MS, START + MS, 17 * MS
    load = Load(6050, "w0", "n", (1,), *window, evidence=LoadEvidence(LoadReason.MISSED, 0, 0, ()))
    result = Result(6050, "w0", Status.OK, START + MS, START + 19 * MS)
    for entry in (ModelAdded(spec("n")), RequestArrived(9, "n", 1, None), load, result):
        view.take(START, entry)
        if entry in (load, result):
            said = [step.text for step in request(view, "9").steps if step.what == "sent"]
            assert "1 pages, as requests had missed it and LOAD was idle, predicted" in said[0]


def test_a_load_names_the_models_that_it_displaced_while_it_runs_and_once_it_has_ended(view: View) -> None:
    evicted = ("a", "b", "c", "d", "Ä-e")
    window = START, START + 5 * MS, START + MS, 17 * MS
    load = Load(6050, "w0", "n", (1,), *window, evidence=LoadEvidence(LoadReason.DEMAND, 0, 0, evicted))
    result = Result(6050, "w0", Status.ENGINE_ERROR, START + MS, START + 19 * MS, detail="no memory")
    for entry in (ModelAdded(spec("n")), RequestArrived(9, "n", 1, None), load, result):
        view.take(START, entry)
        if entry in (load, result):
            said = [step.text for step in request(view, "9").steps if step.what == "sent"]
            assert "for requests that wait, evicting a, b, c, d and 1 more, predicted" in said[0]
            shown = schedule(view, START, START + 20 * MS)
            (line,) = [each for each in shown.actions if each.id == 6050]
            assert line.why == "for requests that wait, evicting a, b, c, d and 1 more"
            assert line.evicted == list(evicted)
            assert line.detail == ("no memory" if entry is result else "")


def test_what_stood_before_a_plan_is_named(view: View) -> None:
    for action_id, at_ms in ((6040, 2), (6041, 3)):
        window = START + at_ms * MS, START + 90 * MS, START + 18 * MS, 10 * MS
        infer = Infer(action_id, "w0", "n", 4, (100 + action_id,), (4,), (False,), *window)
        view.take(START + at_ms * MS, infer)
    told = evidence(10)
    assert told.best is not None
    best = msgspec.structs.replace(
        told.best,
        exec_free_ns=START + 38 * MS,
        exec_after=6041,
        exec_ahead=2,
        load_id=0,
        load_ns=17 * MS,
        load_after=6039,
        load_ahead=1,
    )
    told = msgspec.structs.replace(told, best=best)
    view.take(START + 10 * MS, Reject(7, Reason.DEADLINE_UNREACHABLE, "", START + 55 * MS, told))
    story = request(view, "7")
    busy = "EXEC busy until +38.0 ms with INFER 6041 (n of batch 4) and 1 before it"
    assert busy in story.summary
    loading = "not resident: LOAD takes 17.0 ms behind LOAD 6039 (m), weights there at +50.0 ms"
    assert loading in story.summary
    view.take(START + 39 * MS, Result(6041, "w0", Status.OK, START + 28 * MS, START + 38 * MS))
    assert busy in request(view, "7").summary, "it has ended since"


def test_an_older_log_has_no_evidence_and_the_story_says_so(view: View) -> None:
    view.take(START + 5 * MS, Reject(7, Reason.DEADLINE_UNREACHABLE, "no worker could", START + 90 * MS))
    story = request(view, "7")
    assert story.alternatives == []
    assert story.summary.endswith("By when workers could have run it was not recorded.")
    view.take(START + 6 * MS, RequestArrived(9, "m", 1, None))
    view.take(START + 7 * MS, Reject(9, Reason.OVERLOADED, "too many"))
    assert "not recorded" not in request(view, "9").summary


def test_a_query_has_one_story_with_a_line_for_each_piece(view: View) -> None:
    deadline_ns = START + 80 * MS
    view.take(START, QueryArrived(20, deadline_ns, (QueryStep("m", 6),)))
    view.take(START, RequestArrived(21, "m", 4, deadline_ns, query=20))
    view.take(START, RequestArrived(22, "m", 2, deadline_ns, query=20))
    story = request(view, "20")
    assert (story.rows, story.outcome, len(story.steps)) == (6, "waiting", 2)
    assert "a piece of query 20" in request(view, "21").steps[0].text
    view.take(START + 9 * MS, Reject(20, Reason.DEADLINE_PASSED, "a piece of 4 rows", evidence=evidence(9)))
    story = request(view, "20")
    assert (story.outcome, story.reason) == ("rejected", "deadline_passed")
    assert [step.text for step in story.steps] == [
        "piece 1 of 2, request 21, 4 rows: rejected",
        "piece 2 of 2, request 22, 2 rows: rejected",
    ]


def test_a_query_of_a_graph_has_a_line_for_each_step(view: View) -> None:
    deadline_ns = START + 80 * MS
    steps = QueryStep("m", 4, name="find"), QueryStep("m", 2, name="read")
    view.take(START, QueryArrived(20, deadline_ns, steps, graph="text"))
    view.take(START, RequestArrived(21, "m", 4, deadline_ns, query=20))
    view.take(START, RequestArrived(22, "m", 2, deadline_ns, query=20, step=1))
    view.take(START + MS, Reject(21, Reason.DEADLINE_PASSED, "late"))
    story = request(view, "20")
    assert story.summary.startswith("Graph 'text', 2 steps: 2 pieces with 6 rows")
    texts = sorted(step.text for step in story.steps)
    assert texts[0] == "step text.find (model m), request 21, 4 rows: rejected after 1.0 ms"
    assert texts[1].startswith("step text.read (model m), request 22, 2 rows: waiting")
    assert "step text.read of query 20" in request(view, "22").steps[0].text


def test_the_story_of_a_familys_request_says_which_member_was_chosen_and_why(view: View) -> None:
    deadline_ns = START + 80 * MS
    step = QueryStep("n", 1, name="member", members=("n", "m"), scores=(0.9, 0.5))
    view.take(START, QueryArrived(20, deadline_ns, (step,), graph="classify"))
    view.take(START, Chosen(20, 0, "m", 12.5))
    view.take(START, RequestArrived(21, "n", 1, deadline_ns, query=20))
    why = "m chosen among n (0.9), m (0.5), at a price of 12.5 for a device's second"
    open_line = request(view, "20").steps[0].text
    assert open_line.startswith("step classify.member (model m)")
    assert open_line.endswith(why)
    assert not explained(view, "20")
    view.take(START + MS, Reject(21, Reason.DEADLINE_PASSED, "late"))
    assert explained(view, "20")
    assert request(view, "20").steps[0].text.endswith(why)
    assert why in request(view, "21").steps[0].text


def test_a_query_that_is_refused_on_arrival_is_told_as_a_request(view: View) -> None:
    view.take(START, QueryArrived(20, START + 80 * MS, (QueryStep("m", 500),)))
    view.take(START, Reject(20, Reason.DEADLINE_UNREACHABLE, "piece 4 of 125", evidence=evidence(0)))
    story = request(view, "last-rejected")
    assert (story.id, story.rows, story.reason) == ("20", 500, "deadline_unreachable")
    assert any("piece 4 of 125" in step.text for step in story.steps)
