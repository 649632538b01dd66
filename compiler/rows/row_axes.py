"""Rows behind another axis than the first, as in recurrent nets': ``[T, N, C]``, ``[layers, N, hidden]``.

Where a model's first axes are not its rows, each input has a few axes that may be: open ones, and those of
one element. Which of them hold independent rows, and where the outputs have these, the proof says that
follows the rows through the graph (``independence``). A model with such rows is compiled with them in front,
between Transposes of its own: engines and workers know no other layout. Clients see the file's, which is
`TensorSpec.rows_axis`. No client sees the layout of a state that the gateway keeps: there the axis is a
guess, which the proof of independent rows and the samples confirm or refuse.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec
import onnx
from onnx import helper

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.independence.counting import MOST_ELEMENTS
from mainspring.compiler.independence.step import Rows
from mainspring.compiler.independence.walk import follow
from mainspring.compiler.reading.contents import serialise, without_weights
from mainspring.compiler.reading.given_shapes import Shapes, inputs_of
from mainspring.compiler.reading.normalise import normalise, rename
from mainspring.compiler.reading.stock import optimise_portably
from mainspring.compiler.rows.open_batch import baked_batch, name_squeezed, open_batch, repair_reshapes
from mainspring.messages.model import TensorSpec
from mainspring.messages.sequencing import Sequencing, State

_MOST_TRIED = 24

_MOST_FOLDED = 2
"""Most candidates that ONNX Runtime folds, where the graph as it is proves none: each is slow."""

_ROWS_NAME = re.compile(r"n|b|bs|batch.*", re.IGNORECASE)
"""Usual names of the dimension of the rows, where its author means no other by it."""

Dims = list[int | str]


class Place(NamedTuple):
    """An axis of a tensor."""

    axis: int
    rank: int


class RowAxes(NamedTuple):
    """The positions of the rows in tensors that don't have them in front."""

    inputs: Mapping[str, Place] = {}
    outputs: Mapping[str, Place] = {}


IN_FRONT = RowAxes()
"""All tensors have them in front."""


class RowsElsewhere(CompileError):
    """The first axes are not the rows, and others are: ``axes``."""

    def __init__(self, axes: RowAxes) -> None:
        names = ", ".join(f"{place.axis} of {name!r}" for side in axes for name, place in side.items())
        super().__init__(f"the rows are axis {names}")
        self.axes = axes


def find_row_axes(model: onnx.ModelProto, shapes: Shapes, most: Collection[str]) -> RowAxes | None:
    """Return where a model has independent rows, if not all of them are in front; None if nothing is proven.

    ``shapes`` are those that inputs are given, where a first size that is not -1 is the batch's; ``most``
    names dimensions that have a limit, and so are none of rows.
    """
    light = without_weights(model, MOST_ELEMENTS)
    inputs = {value.name: dims_of(value) for value in inputs_of(light)}
    pinned = {name for name, dims in shapes.items() if dims[:1] != (-1,)}
    given = {name: dims for name, dims in shapes.items() if name not in pinned}
    tried = []
    for axes in itertools.islice(_candidates(inputs, pinned, {*most}), _MOST_TRIED):
        if any(
            given[name][axis : axis + 1] not in ((-1,), (1,)) for name, axis in axes.items() if name in given
        ):
            continue
        found = _proven(light, inputs, axes)
        if found is not None:
            return _unless_in_front(found)
        tried.append(axes)
    # Front axes were tried on the folded graph before.
    for axes in [axes for axes in tried if any(axes.values())][:_MOST_FOLDED]:
        found = _proven(model, inputs, axes, fold=True)
        if found is not None:
            return _unless_in_front(found)
    return None


