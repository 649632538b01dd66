"""Typed reading of a message's fields, with errors and warnings that name line and field. Pure.

The names are those of Triton's ``model_config.proto``. Each field is one of three things: read (`READ`), read
over with a warning that says why nothing is lost or what is (`OVER`), or a reason to refuse the model, which
would compute something else without it (`REFUSED`). docs/repository.md shows the same as a table.
"""

from __future__ import annotations

from collections.abc import Mapping

from mainspring.messages.choices import did_you_mean
from mainspring.repository.textproto import Entry, Message, Word

_ENGINE = "Mainspring compiles the model itself and decides on which worker it runs"
_PLANNED = "the scheduler decides by deadlines when which requests share a batch"
_NO_SLOT = "every sequence has its state in the gateway and needs no slot"
_IN_PLACE = "the gateway hands each request its state"
_CALLERS = "a deadline that a request brings, shorter or longer, counts in the place of the default"
_METRICS = "metrics are those of docs/metrics.md"
_FROM_BATCH = "nothing would make this tensor from the requests of a batch"
_NO_GPU = "a worker is one device, and each runs every model"

READ: Mapping[str, frozenset[str]] = {
    "": frozenset(
        {
            "name", "platform", "backend", "max_batch_size", "input", "output", "version_policy",
            "dynamic_batching", "parameters", "response_cache", "default_model_filename", "instance_group",
            "model_transaction_policy", "sequence_batching", "model_warmup", "model_operations",
            "ensemble_scheduling",
        }
    ),
    "input": frozenset({"name", "data_type", "dims", "reshape", "optional"}),
    "output": frozenset({"name", "data_type", "dims", "reshape", "label_filename"}),
    "reshape": frozenset({"shape"}),
    "version_policy": frozenset({"latest", "all", "specific"}),
    "latest": frozenset({"num_versions"}),
    "all": frozenset(),
    "specific": frozenset({"versions"}),
    "dynamic_batching": frozenset(
        {
            "preferred_batch_size", "default_queue_policy", "priority_levels", "default_priority_level",
            "priority_queue_policy",
        }
    ),
    "priority_queue_policy": frozenset({"key", "value"}),
    "priority_queue_policy value": frozenset({"default_timeout_microseconds", "timeout_action"}),
    "default_queue_policy": frozenset({"default_timeout_microseconds", "timeout_action", "max_queue_size"}),
    "sequence_batching": frozenset(
        {"max_sequence_idle_microseconds", "control_input", "state", "direct", "oldest"}
    ),
    "control_input": frozenset({"name", "control"}),
    "control": frozenset({"kind", "int32_false_true", "fp32_false_true", "bool_false_true", "data_type"}),
    "state": frozenset({"input_name", "output_name", "data_type", "dims", "initial_state"}),
    "initial_state": frozenset({"data_type", "dims", "zero_data", "data_file", "name"}),
    "direct": frozenset(),
    "oldest": frozenset({"max_candidate_sequences"}),
    "response_cache": frozenset({"enable"}),
    "instance_group": frozenset({"count", "kind", "name"}),
    "model_transaction_policy": frozenset(),
    "parameters": frozenset({"key", "value"}),
    "value": frozenset({"string_value", "data_type", "dims", "zero_data", "input_data_file"}),
    "model_warmup": frozenset({"name", "batch_size", "inputs", "count"}),
    "inputs": frozenset({"key", "value"}),
    "model_operations": frozenset({"op_library_filename"}),
    "ensemble_scheduling": frozenset({"step"}),
    "step": frozenset({"model_name", "model_version", "input_map", "output_map"}),
    "input_map": frozenset({"key", "value"}),
    "output_map": frozenset({"key", "value"}),
}  # fmt: skip
"""Fields that are read, by the message that they are in; "" is the file itself."""

