"""Queries: which of their pieces are open, and what has ended (`messages.queries`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from mainspring.messages.events import QueryArrived
from mainspring.messages.queries import Chosen, QueryStep

if TYPE_CHECKING:
    from mainspring.cluster.requests import Request


def step_of(request: Request) -> str:
    """Return the step of a graph that a request is a piece of, such as ``read_text.find``; else empty."""
    if request.query is None or not request.query.event.graph:
        return ""
    event = request.query.event
    return f"{event.graph}.{event.steps[request.event.step].name}"


def choice_of(request: Request) -> str:
    """Return in words why a piece is of the member of a family that it is of; empty of other requests."""
    query = request.query
    found = None if query is None else query.choices.get(request.event.step)
    if found is None:
        return ""
    step, chosen = found
    offered = ", ".join(f"{name} ({score:g})" for name, score in zip(step.members, step.scores, strict=True))
    return f"{chosen.model} chosen among {offered}, at a price of {chosen.price:.3g} for a device's second"


class Query:
    """A query that has neither been answered nor rejected.

    ``due_ns`` is when the last EXEC must have ended: the deadline less the response margin; None for best
    effort.
    """

    __slots__ = ("arrived_ns", "choices", "done", "due_ns", "ended_ns", "event", "id", "open")

    def __init__(self, event: QueryArrived, arrived_ns: int, due_ns: int | None) -> None:
        self.id = event.query_id
        self.event = event
        self.arrived_ns = arrived_ns
        self.due_ns = due_ns
        self.open: dict[int, Request] = {}
        """Its pieces that have no end yet, by id."""
        self.done = [0] * len(event.steps)
        """Rows of each step that have ended."""
        self.ended_ns: dict[int, int] = {}
        """The scheduler's note: when each step that has ended did."""
        self.choices: dict[int, tuple[QueryStep, Chosen]] = {}
        """The steps of which a member was chosen as they were before, with the choice."""

    def __repr__(self) -> str:
        due = "best effort" if self.due_ns is None else f"due {self.due_ns}"
        steps = ", ".join(
            f"{done} of {step.rows} rows of {step.model}"
            for done, step in zip(self.done, self.event.steps, strict=True)
        )
        return f"query {self.id} (arrived {self.arrived_ns}, {due}, {len(self.open)} open, {steps})"

    def ended(self, index: int) -> bool:
        """Return whether all of a step has ended, as far as its rows are known."""
        if self.done[index] < self.event.steps[index].rows:
            return False
        return index not in [piece.event.step for piece in self.open.values()]

    def learn(self, steps: tuple[QueryStep, ...]) -> bool:
        """Take what is known now of the steps without a piece so far; return False if these are others."""
        known = self.event.steps
        if len(steps) != len(known):
            return False
        if any(
            new.model != old.model and old.model not in new.members
            for old, new in zip(known, steps, strict=True)
        ):
            return False
        began = {piece.event.step for piece in self.open.values()}
        merged = [
            old if done or index in began else _with_choice(old, new)
            for index, (done, old, new) in enumerate(zip(self.done, known, steps, strict=True))
        ]
        self.event = msgspec.structs.replace(self.event, steps=tuple(merged))
        return True

    def choose(self, chosen: Chosen) -> None:
        """Have a step be of one of its members from now on."""
        steps = list(self.event.steps)
        if chosen.step < len(steps):
            if steps[chosen.step].members:
                self.choices[chosen.step] = steps[chosen.step], chosen
            step = msgspec.structs.replace(steps[chosen.step], model=chosen.model, members=(), scores=())
            steps[chosen.step] = step
            self.event = msgspec.structs.replace(self.event, steps=tuple(steps))

    @property
    def over(self) -> bool:
        """True if nothing of it is left to do."""
        left = [step for step, done in zip(self.event.steps, self.done, strict=True) if done < step.rows]
        return not self.open and not left


def _with_choice(old: QueryStep, new: QueryStep) -> QueryStep:
    """Return what is known of a step now, of the model that was chosen for it before, if one was."""
    if old.members or not new.members:
        return new
    return msgspec.structs.replace(new, model=old.model, members=(), scores=())