def move_rows(model: onnx.ModelProto, axes: RowAxes) -> None:
    """Have a model take and give these tensors with the rows in front, in the model itself."""
    graph = model.graph
    names = [*axes.inputs, *axes.outputs]
    rename(graph, {name: f"{name}:as in the file" for name in names})
    for value in graph.input:
        if value.name in axes.inputs:
            order, back = _orders(axes.inputs[value.name])
            _reorder(value, order)
            graph.node.insert(0, _transpose(value.name, f"{value.name}:as in the file", back))
    for value in graph.output:
        if value.name in axes.outputs:
            order, _ = _orders(axes.outputs[value.name])
            _reorder(value, order)
            graph.node.append(_transpose(f"{value.name}:as in the file", value.name, order))


def with_axes(
    specs: Sequence[TensorSpec], places: Mapping[str, Place], sequencing: Sequencing | None
) -> tuple[TensorSpec, ...]:
    """Return tensors as clients see them; what gateways keep for a sequence, no client sees.

    A state that clients may have is kept as they see it.
    """
    kept: set[str] = set()
    if sequencing is not None:
        kept = {*sequencing.kept_inputs, *sequencing.kept_outputs}
        kept -= {each.input for each in sequencing.states if each.shown}
    return tuple(
        msgspec.structs.replace(spec, rows_axis=places[spec.name].axis)
        if spec.name in places and spec.name not in kept
        else spec
        for spec in specs
    )


def moved_shapes(shapes: Shapes, axes: RowAxes) -> Shapes:
    """Return shapes that are given as in the file with the rows in front."""
    return {
        name: tuple([dims[each] for each in _orders(axes.inputs[name])[0]])
        if name in axes.inputs and len(dims) == axes.inputs[name].rank
        else dims
        for name, dims in shapes.items()
    }


def dims_of(value: onnx.ValueInfoProto) -> Dims:
    """Return the dimensions: a size, a name, or no name for an open one without."""
    dims = value.type.tensor_type.shape.dim
    return [each.dim_value if each.HasField("dim_value") else each.dim_param for each in dims]


def _unless_in_front(axes: RowAxes) -> RowAxes | None:
    return axes if axes.inputs or axes.outputs else None


def _candidates(
    inputs: Mapping[str, Dims], pinned: Collection[str], limited: Collection[str]
) -> Iterator[dict[str, int]]:
    """Yield an axis of each input that may be its rows, the likeliest first: the first of all."""
    if not inputs or not all(inputs.values()):
        return
    front = dict.fromkeys(inputs, 0)
    yield front
    if all(dims[0] == 1 for dims in inputs.values()):
        return
    named = {str(dim) for dims in inputs.values() for dim in dims if _ROWS_NAME.fullmatch(str(dim))}
    places = []
    for name, dims in inputs.items():
        axes = [0] if name in pinned else range(len(dims))
        taken = [
            axis
            for axis in axes
            if dims[axis] == 1 or (isinstance(dims[axis], str) and dims[axis] not in limited)
        ]
        places.append(taken)
    if len(named) > 1 or any(not each for each in places):
        return
    found = []
    for combination in itertools.islice(itertools.product(*places), 4096):
        kinds = [dims[axis] for dims, axis in zip(inputs.values(), combination, strict=True)]
        names = {kind for kind in kinds if isinstance(kind, str) and kind}
        if len(names) <= 1 and (not named or names == named) and any(combination):
            found.append((len({isinstance(kind, str) for kind in kinds}), sum(combination), combination))
    for _, _, combination in sorted(found):
        yield dict(zip(inputs, combination, strict=True))


