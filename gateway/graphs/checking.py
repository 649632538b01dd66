"""Whether a graph makes sense with the models that it names, and what follows from it. Pure.

A value of a graph, an input or an output of a step, has rows. They are those of the request, or, behind a
step with ``rows = "own"``, those that this step was given in one row of the request: the lines of one
picture. Values of different rows don't meet in a step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from mainspring.gateway.graphs.conditions import Condition, ConditionError, Tensor
from mainspring.messages.choices import did_you_mean
from mainspring.messages.graphs import GraphSpec, StepSpec, graph_fault
from mainspring.messages.model import ModelSpec, TensorSpec, slot_bytes

REQUEST: Final = -1
"""In place of a step's index: the graph's inputs, and the rows of the request."""


class GraphError(ValueError):
    """A graph that makes no sense: what is wrong, where, and what would be right."""


class Source(NamedTuple):
    """Where a tensor comes from."""

    step: int
    """Index of the step in `Graph.steps`; `REQUEST` for an input of the graph."""
    tensor: int
    """Index among the step's model's outputs, or the graph's inputs."""


class Step(NamedTuple):
    """A step that passed."""

    spec: StepSpec
    model: ModelSpec
    takes: tuple[Source, ...]
    """Source of each of the model's inputs, in their order."""
    opened: tuple[bool, ...]
    """Whether the first axis behind the rows becomes the rows, of each input."""
    after: tuple[int, ...]
    """Indices of the steps that it waits for, ascending."""
    rows_of: int
    """Index of the step whose own rows it has; `REQUEST` if they are the request's."""
    condition: Condition | None
    certain: bool
    """Whether it runs for every row of every query: neither it nor what it waits for has a condition."""
    length: Source | None = None
    """Source of the length of each row."""


class Graph(NamedTuple):
    """A graph that passed, with its steps in an order in which each stands behind those that it waits for."""

    spec: GraphSpec
    steps: tuple[Step, ...]
    inputs: tuple[TensorSpec, ...]
    """What a request gives, as the models that take it want it."""
    outputs: tuple[tuple[TensorSpec, tuple[Source, ...]], ...]
    """What it is answered with, each with the sources of which the first that was computed is taken."""

    @property
    def settled(self) -> bool:
        """Say whether each step has as many rows as the request: none has a condition, or rows of its own."""
        return all(step.certain and step.rows_of == REQUEST for step in self.steps)

    @property
    def single(self) -> bool:
        """Say whether a request must have one row: a step has rows of its own."""
        return any(step.rows_of != REQUEST for step in self.steps)


def check_graph(spec: GraphSpec, models: Mapping[str, ModelSpec]) -> Graph:
    """Return a graph that makes sense with these models, by the names that steps call them.

    Raises `GraphError` for the first fault.
    """
    if fault := graph_fault(spec):
        raise GraphError(fault)
    return _Check(spec, models).graph()


