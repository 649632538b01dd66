"""Checks of a model's description of its sequences against its tensors."""

from __future__ import annotations

import math

import numpy as np

from mainspring.messages.model import ModelSpec, OpenDim, TensorSpec, item_bytes, slot_bytes
from mainspring.messages.sequencing import Control, State

MOST_INITIAL_BYTES = 1 << 20
"""Most bytes of all initial states of a model together: its specification holds them."""
KINDS = ("start", "end", "ready", "id")
_TRUTH_DTYPES = frozenset({"bool", "int32", "float32", "int64", "uint8", "int8", "float64", "float16"})
_ID_DTYPES = frozenset({"uint64", "int64", "uint32", "int32"})


def check_sequencing(spec: ModelSpec) -> None:
    """Check a model's sequencing against its tensors.

    Raises `ValueError`, which names what is wrong and what would be right.
    """
    sequencing = spec.sequencing
    if sequencing is None:
        return
    inputs, outputs = ({each.name: each for each in tensors} for tensors in (spec.inputs, spec.outputs))
    fed = [state.input for state in sequencing.states]
    fed += [control.input for control in sequencing.controls]
    for name in fed:
        if name not in inputs:
            raise ValueError(f"there is no input {name!r} for its sequences; it has {_names(inputs)}")
        if fed.count(name) > 1:
            raise ValueError(f"the input {name!r} is a state or a control twice; it may be one of them, once")
    taken = [each.output for each in sequencing.states]
    for name in taken:
        if name not in outputs:
            raise ValueError(f"there is no output {name!r} to take a state from; it has {_names(outputs)}")
        if taken.count(name) > 1:
            raise ValueError(f"two states are taken from the output {name!r}; each has an output of its own")
    for state in sequencing.states:
        _check_state(spec, state, inputs[state.input], outputs[state.output])
    _check_relations(spec, sequencing.kept_inputs)
    for control in sequencing.controls:
        _check_control(control, inputs[control.input])
    if sum(len(each.initial) for each in sequencing.states) > MOST_INITIAL_BYTES:
        raise ValueError(f"its initial states have more than {MOST_INITIAL_BYTES:,} bytes")


def _check_state(spec: ModelSpec, state: State, fed: TensorSpec, taken: TensorSpec) -> None:
    pair = f"the state from output {taken.name!r} to input {fed.name!r}"
    if fed.dtype != taken.dtype:
        raise ValueError(f"{pair} is {taken.dtype} where it is taken and {fed.dtype} where it is fed")
    if len(fed.shape) != len(taken.shape) or fed.rows_axis != taken.rows_axis:
        raise ValueError(
            f"{pair} is {taken.dims_with_rows} where it is taken and {fed.dims_with_rows} where it is fed"
        )
    opened = {dim.axis: dim for dim in fed.open}
    varies = {*taken.varies, *(dim.axis for dim in taken.open)}
    for axis, (into, out) in enumerate(zip(fed.shape, taken.shape, strict=True)):
        if axis in opened:
            fits = opened[axis].symbol is not None and (axis in varies or _within(spec, opened[axis], out))
        else:
            fits = axis not in varies and into == out
        if not fits:
            raise ValueError(
                f"{pair} is {taken.dims} where it is taken and {fed.dims} where it is fed; each dimension "
                "must be the same, or open where it is fed"
            )
    _check_initial(spec, state, fed)


def _check_relations(spec: ModelSpec, kept: frozenset[str]) -> None:
    """Check that what clients give has no dimension that follows from a state's."""
    names = [symbol.name for symbol in spec.symbols]
    given = {dim.symbol for each in spec.inputs if each.name not in kept for dim in each.open}
    for each in spec.inputs:
        for dim in each.open if each.name not in kept else ():
            if dim.symbol is None and not {term.symbol for term in dim.every_term} <= given:
                raise ValueError(
                    f"dimension {dim.axis} of input {each.name!r} is {dim.written(names)}, which follows "
                    "from a state's size; clients, who don't know that, can't give it"
                )


