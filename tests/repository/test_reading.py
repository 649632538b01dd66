"""Tables of fields: each is read, warned of once or refused, and values of enums have their numbers."""

from __future__ import annotations

import pytest

from mainspring.repository.model_config import read_config
from mainspring.repository.reading import APART, ENUMS, OVER, READ, REFUSED, ConfigFault


def test_no_field_is_in_two_tables() -> None:
    for kind in {*READ, *OVER, *REFUSED}:
        tables = [set(READ.get(kind, ())), set(OVER.get(kind, {})), set(REFUSED.get(kind, {}))]
        assert sum(map(len, tables)) == len(set.union(*tables)), kind
        assert kind in READ, f"{kind} is never looked into"


def test_each_field_of_tritons_model_config_is_in_a_table() -> None:
    model_config = pytest.importorskip("tritonclient.grpc.model_config_pb2")
    left, missing = [("", model_config.ModelConfig.DESCRIPTOR)], []
    while left:
        kind, message = left.pop()
        for field in message.fields:
            known = (READ[kind], OVER.get(kind, {}), REFUSED.get(kind, {}))
            if not any(field.name in table for table in known):
                missing.append((kind, field.name))
            if field.enum_type is not None:
                names = ENUMS.get((kind, field.name)) or ENUMS["", field.name]
                assert list(names) == [each.name for each in field.enum_type.values], (kind, field.name)
            inner = APART.get((kind, field.name), field.name)
            if field.message_type is not None and inner in READ and field.name in READ[kind]:
                left.append((inner, field.message_type))
    assert not missing


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("default_queue_policy { allow_timeout_override: false }", ["allow_timeout_override"]),
        ("default_queue_policy { allow_timeout_override: true }", ["allow_timeout_override"]),
        ("default_queue_policy { timeout_action: DELAY }", ["timeout_action"]),
        ("default_queue_policy { timeout_action: 0 max_queue_size: 3 }", []),
        ("priority_queue_policy { key: 1 value { max_queue_size: 3 } }", ["priority_queue_policy"]),
        ("priority_levels: 0 default_priority_level: 2", ["default_priority_level"]),
        (
            "priority_levels: 2 default_priority_level: 1 priority_queue_policy [ "
            "{ key: 1 value { max_queue_size: 3 timeout_action: 1 } }, "
            "{ key: 2 value { max_queue_size: 4 timeout_action: DELAY } } ]",
            ["max_queue_size", "timeout_action"],
        ),
    ],
)
def test_each_field_that_is_not_acted_upon_is_warned_of_once(text: str, fields: list[str]) -> None:
    warnings = read_config(f"dynamic_batching {{ {text} }}", "net").warnings
    assert [each.split()[2] for each in warnings] == fields


def test_values_of_enums_may_be_numbers() -> None:
    by_name = """input { name: "x" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3 ] }
        instance_group { kind: KIND_CPU } sequence_batching { control_input { name: "c" control {
        kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } } }"""
    by_number = by_name
    for name, number in (("TYPE_FP32", 11), ("FORMAT_NCHW", 2), ("KIND_CPU", 2), ("CONTROL_SEQUENCE_END", 2)):
        by_number = by_number.replace(name, str(number))
    assert read_config(by_number, "net") == read_config(by_name, "net")
    with pytest.raises(ConfigFault, match="data_type must be a name without quotes, not 99"):
        read_config('input { name: "x" data_type: 99 }', "net")
