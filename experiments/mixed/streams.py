"""The stream's clients: what each has sent, and whether its answers are those of its state.

A request that got no answer left the state as it was, so the right answers follow from which were answered.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from mainspring.experiments.mixed.fleet import STATE
from mainspring.experiments.wild.reference import Arrays, Reference, compare


class Step(msgspec.Struct):
    """One request of a stream, in the order of sending."""

    inputs: Arrays
    start: bool
    sent_s: float
    answer: Arrays | None = None


class Stream:
    """One client's sequence. Nothing waits for an answer but its beginning."""

    def __init__(self, number: int) -> None:
        self.sequence_id = f"stream-{number}"
        self.steps: list[Step] = []
        self.forgotten = 0
        self._begun = False
        self._starting: Step | None = None

    @property
    def ready(self) -> bool:
        """Whether the next request can be sent: not while it is open whether the sequence has begun."""
        return self._starting is None

    def step(self, inputs: Arrays, sent_s: float) -> Step:
        """Note the next request, and return it."""
        step = Step(inputs, not self._begun, sent_s)
        if step.start:
            self._starting = step
        self.steps.append(step)
        return step

    def answered(self, step: Step, answer: Arrays) -> None:
        """Note an answer."""
        step.answer = answer
        if step is self._starting:
            self._begun, self._starting = True, None

    def refused(self, step: Step, *, unknown: bool) -> None:
        """Note that a request got none; ``unknown``: because the gateway does not know the sequence."""
        if step is self._starting:
            self._starting = None
        elif unknown and self._begun:
            self.forgotten += 1
            self._begun = False


class Judged(NamedTuple):
    """What became of the streams."""

    wrong: int
    """Answers that are not of the state that the stream should have."""
    first_problem: str
    forgotten: int
    went_on: int
    """Streams that were answered before the worker was killed and after it, without a new beginning."""


def judge(streams: list[Stream], file: Path, folder: Path, killed_s: float) -> Judged:
    """Compare all answers with ONNX Runtime in a loop that carries the state."""
    reference = Reference(file, folder)
    fed, taken = STATE
    shape = [each if isinstance(each, int) else 1 for each in _declared(reference, fed)]
    wrong, problem, went_on = 0, "", 0
    for stream in streams:
        state: Any = np.zeros(shape, np.float32)
        before = after = False
        for place, step in enumerate(stream.steps):
            if step.answer is None:
                continue
            if step.start:
                state, before, after = np.zeros(shape, np.float32), False, False
            right = reference.run({**step.inputs, fed: state})
            state = right.pop(taken)
            found = compare(step.answer, right)
            if not found.same:
                wrong += 1
                problem = problem or f"{stream.sequence_id}, request {place}: {found.problem}"
            before |= step.sent_s < killed_s
            after |= step.sent_s >= killed_s
        went_on += before and after
    return Judged(wrong, problem, sum(stream.forgotten for stream in streams), went_on)


def _declared(reference: Reference, name: str) -> list[int | str | None]:
    return next(each.dims for each in reference.inputs if each.name == name)
