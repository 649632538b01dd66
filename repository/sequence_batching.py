"""``sequence_batching`` of a ``config.pbtxt``: states, and inputs that say where a request is. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mainspring.messages.choices import one_of
from mainspring.messages.sequencing import Control, Sequencing, State
from mainspring.repository.fields import DATA_TYPES
from mainspring.repository.reading import ConfigFault, Fields

_MOST_US = 30 * 86_400 * 10**6
_KINDS: Mapping[str, str] = {
    "CONTROL_SEQUENCE_START": "start",
    "CONTROL_SEQUENCE_END": "end",
    "CONTROL_SEQUENCE_READY": "ready",
    "CONTROL_SEQUENCE_CORRID": "id",
}
_TRUTHS: Mapping[str, str] = {
    "int32_false_true": "TYPE_INT32",
    "fp32_false_true": "TYPE_FP32",
    "bool_false_true": "TYPE_BOOL",
}

Said = tuple[str, str, tuple[int, ...] | None]
"""A tensor's name, its ``data_type`` and ``dims``, as `TensorConfig` has them."""


class Sequences(NamedTuple):
    """The part of the file about sequences."""

    sequencing: Sequencing | None = None
    inputs: tuple[Said, ...] = ()
    """Inputs that clients do not give."""
    outputs: tuple[Said, ...] = ()
    """Outputs that clients do not get."""
    files: Mapping[str, str] = {}
    """Files of initial states, by the input of the state."""


def read_sequences(fields: Fields, outputs: Sequence[str]) -> Sequences:
    """Return what the file says; ``outputs`` are those that clients may have. Raises `ConfigFault`."""
    batching = fields.message("sequence_batching")
    if batching is None:
        return Sequences()
    if fields.has("dynamic_batching"):
        raise ConfigFault(f"{batching.where}: sequence_batching and dynamic_batching can't both be; keep one")
    if batching.has("direct") and batching.has("oldest"):
        raise ConfigFault(f"{batching.where}: direct and oldest can't both be; keep one strategy")
    states, controls, inputs, taken = [], [], [], []
    files: dict[str, str] = {}
    for each in batching.messages("state"):
        state, data_type, dims = _state(each, outputs, files)
        states.append(state)
        inputs.append((state.input, data_type, dims))
        if not state.shown:
            taken.append((state.output, data_type, dims))
    for each in batching.messages("control_input"):
        control, data_type = _control(each)
        controls.append(control)
        inputs.append((control.input, data_type, None))
    idle_us = batching.count("max_sequence_idle_microseconds", 0, 0, _MOST_US)
    sequencing = Sequencing(tuple(states), tuple(controls), idle_us * 1000 or None)
    return Sequences(sequencing, tuple(inputs), tuple(taken), files)


def _state(
    fields: Fields, outputs: Sequence[str], files: dict[str, str]
) -> tuple[State, str, tuple[int, ...] | None]:
    """Return a state, its type and its dims; note the file of its initial value."""
    fed, taken = _named(fields, "input_name"), _named(fields, "output_name")
    data_type = _data_type(fields)
    dims = fields.numbers("dims", -1, 1 << 40) if fields.has("dims") else None
    initial = fields.messages("initial_state")
    if len(initial) > 1:
        raise ConfigFault(f"{initial[1].where}: the state of input {fed!r} has two initial states; keep one")
    first = None
    for each in initial:
        if _data_type(each) not in ("", data_type) and data_type:
            raise ConfigFault(
                f"{each.place('data_type')}: the initial state of input {fed!r} is {_data_type(each)} and "
                f"the state {data_type}; they must be equal"
            )
        first = each.numbers("dims", 0, 1 << 40) if each.has("dims") else None
        if each.has("data_file"):
            files[fed] = _file(each)
    return State(fed, taken, first, b"", taken in outputs), data_type, dims


def _control(fields: Fields) -> tuple[Control, str]:
    """Return a control and its type."""
    name, controls = _named(fields, "name"), fields.messages("control")
    if len(controls) != 1:
        raise ConfigFault(
            f"{fields.where}: control_input {name!r} has {len(controls)} controls; it has exactly one"
        )
    [inner] = controls
    word = inner.word("kind", "CONTROL_SEQUENCE_START")
    if word not in _KINDS:
        raise ConfigFault(f"{inner.place('kind')}: kind {word} is none; it is one of {one_of(word, _KINDS)}")
    if _KINDS[word] == "id":
        return Control(name, "id"), _data_type(inner)
    given = [each for each in _TRUTHS if inner.has(each)]
    values = inner.flags(given[0]) if given == ["bool_false_true"] else inner.reals(given[0]) if given else ()
    if len(given) != 1 or len(values) != 2:
        raise ConfigFault(
            f"{inner.where}: the control {word} needs two values, false and true, in one of "
            f"{', '.join(_TRUTHS)}, such as fp32_false_true: [0, 1]"
        )
    return Control(name, _KINDS[word], float(values[0]), float(values[1])), _TRUTHS[given[0]]


def _named(fields: Fields, name: str) -> str:
    found = fields.text(name, "")
    if not found:
        raise ConfigFault(f"{fields.where}: {fields.kind} needs {name}")
    return found


def _data_type(fields: Fields) -> str:
    found = fields.word("data_type", "")
    if found and found not in DATA_TYPES:
        raise ConfigFault(
            f"{fields.place('data_type')}: data_type {found} is none; it is one of "
            f"{one_of(found, DATA_TYPES)}"
        )
    return found


def _file(fields: Fields) -> str:
    name = fields.text("data_file", "")
    if not name or "/" in name or name in {".", ".."}:
        raise ConfigFault(
            f"{fields.place('data_file')}: {name!r} is not the name of a file; data_file names one in the "
            "model's folder initial_state"
        )
    return name