OVER: Mapping[str, Mapping[str, str]] = {
    "": {
        "optimization": _ENGINE,
        "cc_model_filenames": _ENGINE,
        "runtime": _ENGINE,
        "metric_tags": _METRICS,
        "model_metrics": _METRICS,
    },
    "input": {
        "format": "the tensor is passed on as it comes",
        "allow_ragged_batch": "the rows of a request have one shape",
        "is_non_linear_format_io": "tensors are in row-major order",
    },
    "output": {
        "is_non_linear_format_io": "tensors are in row-major order",
    },
    "dynamic_batching": {
        "max_queue_delay_microseconds": _PLANNED,
        "preserve_ordering": "answers leave when they are ready; requests have ids to tell them apart",
    },
    "default_queue_policy": {"allow_timeout_override": _CALLERS},
    "priority_queue_policy value": {
        "allow_timeout_override": _CALLERS,
        "max_queue_size": "requests of all priorities wait in one queue; bound it in default_queue_policy",
    },
    "ensemble_scheduling": {"max_inflight_requests": _PLANNED},
    "step": {"model_namespace": "models of all repositories have names of their own"},
    "value": {"random_data": "the compiler makes samples up where none are given"},
    "state": {"use_same_buffer_for_input_output": _IN_PLACE, "use_growable_memory": _IN_PLACE},
    "direct": {"max_queue_delay_microseconds": _PLANNED, "minimum_slot_utilization": _NO_SLOT},
    "oldest": {
        "max_queue_delay_microseconds": _PLANNED,
        "preferred_batch_size": _PLANNED,
        "preserve_ordering": "requests of a sequence run in order, and those of others need none",
    },
    "instance_group": {
        "gpus": _NO_GPU,
        "secondary_devices": _NO_GPU,
        "profile": _NO_GPU,
        "passive": _NO_GPU,
        "host_policy": _NO_GPU,
        "rate_limiter": _PLANNED,
    },
}
"""Reason why a field is passed over, by the message that it is in."""

APART: Mapping[tuple[str, str], str] = {("priority_queue_policy", "value"): "priority_queue_policy value"}
"""Messages that share their field's name with others: what they are here, by field and name."""

REFUSED: Mapping[str, Mapping[str, str]] = {
    "": {
        "model_repository_agents": "nothing would check or change the model's files as agents do",
        "batch_input": _FROM_BATCH,
        "batch_output": _FROM_BATCH,
    },
    "sequence_batching": {
        "iterative_sequence": "each request has exactly one answer",
        "generative_sequence": "each request has exactly one answer",
    },
    "model_transaction_policy": {"decoupled": "each request has exactly one answer"},
    "input": {
        "is_shape_tensor": "a shape given as values makes the run's time depend on the data",
    },
    "output": {
        "is_shape_tensor": "a shape given as values makes the run's time depend on the data",
    },
}
"""Reason why the model can't be served with a field, by the message that it is in."""

NEEDS: Mapping[tuple[str, str], str] = {
    ("dynamic_batching", "priority_queue_policy"): "priority_levels",
    ("dynamic_batching", "default_priority_level"): "priority_levels",
}
"""Fields that mean nothing without another one of their message, by message and name."""

DATA_TYPES: Mapping[str, str] = {
    "TYPE_BOOL": "bool",
    "TYPE_UINT8": "uint8",
    "TYPE_UINT16": "uint16",
    "TYPE_UINT32": "uint32",
    "TYPE_UINT64": "uint64",
    "TYPE_INT8": "int8",
    "TYPE_INT16": "int16",
    "TYPE_INT32": "int32",
    "TYPE_INT64": "int64",
    "TYPE_FP16": "float16",
    "TYPE_FP32": "float32",
    "TYPE_FP64": "float64",
    "TYPE_STRING": "string",
    "TYPE_BF16": "bfloat16",
}
"""Triton's names of element types, in the order of their numbers from 1 on, and numpy's."""

