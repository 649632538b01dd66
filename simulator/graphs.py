"""Graphs of models in virtual time: the gateway of `simulator.gateway`, with queries of several steps.

What a step's condition decides, and how many rows a step with rows of its own has, is drawn: each row of the
step before gives ``share`` rows in the mean. The gateway is taken to have learnt the shares. With ``apart``
no query is made of a request: its client calls step after step, each with a fixed share of the deadline.
With ``least`` a graph is an ensemble, whose reply leaves with the members that came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import msgspec
import numpy as np

from mainspring.messages.actions import Reject
from mainspring.messages.codes import Reason
from mainspring.messages.events import QueryArrived, RequestArrived, pieces_of
from mainspring.messages.model import ModelSpec
from mainspring.messages.queries import Piece, QueryStep, StepsKnown, piece_rows
from mainspring.simulator.costs import ProcessCosts
from mainspring.simulator.environment import Agenda, Link
from mainspring.simulator.gateway import Flight, Replies, SimulatedGateway, piece_id
from mainspring.simulator.graph_groups import GraphGroup
from mainspring.simulator.spec import Faults
from mainspring.traces.arrival import Arrival


class _Course:
    """State of a request for a graph."""

    def __init__(self, graph: GraphGroup, rows: int) -> None:
        self.graph = graph
        self.rows = rows
        """Rows of the request."""
        self.ended: dict[int, int] = {}
        """Rows of each step that has ended or fallen away."""
        self.begun: dict[int, int] = {}
        self.pieces: dict[int, tuple[int, int]] = {}
        """Step and rows of each piece without outputs, by id."""
        self.named = 0
        """Pieces that there were."""
        self.missing: set[int] = set()
        """Members of an ensemble that can't be in time."""

    @property
    def members_left(self) -> int:
        """Members of an ensemble that have outputs, or may still have some."""
        return len(self.graph.steps) - len(self.missing)


