"""The states of a model on a worker, and which may follow which."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from mainspring.cluster.models import Model
from mainspring.cluster.placements import TRANSITIONS, State
from mainspring.cluster.state import Cluster
from mainspring.cluster.workers import Worker
from tests.scheduler.hand import spec

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("state", "following"), list(itertools.product(State, State)))
def test_a_model_enters_only_a_state_that_may_follow_its_own(state: State, following: State) -> None:
    cluster = Cluster()
    placement = cluster.place(Model(spec("m"), 1), Worker("w0", 1, "gpu", 8))
    placement.make_up(state)
    if following in TRANSITIONS[state]:
        placement.enter(following)
        assert placement.state is following
    else:
        with pytest.raises(AssertionError, match=f"m on w0: {state.value}.*can't be {following.value} next"):
            placement.enter(following)
        assert placement.state is state


def test_every_state_is_reached_from_known() -> None:
    reached, left = {State.KNOWN}, [State.KNOWN]
    while left:
        new = [state for state in TRANSITIONS[left.pop()] if state not in reached]
        reached.update(new)
        left += new
    assert reached == set(State)


def documented(heading: str) -> dict[str, tuple[str, ...]]:
    """Return the table of transitions below a heading of docs/state.md."""
    text = (DOCS / "state.md").read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([a-z]+)` \| ([^|]+) \|$", text, re.MULTILINE)
    return {name: tuple(re.findall("`([a-z]+)`", following)) for name, following in rows}


def test_the_documentation_has_the_same_table() -> None:
    told = documented("Pairs of a model and a worker")
    assert told == {state.value: tuple(each.value for each in TRANSITIONS[state]) for state in TRANSITIONS}