PLATFORMS = frozenset({"", "ensemble", "onnxruntime_onnx"})
BACKENDS = frozenset({"", "onnxruntime", "python"})
INSTANCE_KINDS = ("KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL")
CONTROL_KINDS = (
    "CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_READY", "CONTROL_SEQUENCE_END", "CONTROL_SEQUENCE_CORRID"
)  # fmt: skip
FORMATS = ("FORMAT_NONE", "FORMAT_NHWC", "FORMAT_NCHW")
PRIORITIES = ("PRIORITY_DEFAULT", "PRIORITY_MAX", "PRIORITY_MIN")
TIMEOUT_ACTIONS = ("REJECT", "DELAY")
ENUMS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("", "data_type"): ("TYPE_INVALID", *DATA_TYPES),
    ("", "format"): FORMATS,
    ("", "priority"): PRIORITIES,
    ("", "timeout_action"): TIMEOUT_ACTIONS,
    ("instance_group", "kind"): INSTANCE_KINDS,
    ("control", "kind"): CONTROL_KINDS,
}
"""Names of an enum's values in the order of their numbers, by message (of any: "") and field."""

MOST_WARNINGS = 50
"""Most warnings of one file: after these comes one that says so."""
STATED = frozenset({"gpus", "allow_timeout_override"})
"""Fields of which 0 or false is not what happens without a warning."""


class ConfigFault(ValueError):
    """The configuration can't be served as it is; the text names line and field, and what would be right."""