class GraphGateway(SimulatedGateway):
    """The request table of a gateway that knows graphs."""

    def __init__(
        self,
        faults: Faults,
        costs: ProcessCosts,
        agenda: Agenda,
        to_controller: Link,
        replies: Replies,
        graphs: Sequence[GraphGroup],
        seed: int,
    ) -> None:
        super().__init__(faults, costs, agenda, to_controller, replies)
        self._graphs = {graph.name: graph for graph in graphs}
        self._after = {graph.name: waits_for(graph) for graph in graphs}
        """Indices of the steps that each step of each graph waits for."""
        self._models: dict[str, ModelSpec] = {}
        self._piece_rows: dict[str, int] = {}
        self._draws = np.random.default_rng([seed, 0x67])
        self._courses: dict[int, _Course] = {}
        """State of each request, by its id."""

    def model_up(self, spec: ModelSpec) -> None:
        """Serve a model."""
        super().model_up(spec)
        self._models[spec.name] = spec
        self._piece_rows[spec.name] = piece_rows(spec)

    def submit(self, now_ns: int, request_id: int, arrival: Arrival, key: int = -1) -> Flight:
        """Take a request in that comes from its client now."""
        graph = self._graphs.get(arrival.model)
        if graph is None:
            return super().submit(now_ns, request_id, arrival, key)
        flight = self.enter(now_ns, request_id, arrival, key)
        course = self._courses[request_id] = _Course(graph, arrival.rows)
        if graph.least and flight.request.deadline_ns is not None:
            self.agenda.at(flight.request.deadline_ns, self._cut_off, request_id, flight)
        begun = self._begin(flight, course)
        request = flight.request
        steps, sent_ns = self._steps(course), self.sends_ns(now_ns)
        if graph.apart:
            self._send(sent_ns, flight, course, begun)
            return flight
        event = QueryArrived(
            *(request_id, request.deadline_ns, steps, request.priority, graph.name, request.tenant)
        )
        self.pieces[request_id] = list(pieces_of(event, tuple(begun)))
        self.arriving.append((sent_ns, event))
        return flight

    def piece_ended(self, now_ns: int, whole: Flight, request_id: int) -> None:
        """Have what waits for a piece begin."""
        course = self._courses.get(whole.request.request_id)
        if course is None:
            return
        step, _ = course.pieces.pop(request_id)
        if step in [each for each, _ in course.pieces.values()]:
            return
        course.ended[step] = course.begun[step]
        if not whole.pieces and len(course.ended) == len(course.graph.steps):
            del self._courses[whole.request.request_id]
            return
        begun = self._begin(whole, course)
        at_ns = self.sends_ns(now_ns)
        steps = self._steps(course)
        if not course.graph.apart and any(each.share != 1.0 for each in steps):
            self.arriving.append((at_ns, StepsKnown(whole.request.request_id, steps)))
        self._send(at_ns, whole, course, begun)
        if not whole.pieces:
            del self._courses[whole.request.request_id]

    def rejected(self, now_ns: int, command: Reject) -> None:
        """Pass the controller's rejection on; of a client that calls step after step, give the rest up."""
        whole = self.whole_of(command.request_id)
        course = None if whole is None else self._courses.get(whole.request.request_id)
        if whole is not None and course is not None and course.graph.least:
            course.missing.add(course.pieces[command.request_id][0])
            if course.members_left >= course.graph.least:
                self._go_on_without(now_ns, whole, command.request_id)
                return
        if whole is not None and course is not None and (course.graph.apart or course.graph.least):
            self._withdraw_all(now_ns, whole, course, command.request_id)
            command = Reject(whole.request.request_id, command.reason, command.detail)
        self._courses.pop(command.request_id, None)
        super().rejected(now_ns, command)

    def _give_up(self, request_id: int) -> Flight | None:
        self._courses.pop(request_id, None)
        return super()._give_up(request_id)

    def _go_on_without(self, now_ns: int, whole: Flight, request_id: int) -> None:
        """Have an ensemble answer without a member, of which this piece was refused."""
        self.forget_piece(whole, request_id)
        self.piece_ended(now_ns, whole, request_id)
        if not whole.pieces:
            self.answer(now_ns, whole)

    def _cut_off(self, request_id: int, flight: Flight) -> None:
        """Answer an ensemble's request whose time is over with the members that came, if they are enough."""
        if self.flights.get(request_id) is not flight:
            return
        course, now_ns = self._courses[request_id], self.agenda.now_ns
        course.missing.update([step for step, _ in course.pieces.values()])
        self._withdraw_all(now_ns, flight, course)
        if course.members_left < course.graph.least:
            self._give_up(request_id)
            self._error(now_ns, flight, Reason.TIMED_OUT)
            return
        for each in list(course.pieces):
            self.forget_piece(flight, each)
        del self._courses[request_id]
        self.answer(now_ns, flight)

    def _withdraw_all(self, now_ns: int, whole: Flight, course: _Course, but: int = -1) -> None:
        """Tell the controller that nobody waits for a request, but for a piece that it has ended itself."""
        if not course.graph.apart:
            self._withdraw(now_ns, whole.request.request_id)
            return
        for each in course.pieces:
            if each != but:
                self._withdraw(now_ns, each)

    # --- the steps ---

    def _begin(self, flight: Flight, course: _Course) -> list[Piece]:
        """Return the pieces of the steps that may begin now; those without rows fall away."""
        found: list[Piece] = []
        for index, step in enumerate(course.graph.steps):
            after = self._after[course.graph.name][index]
            if index in course.begun or not all(each in course.ended for each in after):
                continue
            rows = self._drawn(course, index, step.share)
            course.begun[index] = rows
            if not rows:
                course.ended[index] = 0
            most = min([self._piece_rows[each] for each in step.members or (step.model,)])
            for first in range(0, rows, most):
                request_id = piece_id(flight.request.request_id, course.named)
                course.named += 1
                piece = Piece(request_id, min(most, rows - first), index)
                course.pieces[request_id] = index, piece.rows
                self.await_piece(flight, request_id)
                found.append(piece)
        return found

    def _drawn(self, course: _Course, index: int, share: float) -> int:
        """Return how many rows a step has, of those that take part in what it waits for."""
        after = self._after[course.graph.name][index]
        rows = min([course.ended[each] for each in after], default=course.rows)
        part = share - int(share)
        return rows * int(share) + (int(self._draws.binomial(rows, part)) if part and rows else 0)

    def _steps(self, course: _Course) -> tuple[QueryStep, ...]:
        """Return the steps as a gateway that has learnt the shares tells them."""
        found: list[QueryStep] = []
        for index, step in enumerate(course.graph.steps):
            after = self._after[course.graph.name][index]
            certain = step.share >= 1.0 and all(found[each].certain for each in after)
            share = step.share * prod([found[each].share for each in after])
            rows = max(1, round(share * course.rows))
            if index in course.begun:
                certain, rows = True, 0 if index in course.ended else course.begun[index]
            name = step.name or step.model
            required = not course.graph.least
            family = step.members, step.score, step.at_least
            found.append(QueryStep(step.model, rows, (), after, required, certain, name, share, *family))
        return tuple(found)

    def _send(self, at_ns: int, whole: Flight, course: _Course, pieces: Sequence[Piece]) -> None:
        """Send the controller pieces one by one."""
        request, graph = whole.request, course.graph
        for piece in pieces:
            model = graph.steps[piece.step].model
            deadline_ns, query = request.deadline_ns, 0 if graph.apart else request.request_id
            if graph.apart and deadline_ns is not None and not graph.least:
                until = self._until(graph, self._models)[piece.step]
                deadline_ns = whole.arrived_ns + round((deadline_ns - whole.arrived_ns) * until)
            event = RequestArrived(
                *(piece.request_id, model, piece.rows, deadline_ns, request.priority),
                query=query,
                step=piece.step,
                tenant=request.tenant,
            )
            self.arriving.append((at_ns, event))

    def _until(self, graph: GraphGroup, models: Mapping[str, ModelSpec]) -> list[float]:
        """Return the part of the deadline by which each step is due, by the steps' profiles."""
        took = [next(iter(models[step.model].profiles.values())).infer_ns[1] for step in graph.steps]
        until: list[float] = []
        for after, ns in zip(self._after[graph.name], took, strict=True):
            until.append(max([until[each] for each in after], default=0.0) + ns)
        longest = max(until)
        return [each / longest for each in until]


def waits_for(graph: GraphGroup) -> list[tuple[int, ...]]:
    """Return the indices of the steps that each of a graph's steps waits for."""
    names = [each.name or each.model for each in graph.steps]
    found = []
    for index, step in enumerate(graph.steps):
        before = (index - 1,) if index else ()
        found.append(before if step.after is None else tuple([names.index(each) for each in step.after]))
    return found


def as_models(graphs: Sequence[GraphGroup], models: Sequence[ModelSpec]) -> list[ModelSpec]:
    """Return what workloads know graphs by: a model of the name, with the profile of the first step's.

    Raises `ValueError` for a step whose model there is not.
    """
    by_name = {model.name: model for model in models}
    found = []
    for graph in graphs:
        for step in graph.steps:
            for name in step.members or (step.model,):
                if name not in by_name:
                    raise ValueError(f"graph {graph.name!r} has a step of model {name!r}, which there is not")
        found.append(msgspec.structs.replace(by_name[graph.steps[0].model], name=graph.name))
    return found
