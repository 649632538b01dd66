"""The open dimensions of a model's inputs besides the batch, and their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import onnx

from mainspring.compiler.artifact.errors import AS_IT_IS, NoRows


class OpenAxis(NamedTuple):
    """An open dimension of an input."""

    input: int
    axis: int
    """Number of the axis, without the batch axis."""
    name: str


def open_axes(model: onnx.ModelProto) -> list[OpenAxis]:
    """Return the open dimensions behind the first axis of each input."""
    return [
        OpenAxis(index, axis, dim.dim_param)
        for index, value in enumerate(model.graph.input)
        for axis, dim in enumerate(value.type.tensor_type.shape.dim[1:])
        if not dim.HasField("dim_value")
    ]


def check_limits(model: onnx.ModelProto, most: Mapping[str, int]) -> None:
    """Raise `NoRows` if a limit is given for an input's first axis, which is not a number of rows then."""
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        if len(dims) and dims[0].dim_param in most:
            raise NoRows(
                f"the first axis of input {value.name!r} is {dims[0].dim_param!r}, to which `--max` gives a "
                f"limit, so it isn't the batch; or {AS_IT_IS}"
            )


def name_open_dims(model: onnx.ModelProto, *, whole: bool) -> None:
    """Give each input's open dimensions a name; raise `NoRows` if the batch's name is one of another.

    If ``whole``, the first axis is not a batch.
    """
    batches = set[str]()
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        if not whole and len(dims) and dims[0].dim_param:
            batches.add(dims[0].dim_param)
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if axis == 0 and not whole:
                continue
            if not dim.HasField("dim_value") and not dim.dim_param:
                dim.dim_param = f"{value.name}.{axis}"
            if dim.dim_param in batches:
                raise NoRows(
                    f"dimension {axis} of input {value.name!r} is the number of rows ({dim.dim_param}); rows "
                    "can't share a run of such a model; fix the dimension with `--shape`"
                )