class _Check:
    """One graph on its way."""

    def __init__(self, spec: GraphSpec, models: Mapping[str, ModelSpec]) -> None:
        self._spec = spec
        self._models = models
        self._by_name = {step.name: step for step in spec.steps}
        self._order = [*_in_order(spec)]
        self._place = {step.name: place for place, step in enumerate(self._order)}
        self._steps: list[Step] = []
        self._inputs: dict[str, TensorSpec] = {}

    def graph(self) -> Graph:
        """Return the checked graph."""
        for step in self._order:
            self._steps.append(self._step(step))
        unused = [name for name in self._spec.inputs if name not in self._inputs]
        if unused:
            raise GraphError(f"input {unused[0]!r} is taken by no step")
        if self._spec.combine is not None:
            self._check_members()
        inputs = tuple([self._inputs[name] for name in self._spec.inputs])
        return Graph(self._spec, tuple(self._steps), inputs, self._outputs())

    def _step(self, spec: StepSpec) -> Step:
        model = self._model(spec)
        takes, opened, rows = self._takes(spec, model)
        length = self._length(spec, model)
        condition = self._condition(spec)
        after = {each.step for each in (*takes, length) if each is not None and each.step != REQUEST}
        if condition is not None:
            after |= {self._place[name.partition(".")[0]] for name in condition.names if "." in name}
        rows_of = self._rows_of(spec, model, opened, rows)
        self._check_default(spec, model)
        certain = condition is None and all(self._steps[each].certain for each in after)
        return Step(spec, model, takes, opened, tuple(sorted(after)), rows_of, condition, certain, length)

    def _model(self, spec: StepSpec) -> ModelSpec:
        model = self._models.get(spec.model)
        if model is None:
            near = did_you_mean(spec.model, self._models, "no model is served")
            raise GraphError(f"step {spec.name!r}: there is no model {spec.model!r}{near}")
        if model.sequencing is not None:
            raise GraphError(
                f"step {spec.name!r}: model {spec.model!r} has sequences, which a graph can't give it"
            )
        return model

    def _takes(
        self, spec: StepSpec, model: ModelSpec
    ) -> tuple[tuple[Source, ...], tuple[bool, ...], list[int]]:
        """Return the source of each input of a step's model, whether it is opened, and whose rows it has."""
        known = {each.name for each in model.inputs}
        for name in spec.inputs:
            if name not in known:
                near = did_you_mean(name, known, f"it has {', '.join(sorted(known))}")
                raise GraphError(f"step {spec.name!r}: model {spec.model!r} has no input {name!r}{near}")
        takes, opened, rows = [], [], []
        for wanted in model.inputs:
            text = spec.inputs.get(wanted.name)
            if text is None:
                raise GraphError(
                    f"step {spec.name!r}: input {wanted.name!r} of model {spec.model!r} has no source"
                )
            source = self._source(text, f"step {spec.name!r}, input {wanted.name!r}")
            of = REQUEST if source.step == REQUEST else self._steps[source.step].rows_of
            opens = spec.rows == "own" and of == REQUEST
            self._check_fit(spec, wanted, text, source, opens)
            takes.append(source)
            opened.append(opens)
            rows.append(of)
        return tuple(takes), tuple(opened), rows

    def _rows_of(self, spec: StepSpec, model: ModelSpec, opened: Sequence[bool], rows: Sequence[int]) -> int:
        """Return whose rows a step has; raise `GraphError` where those of its inputs differ."""
        own = {each for each in rows if each != REQUEST}
        if len(own) > 1:
            names = " and ".join(repr(self._order[each].name) for each in sorted(own))
            raise GraphError(f"step {spec.name!r} takes rows of {names}, which need not be as many")
        if any(opened):
            return own.pop() if own else self._place[spec.name]
        if own and REQUEST in rows:
            text = spec.inputs[model.inputs[rows.index(REQUEST)].name]
            raise GraphError(
                f"step {spec.name!r} takes rows of {self._order[own.pop()].name!r} beside {text!r}, which "
                'has the request\'s: write rows = "own" if each row of the request holds as many'
            )
        return own.pop() if own else REQUEST

    def _source(self, text: str, where: str) -> Source:
        """Return what a text names; raise `GraphError` if it is nothing that comes before."""
        if text in self._spec.inputs:
            return Source(REQUEST, self._spec.inputs.index(text))
        step, dot, output = text.partition(".")
        if not dot:
            steps = [f"{each.spec.name}.{out.name}" for each in self._steps for out in each.model.outputs]
            near = did_you_mean(
                text, [*self._spec.inputs, *steps], "write step.output, or an input of the graph"
            )
            raise GraphError(f"{where}: there is no {text!r}{near}")
        if step not in self._by_name:
            raise GraphError(f"{where}: there is no step {step!r}{did_you_mean(step, self._by_name)}")
        place = self._place[step]
        outputs = [each.name for each in self._steps[place].model.outputs]
        if output not in outputs:
            near = did_you_mean(output, outputs, f"it has {', '.join(outputs)}")
            raise GraphError(f"{where}: step {step!r} has no output {output!r}{near}")
        return Source(place, outputs.index(output))

    def _check_fit(self, spec: StepSpec, wanted: TensorSpec, text: str, source: Source, opens: bool) -> None:
        """Check a source against an input; the first that takes an input of the graph decides what it is."""
        given: TensorSpec
        if source.step == REQUEST:
            name = self._spec.inputs[source.tensor]
            if opens:
                raise GraphError(
                    f"step {spec.name!r}: input {name!r} of the graph has the request's rows, not its own"
                )
            if name not in self._inputs:
                self._inputs[name] = TensorSpec(name, wanted.dtype, wanted.shape, open=wanted.open)
                return
            given = self._inputs[name]
        else:
            given = self._steps[source.step].model.outputs[source.tensor]
        wrong = _misfit(given, wanted, opens)
        if wrong:
            raise GraphError(
                f"step {spec.name!r}: {text} is {_shown(given)} for each row, and input {wanted.name!r} of "
                f"model {spec.model!r} is {_shown(wanted)}: {wrong}"
            )

    def _length(self, spec: StepSpec, model: ModelSpec) -> Source | None:
        """Return the source of the length of a step's rows; raise `GraphError` where it can't have one."""
        if not spec.length:
            return None
        where = f"step {spec.name!r}, length"
        taken = [dim for each in model.inputs for dim in each.open]
        if len(model.symbols) != 1 or any(dim.symbol != 0 for dim in taken) or model.whole:
            raise GraphError(f"{where}: model {spec.model!r} has to have rows, and one open dimension alone")
        if any(each.open for each in model.outputs):
            raise GraphError(f"{where}: outputs of model {spec.model!r} would have unlike lengths, too")
        source = self._source(spec.length, where)
        if source.step == REQUEST:
            found = self._inputs.setdefault(spec.length, TensorSpec(spec.length, "int64", (1,)))
        else:
            found = self._steps[source.step].model.outputs[source.tensor]
        if not found.dtype.startswith(("int", "uint")) or math.prod(found.shape) != 1:
            raise GraphError(f"{where}: {spec.length} is {_shown(found)}, not one whole number for each row")
        return source

    def _condition(self, spec: StepSpec) -> Condition | None:
        if not spec.when:
            return None
        tensors = {name: Tensor(each.dtype, _open_shape(each)) for name, each in self._inputs.items()} | {
            f"{step.spec.name}.{each.name}": Tensor(each.dtype, _open_shape(each))
            for step in self._steps
            for each in step.model.outputs
        }
        try:
            return Condition(spec.when, tensors)
        except ConditionError as error:
            raise GraphError(f"step {spec.name!r}, when: {error}") from None

    def _check_default(self, spec: StepSpec, model: ModelSpec) -> None:
        outputs = {each.name: each for each in model.outputs}
        for name, value in spec.default.items():
            if name not in outputs:
                near = did_you_mean(name, outputs, f"it has {', '.join(outputs)}")
                raise GraphError(
                    f"step {spec.name!r}, default: model {spec.model!r} has no output {name!r}{near}"
                )
            text = slot_bytes(outputs[name].dtype) is not None
            if text is not isinstance(value, str):
                raise GraphError(
                    f"step {spec.name!r}, default: {name!r} is of {outputs[name].dtype}, not {value!r}"
                )
        if spec.default and spec.required:
            raise GraphError(f"step {spec.name!r} has a default, and needs none: it is required")

    def _outputs(self) -> tuple[tuple[TensorSpec, tuple[Source, ...]], ...]:
        found = []
        for name in self._spec.outputs:
            texts = self._spec.sources(name)
            if not texts:
                raise GraphError(f"output {name!r} has no source")
            sources = [self._source(text, f"output {name!r}") for text in texts]
            if any(source.step == REQUEST for source in sources):
                raise GraphError(f"output {name!r} is an input of the graph: it has to be of a step")
            tensors = [self._steps[each.step].model.outputs[each.tensor] for each in sources]
            behind = self._spec.combine == "concat" and len(tensors[0].shape) > 0
            for text, tensor in zip(texts[1:], tensors[1:], strict=True):
                if not _alike(tensors[0], tensor, tensors[0].shape[:-1] if behind else None):
                    raise GraphError(
                        f"output {name!r}: {texts[0]} is {_shown(tensors[0])} and {text} is "
                        f"{_shown(tensor)}; alternatives have to be alike"
                    )
            if len({self._steps[each.step].rows_of for each in sources}) > 1:
                raise GraphError(f"output {name!r}: {' and '.join(texts)} need not have as many rows")
            if self._spec.combine is None and not any(self._always(source) for source in sources):
                raise GraphError(
                    f"output {name!r} is lacking where {' and '.join(texts)} did not run: name an "
                    "alternative that always runs, or a default"
                )
            first, shape = tensors[0], tensors[0].shape
            if behind:
                shape = (*shape[:-1], sum(each.shape[-1] for each in tensors))
            found.append((TensorSpec(name, first.dtype, shape, first.open, first.varies), tuple(sources)))
        return tuple(found)

    def _check_members(self) -> None:
        """Check the steps of an ensemble: each answers for itself, and is a part of an output."""
        spec = self._spec
        parts = {text.partition(".")[0] for name in spec.outputs for text in spec.sources(name)}
        for step in self._steps:
            where = f"step {step.spec.name!r} of an ensemble"
            if step.after or step.condition is not None:
                raise GraphError(f"{where} waits for another step or has a condition; a member has neither")
            if step.spec.name not in parts:
                raise GraphError(f"{where} is a part of no output; each member has to be")
            if not 0 < step.spec.weight < math.inf:
                raise GraphError(f"{where}: a weight is a number above 0, not {step.spec.weight}")
            if step.spec.default:
                raise GraphError(f"{where} has a default, and needs none: a missing member is left out")
        if not 1 <= spec.least <= len(self._steps):
            raise GraphError(f"least is {spec.least}; it has to be from 1 to {len(self._steps)}, the members")

    def _always(self, source: Source) -> bool:
        """Say whether a source is there in every answer."""
        step = self._steps[source.step]
        if not step.certain:
            return False
        name = step.model.outputs[source.tensor].name
        return name in step.spec.default or all(
            self._steps[each].spec.required for each in self._upstream(source.step)
        )

    def _upstream(self, place: int) -> Iterator[int]:
        """Yield a step and all that it waits for."""
        yield place
        for each in self._steps[place].after:
            yield from self._upstream(each)


