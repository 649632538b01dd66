"""A rejection's explanation and the scheduler's own reckoning are the same."""

from __future__ import annotations

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from mainspring.console.payloads import Story
from mainspring.console.queries.request import request
from mainspring.console.view.requests import Request
from mainspring.console.view.view import View
from tests.console.view.streams import EVERYTHING, Watched, feed

NEAR_NS = 50_000_000


def unreachable(view: View) -> list[Story]:
    return [
        request(view, str(each.id))
        for each in view.traffic.book.newest(("rejected",))
        if each.reason == "deadline_unreachable"
    ]


def best_ns(story: Story) -> int:
    return min(each.finish_ns for each in story.alternatives if each.finish_ns is not None)


def exact(view: View, story: Story) -> bool:
    assert story.earliest_finish_ns is not None
    return best_ns(story) + view.settings.response_margin_ns == story.earliest_finish_ns


@settings(max_examples=15, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(seed=st.integers(0, 10_000), policy=st.sampled_from(["mainspring", "clockwork"]))
def test_no_alternative_of_an_unreachable_deadline_was_feasible(seed: int, policy: str) -> None:
    watched, view = Watched(seed, policy), View(EVERYTHING)
    feed(view, watched.everything())
    for story in unreachable(view):
        if exact(view, story):
            assert not any(each.feasible for each in story.alternatives), f"seed {seed}: {story}"
            assert not any(each.chosen for each in story.alternatives)


@pytest.mark.parametrize("policy", ["mainspring", "clockwork"])
def test_there_is_much_to_explain_and_nearly_all_of_it_is_exact(policy: str) -> None:
    found = exactly = 0
    for seed in range(12):
        watched, view = Watched(seed, policy), View(EVERYTHING)
        feed(view, watched.everything())
        stories = unreachable(view)
        found += len(stories)
        exactly += sum(exact(view, story) for story in stories)
    assert found > 200
    # An estimate that was doubted for a request which was then served shows only with its INFER.
    assert exactly >= 0.99 * found, f"{exactly} of {found}"


def test_every_request_has_a_story_that_fits_its_end() -> None:
    outcomes = set()
    for seed in range(4):
        watched, view = Watched(seed), View(EVERYTHING)
        feed(view, watched.everything())
        ended = [*view.traffic.book.newest(("rejected", "late", "in_time", "cancelled"))]
        outcomes |= {each.outcome for each in ended}
        for each in ended:
            fits(request(view, str(each.id)), each)
    assert outcomes == {"rejected", "late", "in_time", "cancelled"}


def fits(story: Story, each: Request) -> None:
    """Check that a story says what became of a request, and on which worker."""
    assert story.outcome == each.outcome
    assert story.steps[0].what == "arrived"
    assert [step.at_ns for step in story.steps] == sorted(step.at_ns for step in story.steps)
    assert sum(option.chosen for option in story.alternatives) == (each.outcome in ("in_time", "late"))
    last = {"rejected": "rejected", "cancelled": "cancelled"}.get(each.outcome, "ended")
    assert last in [step.what for step in story.steps]
    if each.outcome == "late":
        assert story.summary.startswith("Late: EXEC ended ")
        assert "than predicted" in story.summary
    chosen = [option for option in story.alternatives if option.chosen]
    assert all(option.worker == each.worker for option in chosen)
