"""Scan: turns along an axis, each a function of one slice and of what the turn before left.

Either a turn is a row: then turns may share constants alone. Or the rows are on another axis: then the body
is followed, and what it shows holds for all turns if the states are arranged behind it as before it. skl2onnx
writes distances to the points that an estimator was fitted on in the second way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import onnx

from mainspring.compiler.independence.step import Step, axis_of
from mainspring.compiler.independence.values import Constant, Dim, NotProven, Rows, Shape, Value, rows_at
from mainspring.compiler.normalise import SCAN_WITHOUT_BATCH, graphs_of

_CONTROL_FLOW = "is control flow"

Follow = Callable[[onnx.GraphProto, Mapping[str, Value]], Mapping[str, Value]]
"""Returns the facts about the values of a graph inside, by those that it begins with."""


def scan(step: Step, outside: Mapping[str, Value], follow: Follow) -> list[Value]:
    """Return a Scan's outputs; ``outside`` are the values that its body may read."""
    if step.node.op_type != "Scan" or step.node.domain or step.opset < SCAN_WITHOUT_BATCH:
        raise NotProven(_CONTROL_FLOW)
    body = step.attribute("body")
    cut = step.attribute("num_scan_inputs")
    states = len(body.input) - cut
    begin = [_plain(step.given(index)) for index in range(states)]
    axes = step.attribute("scan_input_axes", [0] * cut)
    slices = [_Slice(step.given(states + index), axis) for index, axis in enumerate(axes)]
    names = [value.name for value in body.input]
    facts = [*begin, *(each.inside for each in slices)]
    inside = follow(body, {**outside, **dict(zip(names, facts, strict=True))})
    ends = [_plain(inside[value.name]) for value in body.output]
    if any(each.by_row for each in slices):
        _check_alone(step, body, slices, [*begin, *(outside.get(name) for name in _seen(body))])
        turns: Dim = slices[0].turns
    else:
        if ends[:states] != begin:
            raise NotProven("leaves the next turn its rows arranged otherwise")
        turns = next((each.turns for each in slices if each.turns is not None), None)
    stacked = ends[states:]
    axes = step.attribute("scan_output_axes", [0] * len(stacked))
    of = slices[0].value if slices[0].by_row else None
    return [*begin, *(_put_together(end, axis, turns, of) for end, axis in zip(stacked, axes, strict=True))]


class _Slice:
    """An input of which each turn sees a slice."""

    def __init__(self, value: Value, axis: int) -> None:
        self.value = _plain(value)
        if self.value.shape is None:
            raise NotProven("takes its turns along an axis that isn't known")
        axis = axis_of(axis, len(self.value.shape))
        self.turns = self.value.shape[axis]
        self.by_row = isinstance(self.value, Rows) and self.value.axis == axis
        shape: Shape = (*self.value.shape[:axis], *self.value.shape[axis + 1 :])
        self.inside: Value = Constant(shape)
        if isinstance(self.value, Rows) and not self.by_row:
            self.inside = rows_at(shape, self.value.axis - (axis < self.value.axis), self.value)


def _plain(value: Value) -> Rows | Constant:
    """Return a value as it is in every turn: rows, or a constant of which only the shape stays."""
    if isinstance(value, Constant):
        return Constant(value.shape)
    if not isinstance(value, Rows):
        raise NotProven(_CONTROL_FLOW)
    return value


def _check_alone(
    step: Step, body: onnx.GraphProto, slices: Sequence[_Slice], shared: Sequence[Value | None]
) -> None:
    """Raise `NotProven` unless each turn computes on its own row and on constants."""
    whole = [each.value for each in slices if isinstance(each.value, Rows) and each.by_row]
    apart = len(whole) == len(slices) and all(each.same_slices(whole[0]) for each in whole)
    if not apart or not all(isinstance(value, Constant) for value in shared):
        raise NotProven("has rows in what all of its turns see")
    turned = [*step.attribute("scan_input_directions", []), *step.attribute("scan_output_directions", [])]
    if any(turned) or not _passed_on(body, len(body.input) - len(slices)):
        raise NotProven("has what one row leaves in the turn of the next")


def _passed_on(body: onnx.GraphProto, states: int) -> bool:
    """Say whether the first outputs are the first inputs."""
    sources = {node.output[0]: node.input[0] for node in body.node if node.op_type == "Identity"}
    for value, state in zip(body.output[:states], body.input[:states], strict=True):
        name = value.name
        while name in sources:
            name = sources[name]
        if name != state.name:
            return False
    return True


def _seen(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the names that a graph inside reads from those around it."""
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {name for node in graph.node for name in node.output}
    for node in graph.node:
        yield from (name for name in node.input if name and name not in own)
        for inner in graphs_of(node):
            yield from (name for name in _seen(inner) if name not in own)
    yield from (value.name for value in graph.output if value.name not in own)


def _put_together(end: Rows | Constant, axis: int, turns: Dim, by_row: Rows | Constant | None) -> Value:
    """Return the output that one slice of each turn makes."""
    if end.shape is None:
        raise NotProven("has outputs of a shape that can't be inferred")
    axis = axis_of(axis, len(end.shape) + 1)
    shape = (*end.shape[:axis], turns, *end.shape[axis:])
    if isinstance(by_row, Rows):
        return rows_at(shape, axis, by_row)
    return rows_at(shape, end.axis + (axis <= end.axis), end) if isinstance(end, Rows) else Constant(shape)
