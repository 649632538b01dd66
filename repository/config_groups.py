"""Groups of fields of a ``config.pbtxt``: sequences, rows to warm up with, and what clients may read.

Names and types are those of Triton's ``model_config.proto``; a value of another type is a `ConfigFault`.
Triton sends ``model_warmup`` before it serves a model. Here each worker warms a model up by itself, and these
rows take the place of those with which the compiler compares it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from mainspring.messages.choices import one_of
from mainspring.messages.sequencing import Control, Sequencing, State
from mainspring.repository.reading import (
    CONTROL_KINDS,
    DATA_TYPES,
    FORMATS,
    INSTANCE_KINDS,
    PRIORITIES,
    ConfigFault,
    Fields,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


_MOST = 2**31 - 1
_MESSAGE, _MESSAGES, _MAP = "message", "messages", "map"
_TEXT, _FLAG, _NUMBER, _NUMBERS = "text", "flag", "number", "numbers"

_DATA_TYPES = tuple(DATA_TYPES)

_TYPES: Mapping[str, Mapping[str, str | tuple[str, ...]]] = {
    "": {
        "instance_group": _MESSAGES,
        "optimization": _MESSAGE,
        "dynamic_batching": _MESSAGE,
        "sequence_batching": _MESSAGE,
        "metric_tags": _MAP,
        "cc_model_filenames": _MAP,
        "runtime": _TEXT,
    },
    "input": {
        "format": FORMATS,
        "reshape": _MESSAGE,
        "allow_ragged_batch": _FLAG,
        "optional": _FLAG,
        "is_non_linear_format_io": _FLAG,
    },
    "output": {"label_filename": _TEXT, "reshape": _MESSAGE, "is_non_linear_format_io": _FLAG},
    "dynamic_batching": {
        "max_queue_delay_microseconds": _NUMBER,
        "preserve_ordering": _FLAG,
        "default_queue_policy": _MESSAGE,
    },
    "default_queue_policy": {"allow_timeout_override": _FLAG},
    "sequence_batching": {
        "max_sequence_idle_microseconds": _NUMBER,
        "control_input": _MESSAGES,
        "state": _MESSAGES,
        "direct": _MESSAGE,
        "oldest": _MESSAGE,
    },
    "control_input": {"name": _TEXT, "control": _MESSAGES},
    "control": {
        "kind": CONTROL_KINDS,
        "int32_false_true": "signeds",
        "fp32_false_true": "reals",
        "bool_false_true": "flags",
        "data_type": _DATA_TYPES,
    },
    "state": {
        "input_name": _TEXT,
        "output_name": _TEXT,
        "data_type": _DATA_TYPES,
        "dims": "signeds",
        "initial_state": _MESSAGES,
    },
    "initial_state": {
        "data_type": _DATA_TYPES,
        "dims": "signeds",
        "zero_data": _FLAG,
        "data_file": _TEXT,
        "name": _TEXT,
    },
    "direct": {"max_queue_delay_microseconds": _NUMBER, "minimum_slot_utilization": "real"},
    "oldest": {
        "max_candidate_sequences": _NUMBER,
        "preferred_batch_size": _NUMBERS,
        "max_queue_delay_microseconds": _NUMBER,
        "preserve_ordering": _FLAG,
    },
    "reshape": {"shape": "signeds"},
    "instance_group": {
        "name": _TEXT,
        "count": _NUMBER,
        "kind": INSTANCE_KINDS,
        "gpus": _NUMBERS,
        "passive": _FLAG,
        "host_policy": _TEXT,
    },
    "optimization": {
        "graph": _MESSAGE,
        "priority": PRIORITIES,
        "cuda": _MESSAGE,
        "execution_accelerators": _MESSAGE,
        "input_pinned_memory": _MESSAGE,
        "output_pinned_memory": _MESSAGE,
        "gather_kernel_buffer_threshold": _NUMBER,
        "eager_batching": _FLAG,
    },
    "graph": {"level": "signed"},
    "cuda": {"graphs": _FLAG, "busy_wait_events": _FLAG, "output_copy_stream": _FLAG},
    "execution_accelerators": {
        "gpu_execution_accelerator": _MESSAGES,
        "cpu_execution_accelerator": _MESSAGES,
    },
    "gpu_execution_accelerator": {"name": _TEXT, "parameters": _MAP},
    "cpu_execution_accelerator": {"name": _TEXT, "parameters": _MAP},
    "input_pinned_memory": {"enable": _FLAG},
    "output_pinned_memory": {"enable": _FLAG},
}
"""Type of each field, by its message; "" is the file itself. A tuple has an enum's names."""


def passed_on(fields: Fields, kind: str = "") -> dict[str, Any]:
    """Return what a message of this kind says of those fields, as JSON has it; raise `ConfigFault`."""
    return {name: _value(fields, name, wanted) for name, wanted in _TYPES[kind].items() if fields.has(name)}


