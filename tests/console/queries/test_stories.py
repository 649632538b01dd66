"""What a story says of LOADs that did not end in time and of workers that were silent already."""

from __future__ import annotations

import pytest

from mainspring.console.payloads import Story
from mainspring.console.queries.request import request
from mainspring.console.view.view import View
from mainspring.messages.actions import Load, Result
from mainspring.messages.codes import Reason, Status
from mainspring.messages.commands import DropWorker, Reject
from mainspring.messages.events import ModelAdded, RequestArrived, WorkerJoined
from mainspring.telemetry.log import FORMAT, SegmentHeader
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


def rejected(view: View, at_ms: int = 78) -> Story:
    detail = "w0 ended the action with not_resident"
    view.take(START + at_ms * MS, Reject(7, Reason.DEADLINE_PASSED, detail, None))
    return request(view, "7")


def steps(story: Story) -> list[tuple[float, str, str]]:
    return [((step.at_ns - START) / MS, step.what, step.text) for step in story.steps]


def test_a_load_that_had_not_ended_is_told_and_stands_in_the_summary(view: View) -> None:
    story = rejected(view)
    overdue = "LOAD 6039 on w0 had not ended by +78.0 ms, 60.0 ms overdue"
    assert (78.0, "overdue", overdue) in steps(story)
    assert overdue in story.summary
    view.take(START + 92 * MS, Result(6039, "w0", Status.OK, START + MS, START + 92 * MS))
    view.explained.clear()
    assert overdue in request(view, "7").summary, "as it was then, whatever came later"


def test_a_load_that_ended_is_told_with_how_long_it_took(view: View) -> None:
    view.take(START + 40 * MS, Result(6039, "w0", Status.OK, START + MS, START + 40 * MS))
    story = rejected(view)
    assert (40.0, "loaded", "LOAD 6039 ended on w0: it took 39.0 ms, 22.0 ms longer than predicted") in steps(
        story
    )
    assert "overdue" not in story.summary


def test_a_load_that_was_under_way_when_the_request_came_is_part_of_its_story(view: View) -> None:
    view.take(START + 10 * MS, RequestArrived(8, "m", 1, START + 70 * MS))
    view.take(START + 60 * MS, Reject(8, Reason.DEADLINE_PASSED, "queued", None))
    story = request(view, "8")
    assert [what for _, what, _ in steps(story)] == ["arrived", "sent", "overdue", "rejected"]
    assert "was under way" in story.steps[1].text
    assert "42.0 ms overdue" in story.summary


def test_a_worker_that_was_found_silent_soon_after_is_pointed_out(view: View) -> None:
    (before,) = rejected(view).alternatives
    assert "found to be gone" not in before.text
    view.take(START + 1_078 * MS, DropWorker("w0", "silent for 1100 ms"))
    (after,) = request(view, "7").alternatives
    assert after.text.endswith("; it was found to be gone 1000.0 ms later: silent for 1100 ms")