def _check_initial(spec: ModelSpec, state: State, fed: TensorSpec) -> None:
    opened = {dim.axis: dim for dim in fed.open}
    dims = state.dims
    if dims is not None:
        fits = len(dims) == len(fed.shape) and all(
            _within(spec, opened[axis], size) if axis in opened else size == fed.shape[axis]
            for axis, size in enumerate(dims)
        )
        if not fits:
            raise ValueError(
                f"the initial state of input {fed.name!r} has dims {list(dims)}; the input is {fed.dims}"
            )
    if not state.initial:
        return
    if dims is None and opened:
        raise ValueError(
            f"the initial state of input {fed.name!r} has bytes and no dims, and the input is {fed.dims}"
        )
    wanted = TensorSpec(fed.name, fed.dtype, fed.shape if dims is None else dims).row_bytes
    if len(state.initial) != wanted:
        raise ValueError(
            f"the initial state of input {fed.name!r} has {len(state.initial):,} bytes; one row of "
            f"{fed.dtype}{list(fed.shape if dims is None else dims)} has {wanted:,}"
        )


def _check_control(control: Control, fed: TensorSpec) -> None:
    if control.kind not in KINDS:
        raise ValueError(f"the control {control.kind!r} is none; it is one of {', '.join(KINDS)}")
    if math.prod(fed.shape) != 1 or fed.open:
        raise ValueError(
            f"the control input {fed.name!r} is {fed.dims}; it must have one element in each row"
        )
    right = _ID_DTYPES if control.kind == "id" else _TRUTH_DTYPES
    if fed.dtype not in right and not (control.kind == "id" and slot_bytes(fed.dtype)):
        raise ValueError(
            f"the control input {fed.name!r} is {fed.dtype}; for {control.kind!r} it is one of "
            f"{', '.join(sorted(right))}" + (", or text" if control.kind == "id" else "")
        )


def first_rows(state: State, fed: TensorSpec, rows: int) -> bytes:
    """Return a state of ``rows`` rows at the first request of a sequence, as clients have it.

    ``fed`` has the state's own shape.
    """
    if not state.initial:
        return bytes(rows * fed.row_bytes)
    given = state.initial * rows
    if not fed.rows_axis or rows == 1:
        return given
    each = np.frombuffer(given, np.dtype((np.void, item_bytes(fed.dtype)))).reshape(rows, *fed.shape)
    return np.moveaxis(each, 0, fed.rows_axis).tobytes()


def control_row(control: Control, fed: TensorSpec, *, start: bool, end: bool, sequence: int | str) -> bytes:
    """Return the one element of a control input in each row of a request.

    ``start`` and ``end`` are the request's, ``sequence`` the id. Raises `ValueError` for an id that the
    input's type can't hold.
    """
    if control.kind != "id":
        said = {"start": start, "end": end, "ready": True}[control.kind]
        return np.asarray(control.true if said else control.false).astype(fed.dtype).tobytes()
    slot = slot_bytes(fed.dtype)
    if slot is not None:
        text = str(sequence).encode()
        if len(text) <= slot:
            return text.ljust(slot, b"\0")
        raise ValueError(f"the sequence's id has {len(text)} bytes; input {fed.name!r} holds {slot}")
    limits = np.iinfo(fed.dtype)
    if isinstance(sequence, str) or not limits.min <= sequence <= limits.max:
        raise ValueError(
            f"the sequence's id is {str(sequence)[:40]!r}; input {fed.name!r} takes whole numbers up to "
            f"{limits.max}"
        )
    return np.asarray(sequence, fed.dtype).tobytes()


def _within(spec: ModelSpec, dim: OpenDim, size: int) -> bool:
    """Say whether an input's open dimension may have a size."""
    if dim.symbol is None:
        return False
    symbol = spec.symbols[dim.symbol]
    return symbol.least <= size <= symbol.limit


def _names(tensors: dict[str, TensorSpec]) -> str:
    return ", ".join(map(repr, tensors)) or "none"