def _in_order(spec: GraphSpec) -> Iterator[StepSpec]:
    """Yield the steps, each behind those that it names; raise `GraphError` for a cycle, with its steps."""
    by_name = {step.name: step for step in spec.steps}
    done: set[str] = set()
    for first in spec.steps:
        path: list[tuple[StepSpec, Iterator[str]]] = [(first, iter(_named(first, by_name)))]
        while path and first.name not in done:
            step, rest = path[-1]
            following = next((name for name in rest if name not in done), None)
            if following is None:
                path.pop()
                done.add(step.name)
                yield step
                continue
            names = [each.name for each, _ in path]
            if following in names:
                cycle = [*names[names.index(following) :], following]
                raise GraphError(f"the steps wait for one another: {' <- '.join(cycle)}")
            path.append((by_name[following], iter(_named(by_name[following], by_name))))


def _named(step: StepSpec, known: Mapping[str, StepSpec]) -> list[str]:
    """Return the steps that a step names in what it takes and in its condition."""
    texts = {text.partition(".")[0] for text in (*step.inputs.values(), step.length) if "." in text}
    return [name for name in known if name in texts or re.search(rf"\b{name}\s*\.", step.when)]


def _shown(tensor: TensorSpec) -> str:
    return f"{tensor.dtype}[{', '.join(tensor.dims)}]"


