"""Arithmetic on shapes: what follows from the number of rows alone, small constants, and numbers of rows.

An array holds plain numbers or multiples of the number of rows. ``Range`` from 0 to the number of rows
numbers them; columns of indices with these let GatherND pick from each row's own slice. Nothing else may be
computed with such numbers but their shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from mainspring.compiler.independence import elementwise, moves
from mainspring.compiler.independence.moves import constant_of_shape, expand, tile
from mainspring.compiler.independence.step import (
    Batch,
    Constant,
    Counted,
    NotProven,
    Numbered,
    Numbers,
    Rows,
    Rule,
    Step,
    Value,
    axis_of,
    counted,
    rows_at,
)

MOST_ELEMENTS = 4096
"""Most elements of an array that is computed on; larger arrays are weights."""

_WIDE = {
    TensorProto.INT32,
    TensorProto.INT64,
    TensorProto.UINT32,
    TensorProto.UINT64,
    TensorProto.FLOAT,
    TensorProto.DOUBLE,
}
"""Types that hold the number of rows, and multiples of it, exactly."""

_FLOAT_ERROR = 1e-5
"""Relative tolerance: 32-bit floats are computed with 64 bits here."""


def shape_of(step: Step) -> Value:
    """Shape, of rows or of a constant."""
    value = step.given(0)
    if isinstance(value, Counted):
        return counted([*value.items.shape])
    dims = value.shape if isinstance(value, Rows | Constant | Numbered) else None
    if dims is None:
        raise NotProven("asks for a shape that isn't known")
    begin, end = step.attribute("start", 0), step.attribute("end", len(dims))
    dims = dims[begin:end]
    return counted([*dims])


def size_of(step: Step) -> Value:
    """Size: the product of a shape."""
    found = shape_of(step)
    items = found.items if isinstance(found, Counted) else getattr(found, "array", None)
    if items is None or any(item is None for item in items.reshape(-1)):
        raise NotProven("asks for a size that isn't known")
    return counted(math.prod(list(items.reshape(-1))))


def count(step: Step) -> Value:
    """Return a node's outputs for numbers that follow from the number of rows, or for small constants."""
    rule = _RULES.get(step.node.op_type)
    if rule is not None:
        return rule(step)[0]
    function = _FUNCTIONS.get(step.node.op_type)
    if function is None:
        raise NotProven("computes with the number of rows what can't be followed")
    operands = [_operand(step, index) for index in range(len(step.inputs))]
    try:
        return counted(function(step, operands))
    except (TypeError, ValueError, IndexError, ArithmeticError) as error:
        raise NotProven(f"computes on a shape what can't be followed ({error})") from None


def _operand(step: Step, index: int) -> Numbers | None:
    value = step.inputs[index]
    if value is None:
        return None
    found = value.items if isinstance(value, Counted) else step.numbers(index)
    assert found is not None
    if found.size > MOST_ELEMENTS:
        raise NotProven("computes on a shape with many numbers")
    return found.astype(object)


def _same(_step: Step, found: list[Any]) -> Any:
    return found[0]


def _cast(step: Step, found: list[Any]) -> Any:
    to = step.attribute("to")
    if to not in _WIDE and any(isinstance(item, Batch) for item in found[0].reshape(-1)):
        raise NotProven("makes the number of rows a number of few bits")
    kind = helper.tensor_dtype_to_np_dtype(to).kind

    def cast(item: Any) -> Any:
        if isinstance(item, Batch):
            return item
        if kind in "bf":
            return bool(item) if kind == "b" else float(item)
        return int(_firm(item))

    return np.frompyfunc(cast, 1, 1)(found[0])


def _firm(item: Any) -> Any:
    """Return a number to be rounded; raise `NotProven` if floats of fewer bits may round it otherwise."""
    nearest = round(item)
    if item != nearest and abs(item - nearest) < _FLOAT_ERROR * max(1.0, abs(item)):
        raise NotProven("rounds a number that lies too near to a whole one")
    return item


def _gather(step: Step, found: list[Any]) -> Any:
    return np.take(found[0], found[1].astype(np.int64), axis=step.attribute("axis", 0))


def _concat(step: Step, found: list[Any]) -> Any:
    return np.concatenate(found, axis=step.attribute("axis", 0))


def _squeeze(step: Step, found: list[Any]) -> Any:
    axes = step.integers(1, "axes")
    return np.squeeze(found[0], axis=None if axes is None else tuple(axes))


def _unsqueeze(step: Step, found: list[Any]) -> Any:
    return np.expand_dims(found[0], tuple(step.integers(1, "axes") or ()))


def _reshape(step: Step, found: list[Any]) -> Any:
    dims = step.integers(1, "shape") or []
    return found[0].reshape([found[0].shape[axis] if dim == 0 else dim for axis, dim in enumerate(dims)])


