"""One node, and the facts about its tensors while the batch axis is followed, as rules work on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, defs, helper, numpy_helper, shape_inference

from mainspring.compiler.reading.normalise import is_fatal


class NotProven(Exception):
    """Rows influence each other at this node, or nothing shows that they don't; the text follows its name."""


ANY_ROW = "reads or writes rows by indices that are given in rows, so any of them"
"""The reason at a node by which rows are no requests, but parts of one, such as the nodes of a graph."""


@dataclass(frozen=True)
class Batch:
    """A multiple of the number of rows: a dimension, or a number computed from dimensions.

    Arithmetic with it gives another multiple or a plain number; anything else is `NotProven`.
    """

    times: int = 1

    def __add__(self, other: Any) -> Any:
        """Add another multiple; a sum with a plain number is `NotProven`."""
        if isinstance(other, Batch):
            return _multiple(self.times + other.times)
        return self if other == 0 else _unfollowed()

    def __sub__(self, other: Any) -> Any:
        """Subtract."""
        return self + other * -1

    def __rsub__(self, other: Any) -> Any:
        """Subtract from a plain number."""
        return self * -1 + other

    def __mul__(self, other: Any) -> Any:
        """Multiply by a plain number; the square of the number of rows is `NotProven`."""
        if isinstance(other, Batch):
            return _unfollowed()
        product = self.times * other
        return _multiple(int(product)) if product == int(product) else _unfollowed()

    def __floordiv__(self, other: Any) -> Any:
        """Divide without a remainder."""
        divisor = other.times if isinstance(other, Batch) else other
        if not divisor or self.times % divisor:
            return _unfollowed()
        return self.times // divisor if isinstance(other, Batch) else _multiple(int(self.times // divisor))

    def __rfloordiv__(self, other: Any) -> Any:
        """Divide a plain number by a multiple: zero stays zero."""
        return 0 if other == 0 else _unfollowed()

    __radd__ = __add__
    __rmul__ = __mul__
    __truediv__ = __floordiv__
    __rtruediv__ = __rfloordiv__


def _multiple(times: int) -> Batch | int:
    return Batch(times) if times else 0


def _unfollowed() -> Any:
    raise NotProven("computes with the number of rows what can't be followed")


Dim = int | Batch | None
"""A dimension; None if it is the same for every batch but unknown."""

Shape = tuple[Dim, ...]

Numbers = npt.NDArray[Any]


@dataclass(frozen=True)
class Constant:
    """A value that is the same for all inputs and any number of rows."""

    shape: Shape | None = None
    """None if even the rank is unknown."""
    array: Numbers | None = None
    """The value of a small constant."""


@dataclass(frozen=True)
class Counted:
    """A tensor of numbers that follow from the number of rows alone: shapes, and results of shapes."""

    items: Numbers
    """Elements are ``int`` and `Batch`; None for one that is the same for every batch but unknown."""


@dataclass(frozen=True)
class Rows:
    """Each slice along ``axis`` is a function of one row, the same function for every row and batch.

    The axis has ``outer * rows * inner`` slices: of row ``i`` those at ``(o * rows + i) * inner + j``.
    """

    shape: Shape
    axis: int = 0
    outer: int = 1
    inner: int = 1

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def dim(self) -> Batch:
        """Size of the batch axis."""
        return Batch(self.outer * self.inner)

    def same_slices(self, other: Rows) -> bool:
        """Return whether slices of the same number belong to the same row in both."""
        return (self.outer, self.inner) == (other.outer, other.inner)


@dataclass(frozen=True)
class Numbered:
    """Numbers of rows: each element of slice ``i`` along ``axis``, which has one slice a row, is ``i``."""

    shape: Shape
    axis: int
    column: int | None = None
    """Column that has the numbers, if the last axis holds columns; the others follow from the row."""
    exact: bool = True
    """True if elements are as said; if not, they follow from the numbers, and only the shape is known."""


@dataclass(frozen=True)
class Padded:
    """Lists of tokens, the last axis: those of row ``i`` along the first axis, behind them padding.

    How much of that there is depends on all rows.
    """

    dims: Shape
    """Sizes of the axes before the last one; the first of them is the batch."""
    pad: str

    @property
    def texts(self) -> int | None:
        """The number of lists of a row; None if it is unknown."""
        return product(self.dims[1:])


