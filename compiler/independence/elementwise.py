"""Operators that compute each element from those at the same place of their operands."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.compiler.independence.step import FOLLOWS_FROM_ROWS, Rule, Step
from mainspring.compiler.independence.values import (
    Constant,
    Counted,
    NotProven,
    Rows,
    Shape,
    Value,
    rows_at,
)


def broadcast(values: Sequence[Value]) -> Rows:
    """Return the result of broadcast operands, whose batch axes have to coincide."""
    rows = [value for value in values if isinstance(value, Rows)]
    if not rows:
        raise NotProven("has no rows in its inputs")
    rank = max(_rank(value) for value in values)
    first = rows[0]
    place = rank - first.rank + first.axis
    for value in values:
        if isinstance(value, Rows):
            if rank - value.rank + value.axis != place or not value.same_slices(first):
                raise NotProven("combines different rows, for its operands have the batch on different axes")
            continue
        shape = _shape(value)
        axis = place - rank + len(shape)
        if axis >= 0 and shape[axis] != 1:
            raise NotProven("has a constant along the batch, so a row's result depends on its place")
    shapes = [_shape(value) for value in values]
    dims = [_larger([shape[len(shape) - back] for shape in shapes if len(shape) >= back]) for back in
            range(rank, 0, -1)]  # fmt: skip
    return rows_at(tuple(dims), place, first)


def aligned(step: Step) -> list[Value]:
    """All inputs are operands."""
    found = broadcast([value for value in step.inputs if value is not None])
    return [found] * len(step.node.output)


def first_input(step: Step) -> list[Value]:
    """The first input is the operand; the others, if any, are constants without an axis along the batch."""
    step.only_rows_in(0)
    source = step.rows()
    for value in step.inputs[1:]:
        if isinstance(value, Constant):
            broadcast([source, value]) if value.shape is not None else None
    return [source] * len(step.node.output)


def texts(step: Step) -> list[Value]:
    """StringNormalizer of a list of texts, each by itself, unless stop words are left out of the list."""
    source = step.rows()
    if step.attribute("stopwords"):
        raise NotProven("leaves texts of the whole batch out")
    if source.rank > 1 and source.axis == 0:
        raise NotProven("takes one row at a time")
    return [source]


def scaled(step: Step) -> list[Value]:
    """QuantizeLinear and DequantizeLinear: one scale, or several along an axis that isn't the batch."""
    step.only_rows_in(0)
    source = step.rows()
    axis = step.attribute("axis", 1)
    for value in step.inputs[1:]:
        shape = value.shape if isinstance(value, Constant) else None
        single = shape is not None and all(dim == 1 for dim in shape)
        along = axis + source.rank if axis < 0 else axis
        if value is not None and not single and (along == source.axis or step.attribute("block_size", 0)):
            raise NotProven("has a scale along the batch")
    return [source]


def operands(*places: int) -> Rule:
    """Return the rule of an operator whose inputs at ``places`` are operands, and all others constants."""

    def rule(step: Step) -> list[Value]:
        for index, value in enumerate(step.inputs):
            if index not in places and value is not None and not isinstance(value, Constant):
                raise NotProven(
                    f"has rows in input {index}, where only constants are known to keep rows apart"
                )
        found = broadcast([step.given(place) for place in places if step.has(place)])
        return [found] * len(step.node.output)

    return rule


def dropout(step: Step) -> list[Value]:
    """Dropout passes its input on, except in training."""
    training = step.integers(2) if step.has(2) else None
    if training and training[0]:
        raise NotProven("draws random numbers, because it is in training mode")
    step.only_rows_in(0)
    return [step.rows()] * len(step.node.output)


def _rank(value: Value) -> int:
    return len(_shape(value))


def _shape(value: Value) -> Shape:
    if isinstance(value, Rows):
        return value.shape
    if isinstance(value, Counted):
        raise NotProven(FOLLOWS_FROM_ROWS)
    if not isinstance(value, Constant) or value.shape is None:
        raise NotProven("has a constant of unknown shape")
    return value.shape


def _larger(dims: Sequence[object]) -> int | None:
    """Return the dimension that others are broadcast to; the batch's dimension is inserted later."""
    known = [dim for dim in dims if isinstance(dim, int)]
    above = [dim for dim in known if dim != 1]
    if above:
        return above[0]
    return 1 if len(known) == len(dims) else None
