"""Applications as graphs whose steps are the members, of which the policy selects some for a request. Pure.

A member that was not selected has no rows, as a step has whose condition is false for all. One that is
missing at the cut-off is replaced by its average (`selection.application`); with fewer than `least` of those
that were selected the whole is refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from mainspring.gateway.core.effects import Frame
from mainspring.gateway.core.queries import QueryFailed
from mainspring.gateway.core.requests import Pending
from mainspring.gateway.core.validation import Signature
from mainspring.gateway.graphs.checking import Graph, GraphError
from mainspring.gateway.graphs.families import Members
from mainspring.gateway.graphs.lengths import Expected
from mainspring.gateway.graphs.run import GraphFlow, frame_of
from mainspring.messages.applications import LINEAR, ApplicationSpec, member_name
from mainspring.messages.clients import Learnt
from mainspring.messages.codes import Reason
from mainspring.messages.graphs import GraphSpec, StepSpec
from mainspring.messages.model import ModelSpec, TensorSpec
from mainspring.messages.peers import TensorHeader
from mainspring.selection.application import Application
from mainspring.selection.linear.application import ITEM
from mainspring.selection.outputs import Array

Made = tuple[Graph, Sequence[Signature], Sequence[Members | None], Expected]
PREDICTION, CONFIDENCE, SCORES = "prediction", "confidence", "scores"
_LINEAR = (TensorSpec(PREDICTION, "float32", ()), TensorSpec("uncertainty", "float32", ()))


def steps_of(spec: ApplicationSpec, inputs: Collection[str] = ()) -> dict[str, str]:
    """Return the name of each member's step: the member's, in letters, digits and underscores, or a little
    longer where an input has that name."""
    found: dict[str, str] = {}
    for member in spec.members:
        name = re.sub(r"\W", "_", member_name(member), flags=re.ASCII)
        name = name if name.isidentifier() else f"_{name}"
        while name in found or name in inputs:
            name += "_"
        found[name] = member
    return found


def as_graph(spec: ApplicationSpec, models: Mapping[str, ModelSpec]) -> GraphSpec:
    """Return the graph whose steps are the members, with their models by the names that the owner calls them.

    It is an ensemble: a member need not be there. Raises `GraphError` if a member lacks the output.
    """
    steps = []
    inputs = dict.fromkeys(each.name for member in spec.members for each in models[member].inputs)
    for name, member in steps_of(spec, inputs).items():
        model = models[member]
        outputs = [each.name for each in model.outputs]
        if spec.output not in outputs:
            raise GraphError(f"member {member!r} has no output {spec.output!r}: it has {', '.join(outputs)}")
        steps.append(
            StepSpec(name=name, model=member, inputs={each.name: each.name for each in model.inputs})
        )
    sources = tuple([f"{step.name}.{spec.output}" for step in steps])
    return GraphSpec(
        name=spec.name,
        inputs=tuple(inputs),
        steps=tuple(steps),
        outputs={spec.output: sources},
        slo_ms=spec.slo_ms,
        combine="first",
        least=1,
    )


def of_table(spec: ApplicationSpec) -> Graph:
    """Return the graph of an application with a table of items: it has no step, the gateway answers it."""
    graph = GraphSpec(name=spec.name, inputs=(ITEM,), slo_ms=spec.slo_ms)
    return Graph(graph, (), (TensorSpec(ITEM, "int64", ()),), tuple([(each, ()) for each in _LINEAR]))


def answering(spec: ApplicationSpec, graph: Graph) -> Graph:
    """Return the graph with the outputs that the application has in place of its members'.

    Raises `GraphError` if the members' output is none of the application's kind.
    """
    ((tensor, sources),) = graph.outputs
    shown = f"output {spec.output!r} is {tensor.dtype}[{', '.join(tensor.dims)}] for each row"
    number = tensor.dtype.startswith(("float", "int", "uint"))
    fixed = not (tensor.open or tensor.varies)
    floats = fixed and tensor.dtype.startswith("float") and len(tensor.shape) == 1
    if spec.policy == LINEAR:
        if not floats:
            raise GraphError(
                f"{shown}; with policy 'linear' it has to be as many floats as there are features"
            )
        return graph._replace(outputs=tuple([(each, sources) for each in _LINEAR]))
    if spec.kind == "scores":
        if not floats:
            raise GraphError(f"{shown}; of kind 'scores' it has to be as many floats as there are classes")
        outputs = [TensorSpec(PREDICTION, "int64", ()), TensorSpec(SCORES, "float32", tensor.shape)]
    else:
        if tensor.shape not in ((), (1,)) or not fixed:
            raise GraphError(f"{shown}; of kind {spec.kind!r} it has to be one {spec.kind}")
        if spec.kind == "value" and not number:
            raise GraphError(f"{shown}; of kind 'value' it has to be a number")
        outputs = [TensorSpec(PREDICTION, "float32" if spec.kind == "value" else tensor.dtype, ())]
    outputs.insert(1, TensorSpec(CONFIDENCE, "float32", ()))
    return graph._replace(outputs=tuple([(each, sources) for each in outputs]))


class LearntFlow(GraphFlow):
    """A request for an application; a `queries.Flow`."""

    def __init__(
        self, made: Made, application: Application, generator: np.random.Generator, request: Pending
    ) -> None:
        """``made``: the arguments of a `GraphFlow` in front of the request."""
        super().__init__(*made, request)
        self._application = application
        self._generator = generator
        self._context = request.accepted.context or None
        self._names = [member_name(step.spec.model) for step in self._graph.steps]
        self._selected: dict[str, float] = {}
        self._answer: tuple[Frame, ...] | None = None

    def begin(self) -> list[Pending]:
        """Return the pieces of the members that the policy selects, those that count most first."""
        now_ns = self._request.arrived_ns
        try:
            self._selected = self._application.select(
                now_ns, self._flow.given, self._generator, self._context
            )
        except ValueError as error:
            raise QueryFailed(Reason.BAD_INPUT, str(error)) from None
        self._flow.leave_out([at for at, name in enumerate(self._names) if name not in self._selected])
        pieces = super().begin()
        order = [*self._selected]
        return sorted(pieces, key=lambda each: order.index(self._names[each.step]))

    def outputs(self) -> tuple[Frame, ...]:
        """Return prediction and confidence, and of scores their mean, for each row; raise `QueryFailed`."""
        if self._answer is None:
            # Asked for twice where nothing has to run.
            self._answer = self._combined()
        return self._answer

    def _combined(self) -> tuple[Frame, ...]:
        # What is kept until feedback comes is copied: a worker or a client may wait for its memory.
        found: dict[str, Array] = {}
        for source in self._graph.outputs[0][1]:
            array = self._flow.output_of(source)
            if array is not None and self._names[source.step] in self._selected:
                found[self._names[source.step]] = array.copy()
        application, spec = self._application, self._application.spec
        if len(found) < min(spec.least, len(self._selected)):
            detail = f"{len(found)} of at least {spec.least} members of {spec.name!r} were in time"
            raise QueryFailed(Reason.BAD_OUTPUT, detail)
        given = self._flow.given
        if application.keeps_inputs:
            given = {name: array.copy() for name, array in given.items()}
        try:
            reply = application.combine(self._at_ns, given, self._selected, found, self._context)
        except ValueError as error:
            raise QueryFailed(Reason.BAD_OUTPUT, str(error)) from None
        self.learnt = Learnt(reply.query_id, tuple(found), reply.missing, sum(reply.default), reply.shared)
        arrays = [application.prediction(reply), reply.answer.confidence]
        if reply.answer.scores is not None:
            arrays.append(reply.answer.scores)
        made = [
            np.asarray(array).astype(tensor.dtype, copy=False)
            for (tensor, _), array in zip(self._graph.outputs, arrays, strict=True)
        ]
        self.headers = tuple(
            [
                TensorHeader(tensor.name, tensor.dtype, array.shape)
                for (tensor, _), array in zip(self._graph.outputs, made, strict=True)
            ]
        )
        return tuple([frame_of(array) for array in made])