@dataclass(frozen=True)
class Lost:
    """A value of which nothing is proven; the text names the first such node on the way and its reason."""

    reason: str


Value = Constant | Counted | Rows | Numbered | Padded | Lost


def rows_at(shape: Shape, axis: int, like: Rows) -> Rows:
    """Return a value of this shape whose slices along ``axis`` are arranged as those of ``like``."""
    dims = list(shape)
    dims[axis] = like.dim
    return Rows(tuple(dims), axis, like.outer, like.inner)


def counted(items: Any) -> Value:
    """Return numbers as a constant, or as `Counted` if one of them grows with the rows.

    None stands for a number that is the same for every batch but unknown.
    """
    array = np.asarray(items, dtype=object)
    if any(isinstance(item, Batch) for item in array.reshape(-1)):
        return Counted(array)
    if any(item is None for item in array.reshape(-1)):
        return Constant(array.shape)
    kinds = {type(item) for item in array.reshape(-1)}
    dtype = np.float64 if float in kinds else bool if kinds == {bool} else np.int64
    return Constant(array.shape, array.astype(dtype))


def product(shape: Shape) -> int | None:
    """Return the product of dimensions without the batch; None if one of them is unknown."""
    known = [dim for dim in shape if isinstance(dim, int)]
    return math.prod(known) if len(known) == len(shape) else None


_ROWS = 10_007
"""The number of rows for inferring dimensions: a prime that is unlikely to divide a dimension."""

FOLLOWS_FROM_ROWS = "has an operand that depends on the number of rows"


class Step:
    """A node with the known facts about its inputs, each of which is proven."""

    def __init__(self, node: onnx.NodeProto, inputs: Sequence[Value | None], opset: int) -> None:
        self.node = node
        self.inputs = list(inputs)
        self.opset = opset
        """Version of the operators of the node's domain."""
        self._attributes = {each.name: each for each in node.attribute}

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute's value; strings as text."""
        if name not in self._attributes:
            return default
        value = helper.get_attribute_value(self._attributes[name])
        return value.decode() if isinstance(value, bytes) else value

    def has(self, index: int) -> bool:
        """Return whether this optional input is present."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def given(self, index: int) -> Value:
        """Return an input that the operator needs."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            raise NotProven(f"lacks input {index}")
        return value

    def rows(self, index: int = 0) -> Rows:
        """Return an input that has to have the batch axis."""
        value = self.given(index)
        if not isinstance(value, Rows):
            raise NotProven(f"has no rows in input {index}")
        return value

    def numbers(self, index: int) -> Numbers | None:
        """Return an input's values, which follow from the number of rows at most; None if it is absent."""
        if not self.has(index):
            return None
        value = self.inputs[index]
        if isinstance(value, Counted) and not any(item is None for item in value.items.reshape(-1)):
            return value.items
        if isinstance(value, Constant) and value.array is not None:
            return value.array
        raise NotProven(f"has an input, {self.node.input[index]!r}, whose values aren't known beforehand")

    def dims(self, index: int) -> list[int | Batch]:
        """Return the numbers of an input that the operator needs."""
        found = self.numbers(index)
        if found is None:
            raise NotProven(f"lacks input {index}")
        items = [item if isinstance(item, Batch) else int(item) for item in found.reshape(-1)]
        if any(isinstance(item, Batch) and item.times < 0 for item in items):
            raise NotProven("has a negative number of rows")
        return items

    def integers(self, index: int, name: str = "") -> list[int] | None:
        """Return plain integers, from an attribute ``name`` or an input; None if neither is given."""
        if name and name in self._attributes:
            value = self.attribute(name)
            return [int(item) for item in (value if isinstance(value, list | tuple) else [value])]
        found = self.numbers(index)
        if found is None:
            return None
        if any(isinstance(item, Batch) for item in found.reshape(-1)):
            raise NotProven(FOLLOWS_FROM_ROWS)
        return [int(item) for item in found.reshape(-1)]

    def only_rows_in(self, *indices: int) -> None:
        """Raise `NotProven` unless all other inputs are constants."""
        for index, value in enumerate(self.inputs):
            if index not in indices and value is not None and not isinstance(value, Constant):
                raise NotProven(
                    FOLLOWS_FROM_ROWS
                    if isinstance(value, Counted)
                    else f"has rows in input {index} ({self.node.input[index]!r}), where they mix"
                )

    def inferred(self) -> list[Shape | None]:
        """Return the shapes of the outputs by ONNX's own rules; None for a shape that they leave open.

        The batch's axis is among them as a plain number: a rule says where it is.
        """
        node = self.node
        if is_fatal(node):
            return [None] * len(node.output)
        types: dict[str, onnx.TypeProto] = {}
        data: dict[str, TensorProto] = {}
        try:
            schema = defs.get_schema(node.op_type, self.opset, node.domain)
            for index, (name, value) in enumerate(zip(node.input, self.inputs, strict=True)):
                if value is not None and name:
                    types[name], known = _typed(value, _element(schema, index))
                    if known is not None:
                        data[name] = known
            found = shape_inference.infer_node_outputs(schema, node, types, data)
        except Exception:  # onnx raises errors of any class; a shape that is not inferred is unknown.
            found = {}
        return [_shape_of(found.get(name)) for name in node.output]

    def placed(self, *axes: int | None, like: Rows | None = None, ranks: Sequence[int] = ()) -> list[Value]:
        """Return the outputs, each with the batch at its axis, and otherwise as inferred.

        ``ranks`` are for operators whose shapes ONNX does not infer. An unused output is None.
        """
        source = like or self.rows()
        shapes = self.inferred()
        found: list[Value] = []
        for index, axis in enumerate(axes[: len(shapes)]):
            shape = shapes[index]
            if axis is None:
                found.append(Constant())
                continue
            if shape is None:
                if index >= len(ranks):
                    raise NotProven("has outputs of a shape that can't be inferred")
                shape = (None,) * ranks[index]
            expected = source.outer * source.inner * _ROWS
            if not 0 <= axis < len(shape) or shape[axis] not in (None, expected):
                raise NotProven("has outputs whose shape doesn't follow the rows")
            found.append(rows_at(shape, axis, source))
        return found


