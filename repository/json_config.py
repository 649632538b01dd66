"""A model's configuration as JSON, as clients send it to load a model, read as ``config.pbtxt`` is. Pure.

The names are those of Triton's ``ModelConfig``, as its protocol buffer has them or in protobuf's own JSON
(``maxBatchSize``); so a configuration that a server has given can be changed and sent back.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from mainspring.repository.model_config import ModelConfig, read_fields
from mainspring.repository.reading import ConfigFault
from mainspring.repository.textproto import MAX_DEPTH, MAX_VALUES, Entry, Message, Word

_ENUMS = frozenset({"data_type", "kind", "format", "priority", "timeout_action"})
_MAPS = frozenset({"parameters", "metric_tags", "cc_model_filenames", "priority_queue_policy"})
_BY_NUMBER = frozenset({"priority_queue_policy"})
"""Maps whose keys are numbers."""
_NUMBERS = frozenset(
    {
        *("dims", "shape", "versions", "priority_levels", "default_priority_level", "num_versions"),
        *("max_queue_delay_microseconds", "default_timeout_microseconds", "max_queue_size"),
        *("max_sequence_idle_microseconds", "max_candidate_sequences", "minimum_slot_utilization"),
        *("max_batch_size", "preferred_batch_size", "count", "gpus", "level"),
        *("int32_false_true", "fp32_false_true", "gather_kernel_buffer_threshold"),
    }
)
"""Fields of numbers, which may be in quotes: protobuf's JSON writes those of 64 bits so, and reads all so."""
_OURS = frozenset({"mainspring"})
"""Values of ``platform`` and ``backend`` that this server gives its models; to the compiler they are ONNX."""
_DIGITS = re.compile(r"-?[0-9]{1,19}")
_HUMP = re.compile(r"(?<=[a-z0-9])([A-Z])")


def read_json(text: str, model: str) -> ModelConfig:
    """Return the configuration of the model in the folder ``model``; raise `ConfigFault`."""
    try:
        given = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ConfigFault(f"it is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise ConfigFault('it is not an object of JSON, such as {"max_batch_size": 8}')
    for name in ("platform", "backend"):
        if given.get(name) in _OURS:
            del given[name]
    return read_fields(_Reader().message(given, 0), model)


class _Reader:
    def __init__(self) -> None:
        self._values = 0

    def message(self, given: dict[str, Any], depth: int) -> Message:
        """Return an object's fields; raise `ConfigFault` for what no configuration has."""
        found = Message()
        for key, value in given.items():
            name = _HUMP.sub(r"_\1", key).lower()
            values = value if isinstance(value, list) else [value]
            if name in _MAPS and isinstance(value, dict):
                values = [{"key": _key(name, each), "value": held} for each, held in value.items()]
            # Empty text is what protobuf says of a field that nobody set.
            entries = [self._entry(name, each, depth) for each in values if each not in (None, "")]
            if entries:
                found[name] = entries
        return found

    def _entry(self, name: str, value: Any, depth: int) -> Entry:
        self._values += 1
        if self._values > MAX_VALUES or depth >= MAX_DEPTH:
            raise ConfigFault(f"more than {MAX_VALUES:,} values, or {MAX_DEPTH} levels, make no sense")
        match value:
            case dict():
                return Entry(self.message(value, depth + 1), 1)
            case bool():
                return Entry(Word("true" if value else "false"), 1)
            case str() if name in _ENUMS:
                return Entry(Word(value), 1)
            case str() if name in _NUMBERS and _DIGITS.fullmatch(value):
                return Entry(int(value), 1)
            case float() if name in _NUMBERS and value.is_integer():
                return Entry(int(value), 1)
            case str() | int() | float():
                return Entry(value, 1)
        raise ConfigFault(f"{name[:80]} has lists within lists")


def _key(name: str, key: str) -> str | int:
    """Return a key of a map as text format has it: JSON has texts alone."""
    return int(key) if name in _BY_NUMBER and _DIGITS.fullmatch(key) else key
