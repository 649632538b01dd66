"""Operators along some axes: reductions, normalisations, orders; the batch may not be among these axes."""

from __future__ import annotations

from mainspring.compiler.independence.elementwise import broadcast
from mainspring.compiler.independence.step import Rule, Step, axis_of
from mainspring.compiler.independence.values import Constant, Dim, NotProven, Rows, Value, rows_at


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