def _alike(a: TensorSpec, b: TensorSpec, shape: tuple[int, ...] | None) -> bool:
    """Say whether two tensors are alike; with ``shape``, which is the first's, but for the last axis."""
    if shape is not None:
        return a.dtype == b.dtype and len(a.shape) == len(b.shape) and b.shape[:-1] == shape
    return (a.dtype, a.shape) == (b.dtype, b.shape)


def _open_shape(tensor: TensorSpec) -> tuple[int | None, ...]:
    open_axes = {dim.axis for dim in tensor.open} | {*tensor.varies}
    return tuple([None if axis in open_axes else size for axis, size in enumerate(tensor.shape)])


def _misfit(given: TensorSpec, wanted: TensorSpec, opens: bool) -> str:
    """Return why a tensor can't be an input; empty if it can. ``opens``: its first axis becomes the rows."""
    slots = slot_bytes(given.dtype), slot_bytes(wanted.dtype)
    if None not in slots:
        if (slots[0] or 0) > (slots[1] or 0):
            return f"texts of {slots[0]} bytes don't fit"
    elif given.dtype != wanted.dtype:
        return f"it has to be {wanted.dtype}"
    ours, theirs = _open_shape(given), _open_shape(wanted)
    largest = given.shape
    if opens:
        if not ours:
            return "a single value has no axis for rows"
        ours, largest = ours[1:], largest[1:]
    if len(ours) != len(theirs):
        return f"it has {len(ours)} dimensions behind the rows, not {len(theirs)}"
    for axis, (mine, takes) in enumerate(zip(ours, theirs, strict=True)):
        if takes is None:
            if largest[axis] > wanted.shape[axis]:
                return f"dimension {axis} may be {largest[axis]}, and at most {wanted.shape[axis]} is taken"
        elif mine is None:
            return f"dimension {axis} differs by request, and {takes} is taken"
        elif mine != takes:
            return f"dimension {axis} is {mine}, and {takes} is taken"
    return ""