def _value(fields: Fields, name: str, wanted: str | tuple[str, ...]) -> Any:
    if isinstance(wanted, tuple):
        word = fields.word(name, "")
        if word not in wanted:
            raise ConfigFault(
                f"{fields.place(name)}: {name} {word} is none; it is one of {one_of(word, sorted(wanted))}"
            )
        return word
    match wanted:
        case "message":
            message = fields.message(name)
            return {} if message is None else passed_on(message, name)
        case "messages":
            return [passed_on(message, name) for message in fields.messages(name)]
        case "map":
            return {each.text("key", ""): each.text("value", "") for each in fields.messages(name)}
        case "text":
            return fields.text(name, "")
        case "flag":
            return fields.flag(name)
        case "number":
            return fields.count(name, 0, 0, _MOST)
        case "signeds":
            return list(fields.numbers(name, -(1 << 31), _MOST))
        case "reals":
            return list(fields.reals(name))
        case "real":
            return next(iter(fields.reals(name)), 0.0)
        case "flags":
            return list(fields.flags(name))
        case "signed":
            return fields.count(name, 0, -1, _MOST)
        case _:
            return list(fields.numbers(name, 0, _MOST))


_MOST_US = 30 * 86_400 * 10**6
_CONTROL_KINDS: Mapping[str, str] = {
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
    if word not in _CONTROL_KINDS:
        raise ConfigFault(
            f"{inner.place('kind')}: kind {word} is none; it is one of {one_of(word, _CONTROL_KINDS)}"
        )
    if _CONTROL_KINDS[word] == "id":
        return Control(name, "id"), _data_type(inner)
    given = [each for each in _TRUTHS if inner.has(each)]
    values = inner.flags(given[0]) if given == ["bool_false_true"] else inner.reals(given[0]) if given else ()
    if len(given) != 1 or len(values) != 2:
        raise ConfigFault(
            f"{inner.where}: the control {word} needs two values, false and true, in one of "
            f"{', '.join(_TRUTHS)}, such as fp32_false_true: [0, 1]"
        )
    return Control(name, _CONTROL_KINDS[word], float(values[0]), float(values[1])), _TRUTHS[given[0]]


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


FOLDER = "warmup"
"""Name of the folder, in the model's, of the files with data."""
MOST_BYTES = 64 << 20
"""Most bytes of one file."""
_MOST_SIZE = 1 << 30


class WarmupInput(msgspec.Struct, frozen=True):
    """A row of one input."""

    name: str
    data_type: str
    """Type of the elements: one of `DATA_TYPES`' names for numpy, or ``string``."""
    dims: tuple[int, ...]
    """Dimensions as the client gives them, without the batch where requests have one."""
    file: str = ""
    """Name of a file in the model's folder for these; empty: zeros, or empty texts."""
    sha256: str = ""
    """Hash of the file's content; empty until it is read."""


def read_warmup(fields: Fields) -> tuple[WarmupInput, ...]:
    """Return what the file says; raise `ConfigFault`."""
    found = []
    for sample in fields.messages("model_warmup"):
        for entry in sample.messages("inputs"):
            value, name = entry.message("value"), entry.text("key", "")
            if value is None or not name:
                raise ConfigFault(f"{entry.where}: an input of model_warmup has a key, its name, and a value")
            kind = value.word("data_type", "")
            if kind not in DATA_TYPES:
                raise ConfigFault(f"{value.place('data_type')}: data_type is {kind!r}; one is TYPE_FP32")
            file = value.text("input_data_file", "")
            if "/" in file or file in {".", ".."}:
                raise ConfigFault(f"{value.place('input_data_file')}: {file!r} is not the name of a file")
            if file or value.flag("zero_data"):
                dims = value.numbers("dims", 1, _MOST_SIZE)
                found.append(WarmupInput(name, DATA_TYPES[kind], dims, file))
    return tuple(found)


def samples_of(rows: Sequence[WarmupInput], folder: Path) -> dict[str, Any]:
    """Return rows by input, those of one shape behind each other; ``folder`` is the model's.

    Raises `ConfigFault` for a file that can't be used.
    """
    import numpy as np

    found: dict[str, list[Any]] = {}
    for row in rows:
        array = _array(row, folder / FOLDER / row.file)
        others = found.setdefault(row.name, [])
        if not others or others[0].shape == array.shape:
            others.append(array)
    # One row may be a whole request: without an axis in front it is taken for what has its rank.
    return {name: arrays[0] if len(arrays) == 1 else np.stack(arrays) for name, arrays in found.items()}


def _array(row: WarmupInput, path: Path) -> Any:
    import numpy as np

    from mainspring.messages.model import array_dtype

    text = row.data_type == "string"
    if not row.file:
        return np.zeros(row.dims, "S1" if text else array_dtype(row.data_type))
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ConfigFault(f"input_data_file {row.file!r} has more than {MOST_BYTES:,} bytes")
        data = path.read_bytes()
    except OSError as error:
        raise ConfigFault(f"input_data_file {path} can't be read: {error.strerror}") from None
    if row.sha256 and hashlib.sha256(data).hexdigest() != row.sha256:
        raise ConfigFault(f"input_data_file {row.file!r} was changed meanwhile")
    try:
        if text:
            return np.array(_texts(data), dtype=bytes).reshape(row.dims)
        return np.frombuffer(data, array_dtype(row.data_type)).reshape(row.dims)
    except ValueError:
        raise ConfigFault(
            f"input_data_file {row.file!r} does not hold {math.prod(row.dims)} elements of {row.data_type}, "
            "as its dims say (texts: each behind its length, 4 bytes)"
        ) from None


def _texts(data: bytes) -> list[bytes]:
    found, begin = [], 0
    while begin < len(data):
        length = int.from_bytes(data[begin : begin + 4], "little")
        if begin + 4 + length > len(data):
            raise ValueError
        found.append(data[begin + 4 : begin + 4 + length])
        begin += 4 + length
    return found
