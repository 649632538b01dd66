"""States whose rows lie behind another axis, as in ``[layers, N, hidden]``, with the rows in front.

Recurrent nets keep their states so. Where a state is the gateway's to keep, no client sees its layout: the
model takes and gives it with the rows in front, between two Transposes, and sequences share executions. That
these are the rows is a guess here, which the proof of independent rows and the samples confirm or refuse.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx

from mainspring.compiler.row_axes import Place, RowAxes, dims_of, move_rows
from mainspring.messages.sequencing import Sequencing, State


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