Rule = Callable[[Step], Sequence[Value]]


def axis_of(axis: int, rank: int) -> int:
    """Return an axis counted from the front."""
    return axis + rank if axis < 0 else axis


def _element(schema: Any, index: int) -> int:
    """Return an element type that the operator takes there: 32-bit floats if it can, else 8-bit integers."""
    kinds = schema.inputs[min(index, len(schema.inputs) - 1)].types
    narrow = "tensor(float)" not in kinds and "tensor(int8)" in kinds
    return TensorProto.INT8 if narrow else TensorProto.FLOAT


def _typed(value: Value, element: int) -> tuple[onnx.TypeProto, TensorProto | None]:
    """Return a type with the shape, and the value if it is known; of ``element`` where no type is."""
    if isinstance(value, Constant):
        array = value.array
        if array is not None and array.dtype != object:
            known = helper.np_dtype_to_tensor_dtype(array.dtype)
            return helper.make_tensor_type_proto(known, array.shape), numpy_helper.from_array(array)
        return helper.make_tensor_type_proto(element, _plain(value.shape)), None
    if isinstance(value, Counted):
        items = [item.times * _ROWS if isinstance(item, Batch) else item for item in value.items.reshape(-1)]
        array = np.array(items, np.int64).reshape(value.items.shape)
        return helper.make_tensor_type_proto(TensorProto.INT64, array.shape), numpy_helper.from_array(array)
    assert isinstance(value, Rows)
    return helper.make_tensor_type_proto(element, _plain(value.shape)), None


def _plain(shape: Shape | None) -> list[int | str | None] | None:
    if shape is None:
        return None
    return [dim.times * _ROWS if isinstance(dim, Batch) else dim for dim in shape]


def _shape_of(found: onnx.TypeProto | None) -> Shape | None:
    if found is None or not found.tensor_type.HasField("shape"):
        return None
    return tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in found.tensor_type.shape.dim)
