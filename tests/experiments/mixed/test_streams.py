"""Streams' answers are those of the state that their answered requests left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mainspring.experiments.mixed.fleet import STATE, STREAM, Step, Stream, judge, sources
from mainspring.experiments.wild.reference import Reference

KILLED_S = 3.0


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (found,) = [
        each for each in sources(tmp_path_factory.mktemp("files"), print, small=True) if each.kind == STREAM
    ]
    return found.file


def asked(stream: Stream, count: int) -> list[Step]:
    """Send so many requests, one a second, of which the first has been answered before the second is sent."""
    random = np.random.default_rng(count)
    steps = []
    for second in range(count):
        steps.append(stream.step({"x": random.standard_normal((1, 40)).astype(np.float32)}, float(second)))
        if not second:
            stream.answered(steps[0], {})
    return steps


def answer(file: Path, folder: Path, steps: list[Step]) -> None:
    """Give each step what a loop over them gives."""
    fed, taken = STATE
    reference = Reference(file, folder)
    state: Any = np.zeros((1, 32), np.float32)
    for step in steps:
        step.answer = reference.run({**step.inputs, fed: state})
        state = step.answer.pop(taken)


def test_answers_of_the_state_are_right(file: Path, tmp_path: Path) -> None:
    stream = Stream(1)
    answer(file, tmp_path, asked(stream, 6))
    assert [step.start for step in stream.steps] == [True] + [False] * 5
    assert judge([stream], file, tmp_path, KILLED_S) == (0, "", 0, 1)


def test_a_request_without_an_answer_leaves_the_state(file: Path, tmp_path: Path) -> None:
    stream = Stream(1)
    steps = asked(stream, 6)
    stream.refused(steps[2], unknown=False)
    answer(file, tmp_path, [*steps[:2], *steps[3:]])
    assert judge([stream], file, tmp_path, KILLED_S) == (0, "", 0, 1)


def test_an_answer_of_another_state_is_wrong(file: Path, tmp_path: Path) -> None:
    stream = Stream(1)
    steps = asked(stream, 6)
    answer(file, tmp_path, steps)
    # A state that knows of a request that was refused.
    steps[2].answer = None
    found = judge([stream], file, tmp_path, KILLED_S)
    assert found.wrong >= 1
    assert found.first_problem.startswith("stream-1, request 3: output 'y'")


def test_a_state_that_was_forgotten_is_counted_and_begun_anew(file: Path, tmp_path: Path) -> None:
    stream = Stream(1)
    steps = asked(stream, 4)
    answer(file, tmp_path, steps[:3])
    stream.refused(steps[3], unknown=True)
    assert stream.step(steps[0].inputs, 4.0).start
    assert not stream.ready, "what follows on a beginning waits for it"
    assert judge([stream], file, tmp_path, KILLED_S) == (0, "", 1, 0)


def test_a_beginning_without_an_answer_is_no_loss() -> None:
    stream = Stream(1)
    stream.refused(stream.step({}, 0.0), unknown=False)
    assert stream.ready
    assert stream.step({}, 1.0).start
    assert stream.forgotten == 0
