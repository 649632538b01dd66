"""One node, in the form that rules work on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, defs, helper, numpy_helper, shape_inference

from mainspring.compiler.independence.values import (
    Batch,
    Constant,
    Counted,
    NotProven,
    Numbers,
    Rows,
    Shape,
    Value,
    rows_at,
)
from mainspring.compiler.inferring import is_fatal

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

    def inferred(self, node: onnx.NodeProto | None = None, domain: str | None = None) -> list[Shape | None]:
        """Return the shapes of the outputs by ONNX's own rules; None for a shape that they leave open.

        The batch's axis is among them as a plain number: a rule says where it is.
        """
        node = node or self.node
        if is_fatal(node):
            return [None] * len(node.output)
        types: dict[str, onnx.TypeProto] = {}
        data: dict[str, TensorProto] = {}
        try:
            schema = defs.get_schema(node.op_type, self.opset, node.domain if domain is None else domain)
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
