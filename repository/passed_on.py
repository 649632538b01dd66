"""The fields of a ``config.pbtxt`` that clients may read, though nothing acts upon them. Pure.

Names and types are those of Triton's ``model_config.proto``; a value of another type is a `ConfigFault`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mainspring.messages.choices import one_of
from mainspring.repository.fields import DATA_TYPES, INSTANCE_KINDS
from mainspring.repository.reading import ConfigFault, Fields

_MOST = 2**31 - 1
_KINDS = frozenset(
    {
        "CONTROL_SEQUENCE_START",
        "CONTROL_SEQUENCE_READY",
        "CONTROL_SEQUENCE_END",
        "CONTROL_SEQUENCE_CORRID",
    }
)
_MESSAGE, _MESSAGES, _MAP = "message", "messages", "map"
_TEXT, _FLAG, _NUMBER, _NUMBERS = "text", "flag", "number", "numbers"

_DATA_TYPES = frozenset(DATA_TYPES)
_FORMATS = frozenset({"FORMAT_NONE", "FORMAT_NHWC", "FORMAT_NCHW"})
_PRIORITIES = frozenset({"PRIORITY_DEFAULT", "PRIORITY_MAX", "PRIORITY_MIN"})

_TYPES: Mapping[str, Mapping[str, str | frozenset[str]]] = {
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
        "format": _FORMATS,
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
        "kind": _KINDS,
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
    "reshape": {"shape": _NUMBERS},
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
        "priority": _PRIORITIES,
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
"""Type of each field, by its message; "" is the file itself. A set holds the names that an enum may have."""


def passed_on(fields: Fields, kind: str = "") -> dict[str, Any]:
    """Return what a message of this kind says of those fields, as JSON has it; raise `ConfigFault`."""
    return {name: _value(fields, name, wanted) for name, wanted in _TYPES[kind].items() if fields.has(name)}


def _value(fields: Fields, name: str, wanted: str | frozenset[str]) -> Any:
    if isinstance(wanted, frozenset):
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