def _proven(
    model: onnx.ModelProto, inputs: Mapping[str, Dims], axes: Mapping[str, int], *, fold: bool = False
) -> RowAxes | None:
    """Return where outputs have the rows that inputs have there; None if nothing proves them independent.

    With ``fold`` the graph is what ONNX Runtime makes of it.
    """
    moved = RowAxes({name: Place(axis, len(inputs[name])) for name, axis in axes.items() if axis})
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    # Errors are those of graphs that contradict themselves, which the compilation reports.
    with suppress(CompileError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        move_rows(copy, moved)
        normal = normalise(copy, symbols=True)
        fixed = baked_batch(normal)
        if fixed not in (None, 1):
            return None
        open_batch(normal)
        name_squeezed(normal)
        if fixed:
            repair_reshapes(normal, fixed)
        outputs = _outputs_of(optimise_portably(serialise(normal), values=False) if fold else normal)
        if outputs is not None:
            return moved._replace(outputs=outputs)
    return None


def _outputs_of(model: onnx.ModelProto) -> dict[str, Place] | None:
    """Return which outputs of a model with its rows in front have them elsewhere; None without a proof."""
    values = follow(model)
    found = {}
    for output in model.graph.output:
        value = values.get(output.name)
        if not isinstance(value, Rows) or (value.outer, value.inner) != (1, 1):
            return None
        if value.axis:
            found[output.name] = Place(value.axis, value.rank)
    return found


def _orders(place: Place) -> tuple[list[int], list[int]]:
    """Return the permutations that put the axis in front, and back."""
    axis, rank = place
    back = [0 if each == axis else each + (each < axis) for each in range(rank)]
    return [axis, *[each for each in range(rank) if each != axis]], back


def _transpose(source: str, target: str, order: Sequence[int]) -> onnx.NodeProto:
    return helper.make_node("Transpose", [source], [target], name=f"{source} to {target}", perm=order)


def _reorder(value: onnx.ValueInfoProto, order: list[int]) -> None:
    """Put a shape's dimensions in this order, if it has one."""
    shape = value.type.tensor_type.shape
    if len(shape.dim) == len(order):
        dims = [shape.dim[axis] for axis in order]
        value.type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto(dim=dims))


def put_rows_first(model: onnx.ModelProto, sequencing: Sequencing | None, shapes: Collection[str]) -> bool:
    """Move the rows of states in front, in the model itself; return whether any were behind another axis.

    ``shapes`` are inputs whose shapes are given as they are. Nothing is changed if a state has no axis that
    may be its rows, or if clients see it or its first shape as the file has them.
    """
    states = () if sequencing is None else sequencing.states
    inputs = {value.name: value for value in model.graph.input}
    outputs = {value.name: value for value in model.graph.output}
    if not all(each.input in inputs and each.output in outputs for each in states):
        return False
    rows = _rows_of([value for name, value in inputs.items() if name not in {each.input for each in states}])
    axes = {each.input: _axis(inputs[each.input], rows) for each in states}
    moved = [each for each in states if axes[each.input] != 0]
    if not moved or rows is None or not all(_may_move(each, inputs, axes, shapes) for each in moved):
        return False
    places = {each: Place(axes[each.input] or 0, len(dims_of(inputs[each.input]))) for each in moved}
    move_rows(
        model,
        RowAxes(
            {each.input: place for each, place in places.items()},
            {each.output: place for each, place in places.items()},
        ),
    )
    return True


def _rows_of(values: list[onnx.ValueInfoProto]) -> int | str | None:
    """Return what the first axes of these inputs are, all the same; None if they aren't."""
    firsts = {dims[0] for dims in map(dims_of, values) if dims}
    return next(iter(firsts)) if len(firsts) == 1 and all(map(dims_of, values)) else None


def _axis(value: onnx.ValueInfoProto, rows: int | str | None) -> int | None:
    """Return the one axis that is as the other inputs' rows, the first if it is among several; or None."""
    places = [axis for axis, dim in enumerate(dims_of(value)) if dim == rows]
    return places[0] if places[:1] == [0] or len(places) == 1 else None


def _may_move(
    state: State, inputs: dict[str, onnx.ValueInfoProto], axes: dict[str, int | None], shapes: Collection[str]
) -> bool:
    whole = state.dims is not None and len(state.dims) == len(dims_of(inputs[state.input]))
    return axes[state.input] is not None and not state.shown and not whole and state.input not in shapes