class Fields:
    """One message of the file. Warnings of all messages go to one list."""

    def __init__(self, message: Message, kind: str, warnings: list[str], line: int = 1) -> None:
        """``kind`` is the name of the field that the message is the value of; "" is the file itself."""
        self.kind = kind
        self.warnings = warnings
        self.where = f"line {line}"
        self._message = message
        self._line = line

    def check(self) -> None:
        """Warn of each field that is not honoured, here and further in; raise `ConfigFault` for some."""
        for name, entries in self._message.items():
            refusal = REFUSED.get(self.kind, {}).get(name)
            if refusal is not None and not _is_false(entries):
                raise ConfigFault(f"{self.place(name)}: {name} can't be honoured: {refusal}")
            if self._means_nothing(name):
                continue
            if name in READ[self.kind]:
                kind = APART.get((self.kind, name), name)
                for entry in entries:
                    if isinstance(entry.value, Message) and kind in READ:
                        Fields(entry.value, kind, self.warnings, entry.line).check()
            elif refusal is None:
                self._warn_of(name, entries)

    def _means_nothing(self, name: str) -> bool:
        """Warn of a field that means nothing without another one; return whether this is one."""
        other = NEEDS.get((self.kind, name), "")
        if not other or not _is_false(self._message.get(other, [])):
            return False
        self.warn(name, f"there are no {other}; say how many there are")
        return True

    def _warn_of(self, name: str, entries: list[Entry]) -> None:
        over = OVER.get(self.kind, {})
        if name in over:
            if name in STATED or not _is_false(entries):
                self.warn(name, over[name])
            return
        known = [*READ[self.kind], *over, *REFUSED.get(self.kind, {})]
        self.warn(name, f"Mainspring does not know it{did_you_mean(name, known)}")

    def warn(self, name: str, why: str) -> None:
        """Say once that a field is not honoured, and why that is so, in however many messages it stands."""
        whose = f" of {self.kind}" if self.kind else ""
        said = f": {name[:80]}{whose} is ignored: {why}"
        if len(self.warnings) > MOST_WARNINGS or any(each.endswith(said) for each in self.warnings):
            return
        if len(self.warnings) == MOST_WARNINGS:
            said = ": there is more that is ignored, from this line on"
        self.warnings.append(f"{self.place(name)}{said}")

    def place(self, name: str) -> str:
        """Return where the field stands, or its message if it does not."""
        entries = self._message.get(name)
        return f"line {entries[0].line}" if entries else self.where

    def has(self, name: str) -> bool:
        """Return whether the field is there."""
        return name in self._message

    def messages(self, name: str) -> list[Fields]:
        """Return every value of a field whose values are messages."""
        found = []
        for entry in self._message.get(name, []):
            if not isinstance(entry.value, Message):
                raise self._wrong(name, entry, "a message in braces")
            kind = APART.get((self.kind, name), name)
            found.append(Fields(entry.value, kind, self.warnings, entry.line))
        return found

    def message(self, name: str) -> Fields | None:
        """Return the one message of this name, if it is there; raise `ConfigFault` if it is there twice."""
        found = self.messages(name)
        if len(found) > 1:
            raise ConfigFault(f"{found[1].where}: {name} stands here again; it may stand once")
        return found[0] if found else None

    def text(self, name: str, default: str) -> str:
        """Return a text."""
        entry = self._one(name)
        if entry is None:
            return default
        if not isinstance(entry.value, str) or isinstance(entry.value, Word):
            raise self._wrong(name, entry, "a text in quotes")
        return entry.value

    def texts(self, name: str) -> tuple[str, ...]:
        """Return every value of a field whose values are texts."""
        found = []
        for entry in self._message.get(name, []):
            if not isinstance(entry.value, str) or isinstance(entry.value, Word) or not entry.value:
                raise self._wrong(name, entry, "a text in quotes")
            found.append(str(entry.value))
        return tuple(found)

    def word(self, name: str, default: str) -> str:
        """Return the name of an enum's value, which may be given by its number."""
        entry = self._one(name)
        if entry is None:
            return default
        names = ENUMS.get((self.kind, name)) or ENUMS.get(("", name), ())
        if isinstance(entry.value, int) and 0 <= entry.value < len(names):
            return names[entry.value]
        if not isinstance(entry.value, Word):
            raise self._wrong(name, entry, "a name without quotes")
        return str(entry.value)

    def flag(self, name: str) -> bool:
        """Return a truth value, false if it is not there."""
        entry = self._one(name)
        if entry is None:
            return False
        if entry.value not in ("true", "false", "t", "f", "True", "False", 0, 1):
            raise self._wrong(name, entry, "true or false")
        return not _is_false([entry])

    def number(self, name: str, default: int | None, least: int, most: int) -> int | None:
        """Return a whole number within bounds."""
        entry = self._one(name)
        return default if entry is None else self._number(name, entry, least, most)

    def count(self, name: str, default: int, least: int, most: int) -> int:
        """Return a whole number within bounds that has a default."""
        found = self.number(name, default, least, most)
        assert found is not None
        return found

    def numbers(self, name: str, least: int, most: int) -> tuple[int, ...]:
        """Return every value of a field whose values are whole numbers within bounds."""
        return tuple(self._number(name, entry, least, most) for entry in self._message.get(name, []))

    def flags(self, name: str) -> tuple[bool, ...]:
        """Return every value of a field whose values are truth values."""
        return tuple(not _is_false([entry]) for entry in self._message.get(name, []))

    def reals(self, name: str) -> tuple[float, ...]:
        """Return every value of a field whose values are numbers."""
        found = []
        for entry in self._message.get(name, []):
            if isinstance(entry.value, bool) or not isinstance(entry.value, int | float):
                raise self._wrong(name, entry, "a number")
            found.append(float(entry.value))
        return tuple(found)

    def _number(self, name: str, entry: Entry, least: int, most: int) -> int:
        if not isinstance(entry.value, int):
            raise self._wrong(name, entry, "a whole number")
        if not least <= entry.value <= most:
            raise ConfigFault(
                f"line {entry.line}: {name} is {entry.value}; it must be from {least} to {most}"
            )
        return entry.value

    def _one(self, name: str) -> Entry | None:
        entries = self._message.get(name, [])
        if len(entries) > 1:
            raise ConfigFault(f"line {entries[1].line}: {name} stands here again; it may stand once")
        return entries[0] if entries else None

    def _wrong(self, name: str, entry: Entry, expected: str) -> ConfigFault:
        given = "a message" if isinstance(entry.value, Message) else repr(entry.value)[:60]
        return ConfigFault(f"line {entry.line}: {name} must be {expected}, not {given}")


def _is_false(entries: list[Entry]) -> bool:
    """Say whether a field means the same as its absence."""
    return all(entry.value in ("false", "f", "False", 0, "") for entry in entries)
