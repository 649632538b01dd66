"""Numbers of rows as values: what exporters write to pick each row's own element from a batch.

``Range`` from 0 to the number of rows gives the numbers; columns of indices with them let GatherND pick from
each row's own slice. Nothing else may be computed with such numbers but their shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from onnx import TensorProto

from mainspring.compiler.independence import elementwise, moves
from mainspring.compiler.independence.step import Rule, Step, axis_of
from mainspring.compiler.independence.values import Batch, NotProven, Numbered, Rows, Value, rows_at

_UNFOLLOWED = "computes with the number of rows what can't be followed"


def number(step: Step) -> Sequence[Value]:
    """Return a node's outputs for numbers of rows, or for the number of rows as the end of a Range."""
    rule = _RULES.get(step.node.op_type)
    if rule is None or any(isinstance(value, Numbered) and not value.exact for value in step.inputs):
        raise NotProven(_UNFOLLOWED)
    return rule(step)


def _range(step: Step) -> list[Value]:
    if (step.dims(0), step.dims(1), step.dims(2)) != ([0], [Batch()], [1]):
        raise NotProven(_UNFOLLOWED)
    return [Numbered((Batch(),), 0)]


def _as_rows(value: Value | None) -> Value | None:
    return Rows(value.shape, value.axis) if isinstance(value, Numbered) else value


def _like(rule: Rule, *, exact: bool) -> Rule:
    """Return a rule that arranges the numbers as ``rule`` does rows."""

    def arranged(step: Step) -> list[Value]:
        if any(isinstance(value, Numbered) and value.column is not None for value in step.inputs):
            raise NotProven(_UNFOLLOWED)
        found = rule(Step(step.node, [_as_rows(value) for value in step.inputs], step.opset))
        return [
            Numbered(value.shape, value.axis, exact=exact)
            for value in found
            if isinstance(value, Rows) and (value.outer, value.inner) == (1, 1)
        ]

    return arranged


def _cast(step: Step) -> Sequence[Value]:
    if step.attribute("to") not in (TensorProto.INT32, TensorProto.INT64):
        raise NotProven(_UNFOLLOWED)
    return _like(elementwise.first_input, exact=True)(step)


def _concat(step: Step) -> list[Value]:
    """Columns of indices, one of which is the number of the row; the others may be of the row too."""
    own = [value for value in step.inputs if isinstance(value, Numbered)]
    first = own[0]
    if axis_of(step.attribute("axis", 0), len(first.shape)) != len(first.shape) - 1 or len(own) > 1:
        raise NotProven(_UNFOLLOWED)
    (found,) = moves.concat(Step(step.node, [_as_rows(value) for value in step.inputs], step.opset))
    before = [value.shape[-1] for value in step.inputs[: step.inputs.index(first)] if isinstance(value, Rows)]
    known = [dim for dim in before if isinstance(dim, int)]
    if first.column is not None or first.shape[-1] != 1 or len(known) < len(before):
        raise NotProven(_UNFOLLOWED)
    assert isinstance(found, Rows)
    return [replace(first, shape=found.shape, column=sum(known))]


def _gather_nd(step: Step) -> list[Value]:
    """GatherND of what lies in each row's own slice."""
    data, indices = step.rows(0), step.given(1)
    depth = indices.shape[-1] if isinstance(indices, Numbered) else None
    if (
        not isinstance(indices, Numbered)
        or not isinstance(depth, int)
        or step.attribute("batch_dims", 0)
        or (data.outer, data.inner, data.axis) != (1, 1, indices.column)
        or indices.axis == len(indices.shape) - 1
    ):
        raise NotProven(_UNFOLLOWED)
    return [rows_at((*indices.shape[:-1], *data.shape[depth:]), indices.axis, data)]


_RULES: Mapping[str, Callable[[Step], Sequence[Value]]] = {
    "Range": _range,
    "Cast": _cast,
    "Concat": _concat,
    "Expand": _like(moves.expand, exact=True),
    "GatherND": _gather_nd,
    "Identity": _like(elementwise.first_input, exact=True),
    "Max": _like(elementwise.aligned, exact=False),
    "Squeeze": _like(moves.squeeze, exact=True),
    "Unsqueeze": _like(moves.unsqueeze, exact=True),
}
