"""Operators that compute element by element, and those along axes (reductions, normalisations, orders).

The batch may not be among the axes of the latter.
"""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.compiler.independence.step import (
    FOLLOWS_FROM_ROWS,
    Constant,
    Counted,
    Dim,
    NotProven,
    Rows,
    Rule,
    Shape,
    Step,
    Value,
    axis_of,
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


def _not_over(source: Rows, axis: int, what: str) -> int:
    axis = axis_of(axis, source.rank)
    if axis == source.axis:
        raise NotProven(f"{what} over the batch")
    return axis


def softmax(step: Step) -> list[Value]:
    """Softmax and its like; before opset 13 over all axes from ``axis`` on."""
    source = step.rows()
    old = step.attribute("opset", step.opset) < 13
    axis = axis_of(step.attribute("axis", 1 if old else -1), source.rank)
    if source.axis == axis or (old and source.axis > axis):
        raise NotProven("normalises over the batch")
    step.only_rows_in(0)
    return [source]


def along(default: int, what: str, index: int | None = None) -> Rule:
    """Return the rule of an operator along one axis, that keeps shapes; ``index`` is the axis as an input."""

    def rule(step: Step) -> list[Value]:
        source = step.rows()
        step.only_rows_in(0)
        found = step.integers(index) if index is not None else None
        _not_over(source, found[0] if found else step.attribute("axis", default), what)
        return [source] * len(step.node.output)

    return rule


def from_axis(step: Step) -> list[Value]:
    """LayerNormalization and its like: over all axes from ``axis`` on; more outputs are statistics."""
    source = step.rows()
    step.only_rows_in(0)
    axis = axis_of(step.attribute("axis", -1), source.rank)
    if source.axis >= axis:
        raise NotProven("normalises over the batch")
    # Scale and bias may have as many axes as the input.
    broadcast([value for value in step.inputs if value is not None])
    dims: list[Dim] = [dim if place < axis else 1 for place, dim in enumerate(source.shape)]
    found: list[Value] = [source]
    return found + [rows_at(tuple(dims), source.axis, source)] * (len(step.node.output) - 1)


def reduction(step: Step) -> list[Value]:
    """Reduce operators."""
    source, axes = step.rows(), step.integers(1, "axes")
    if not axes and step.attribute("noop_with_empty_axes", 0):
        return [source]
    gone = {axis_of(axis, source.rank) for axis in axes or range(source.rank)}
    return [_reduced(source, gone, keeps=bool(step.attribute("keepdims", 1)))]


def arg_reduction(step: Step) -> list[Value]:
    """ArgMax and ArgMin."""
    source = step.rows()
    axis = axis_of(step.attribute("axis", 0), source.rank)
    return [_reduced(source, {axis}, keeps=bool(step.attribute("keepdims", 1)))]


def _reduced(source: Rows, gone: set[int], *, keeps: bool) -> Rows:
    if source.axis in gone:
        raise NotProven("reduces over the batch")
    dims = [1 if axis in gone else dim for axis, dim in enumerate(source.shape) if keeps or axis not in gone]
    axis = source.axis if keeps else source.axis - sum(each < source.axis for each in gone)
    return rows_at(tuple(dims), axis, source)


def top_k(step: Step) -> list[Value]:
    """TopK of a constant number."""
    source = step.rows()
    axis = _not_over(source, step.attribute("axis", -1), "picks the largest")
    dims = list(source.shape)
    count = [step.attribute("k")] if step.opset < 10 else step.integers(1)
    dims[axis] = count[0] if count else None
    return [rows_at(tuple(dims), source.axis, source)] * len(step.node.output)


def one_hot(step: Step) -> list[Value]:
    """OneHot: one more axis."""
    source = step.rows()
    step.only_rows_in(0)
    axis = axis_of(step.attribute("axis", -1), source.rank + 1)
    depth = step.integers(1)
    dims = list(source.shape)
    dims.insert(axis, depth[0] if depth else None)
    return [rows_at(tuple(dims), source.axis + (axis <= source.axis), source)]


def trilu(step: Step) -> list[Value]:
    """Trilu of the last two axes."""
    source = step.rows()
    step.only_rows_in(0)
    if source.axis >= source.rank - 2:
        raise NotProven("cuts the batch by place")
    return [source]


def mean_variance(step: Step) -> list[Value]:
    """MeanVarianceNormalization, whose axes include the batch's unless it names others."""
    source = step.rows()
    for axis in step.attribute("axes", [0, 2, 3]):
        _not_over(source, axis, "normalises")
    return [source]


def batch_normalization(step: Step) -> list[Value]:
    """BatchNormalization by stored statistics."""
    source = step.rows()
    step.only_rows_in(0)
    trains = step.attribute("training_mode", 0) or (step.opset < 7 and not step.attribute("is_test", 0))
    if trains or sum(bool(name) for name in step.node.output) > 1:
        raise NotProven("normalises by the statistics of the whole batch, because it is in training mode")
    if source.axis != 0:
        raise NotProven("has the batch where channels belong")
    return [source] * len(step.node.output)


def reverse_sequence(step: Step) -> list[Value]:
    """ReverseSequence of each row."""
    source, lengths = step.rows(0), step.given(1)
    if step.attribute("batch_axis", 1) != source.axis:
        raise NotProven("reverses the batch")
    if isinstance(lengths, Constant) or not isinstance(lengths, Rows) or not lengths.same_slices(source):
        raise NotProven("has lengths that aren't those of the rows")
    return [source]
