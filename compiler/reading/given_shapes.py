"""Fixing the dynamic dimensions of a model's inputs to those that the user gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx

from mainspring.compiler.artifact.errors import CompileError
from mainspring.messages.choices import one_of

_UNNAMED = "?"
_OPEN = -1
"""Mark in shapes for a dimension that stays as the file has it."""

Shapes = Mapping[str, tuple[int, ...]]
"""Dimensions by the name of the input, -1 for one that stays as the file has it; the first is the batch."""


def parse_shapes(texts: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Return the shapes in texts such as ``image=1,3,224,224``; raise `CompileError` for other texts."""
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, _, numbers = text.rpartition("=")
        try:
            dims = tuple(int(number) for number in numbers.split(","))
        except ValueError:
            dims = ()
        if not name or not dims or 0 in dims or min(dims) < _OPEN:
            raise CompileError(
                f"shape {text!r} isn't an input's name and its dimensions, such as image=1,3,224,224, or "
                "image=1,3,-1,-1 to leave some as they are"
            )
        if name in shapes:
            raise CompileError(f"input {name!r} is given two shapes; give one --shape for each input")
        shapes[name] = dims
    return shapes


def parse_limits(texts: Iterable[str]) -> dict[str, int]:
    """Return the limits of open dimensions in texts such as ``seq=512``; raise `CompileError` for others."""
    limits: dict[str, int] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        if not name or not number.isdecimal() or int(number) < 1:
            raise CompileError(
                f"limit {text!r} isn't a dimension's name and its largest size, such as seq=512"
            )
        if name in limits:
            raise CompileError(f"dimension {name!r} is given two limits; give one --max for each")
        limits[name] = int(number)
    return limits


def open_negative(model: onnx.ModelProto) -> None:
    """Open the dimensions that exporters write as negative numbers or question marks."""
    for value in [*model.graph.input, *model.graph.output, *model.graph.value_info]:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value < 0 or dim.dim_param == _UNNAMED:
                dim.Clear()


def fix_shapes(model: onnx.ModelProto, shapes: Shapes, *, whole: bool = False) -> None:
    """Give the inputs these dimensions, all but the first, which stays the batch; if ``whole``, all of them.

    A dimension that has a name is fixed wherever an input or output has one of that name. Raises
    `CompileError` for an unknown input, or one whose fixed dimensions differ.
    """
    inputs = {value.name: value for value in inputs_of(model)}
    bound: dict[str, int] = {}
    for name, dims in shapes.items():
        if name not in inputs:
            raise CompileError(f"the model has no input {name!r}: it has {one_of(name, inputs)}")
        _fix(inputs[name], dims, bound, whole)
    for value in [*inputs.values(), *model.graph.output]:
        for dim in value.type.tensor_type.shape.dim[0 if whole else 1 :]:
            if dim.dim_param in bound:
                dim.dim_value = bound[dim.dim_param]
    if shapes:
        del model.graph.value_info[:]


def shape_option(value: onnx.ValueInfoProto, *, whole: bool = False) -> str:
    """Return the ``--shape`` option that would fix the input, with a word for each open number."""
    dims = value.type.tensor_type.shape.dim[0 if whole else 1 :]
    known = [str(dim.dim_value) if dim.HasField("dim_value") else (dim.dim_param or "?") for dim in dims]
    return f"--shape {value.name}={','.join(known if whole else ['1', *known])}"


def inputs_of(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs that are not initializers, which old models list among them."""
    initialized = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in initialized]


def _fix(value: onnx.ValueInfoProto, dims: tuple[int, ...], bound: dict[str, int], whole: bool) -> None:
    """Set the input's dimensions, or those after the first; add those that have names to ``bound``."""
    tensor = value.type.tensor_type
    if whole and not tensor.shape.dim and dims in ((), (1,)):
        # A scalar, which configurations have to write as one dimension of 1.
        tensor.shape.SetInParent()
        return
    if not tensor.HasField("shape"):
        tensor.shape.dim.add().dim_param = "batch"
        for _ in dims[1:]:
            tensor.shape.dim.add()
    if len(tensor.shape.dim) != len(dims):
        raise CompileError(
            f"input {value.name!r} has {len(tensor.shape.dim)} dimensions, but {len(dims)} are given: {dims}"
        )
    for axis, (dim, wanted) in enumerate(zip(tensor.shape.dim, dims, strict=True)):
        if wanted == _OPEN:
            continue
        if dim.HasField("dim_value") and dim.dim_value != wanted:
            raise CompileError(
                f"dimension {axis} of input {value.name!r} is {dim.dim_value} in the model, "
                f"so it can't be {wanted}"
            )
        fixed = axis > 0 or whole
        if fixed and dim.dim_param and bound.setdefault(dim.dim_param, wanted) != wanted:
            raise CompileError(
                f"dimension {dim.dim_param!r} can't be both {bound[dim.dim_param]} and {wanted}"
            )
        if fixed:
            dim.dim_value = wanted