def _slice(step: Step, found: list[Any]) -> Any:
    if step.opset < 10:
        starts, ends, axes = step.attribute("starts"), step.attribute("ends"), step.attribute("axes")
        steps = None
    else:
        starts, ends = step.integers(1) or [], step.integers(2) or []
        axes, steps = step.integers(3), step.integers(4)
    places = [slice(None)] * found[0].ndim
    for index, (begin, end) in enumerate(zip(starts, ends, strict=True)):
        axis = axis_of(axes[index] if axes else index, found[0].ndim)
        places[axis] = slice(begin, end, steps[index] if steps else 1)
    return found[0][tuple(places)]


def _reduce(step: Step, found: list[Any]) -> Any:
    if found[0].ndim != 1:
        raise NotProven("reduces numbers of more axes than one")
    if step.attribute("noop_with_empty_axes", 0) and not step.integers(1, "axes"):
        return found[0]
    single: Any = math.prod(found[0]) if step.node.op_type == "ReduceProd" else sum(found[0])
    return [single] if step.attribute("keepdims", 1) else single


def _equal(_step: Step, found: list[Any]) -> Any:
    def same(one: Any, two: Any) -> bool:
        if one is None or two is None:
            raise NotProven("compares a dimension that isn't known")
        if isinstance(one, Batch) != isinstance(two, Batch):
            rows, plain = (one, two) if isinstance(one, Batch) else (two, one)
            if rows.times < 0 or plain > 0:
                raise NotProven("compares the number of rows with a number")
            return False
        return bool(one == two)

    return np.frompyfunc(same, 2, 1)(found[0], found[1])


def _where(_step: Step, found: list[Any]) -> Any:
    if any(item is None for item in found[0].reshape(-1)):
        raise NotProven("chooses by a dimension that isn't known")
    return np.where(found[0].astype(bool), found[1], found[2])


def _divided(_step: Step, found: list[Any]) -> Any:
    def divided(one: Any, two: Any) -> Any:
        if isinstance(one, int) and isinstance(two, int):
            return abs(one) // abs(two) * (1 if (one < 0) == (two < 0) else -1)
        return one / two

    return np.frompyfunc(divided, 2, 1)(found[0], found[1])


def _whole(step: Step, found: list[Any]) -> Any:
    function = math.floor if step.node.op_type == "Floor" else math.ceil

    def whole(item: Any) -> Any:
        return item if isinstance(item, Batch) else float(function(_firm(item)))

    return np.frompyfunc(whole, 1, 1)(found[0])


def _filled(step: Step) -> list[Value]:
    """ConstantOfShape: as an array if it is small and the same for any number of rows."""
    dims = [dim for dim in step.dims(0) if isinstance(dim, int)]
    if len(dims) < len(step.dims(0)) or math.prod(dims) > MOST_ELEMENTS:
        return constant_of_shape(step)
    given = step.attribute("value")
    value = numpy_helper.to_array(given).reshape(-1)[0] if given is not None else np.float32(0)
    return [Constant(tuple(dims), np.full(dims, value))]


_FUNCTIONS: Mapping[str, Callable[[Step, list[Any]], Any]] = {
    "Add": lambda _, found: found[0] + found[1],
    "Cast": _cast,
    "Ceil": _whole,
    "Concat": _concat,
    "Div": _divided,
    "Equal": _equal,
    "Floor": _whole,
    "Gather": _gather,
    "Identity": _same,
    "Mul": lambda _, found: found[0] * found[1],
    "ReduceProd": _reduce,
    "ReduceSum": _reduce,
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Sub": lambda _, found: found[0] - found[1],
    "Unsqueeze": _unsqueeze,
    "Where": _where,
}

_RULES: Mapping[str, Rule] = {"ConstantOfShape": _filled, "Expand": expand, "Tile": tile}


_UNFOLLOWED = "computes with the number of rows what can't be followed"


def number(step: Step) -> Sequence[Value]:
    """Return a node's outputs for numbers of rows, or for the number of rows as the end of a Range."""
    rule = _NUMBERING_RULES.get(step.node.op_type)
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


def _numbered_cast(step: Step) -> Sequence[Value]:
    if step.attribute("to") not in (TensorProto.INT32, TensorProto.INT64):
        raise NotProven(_UNFOLLOWED)
    return _like(elementwise.first_input, exact=True)(step)


def _numbered_concat(step: Step) -> list[Value]:
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


_NUMBERING_RULES: Mapping[str, Callable[[Step], Sequence[Value]]] = {
    "Range": _range,
    "Cast": _numbered_cast,
    "Concat": _numbered_concat,
    "Expand": _like(moves.expand, exact=True),
    "GatherND": _gather_nd,
    "Identity": _like(elementwise.first_input, exact=True),
    "Max": _like(elementwise.aligned, exact=False),
    "Squeeze": _like(moves.squeeze, exact=True),
    "Unsqueeze": _like(moves.unsqueeze, exact=True),
}
