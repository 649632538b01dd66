"""Our messages against those of Triton's client: the same names and numbers, the same bytes both ways."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.json_format import MessageToDict
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2, service_pb2

from mainspring.gateway.grpc import compile_protos, messages
from mainspring.gateway.grpc.descriptors import DESCRIPTORS

THEIRS = {**service_pb2.DESCRIPTOR.message_types_by_name, **model_config_pb2.DESCRIPTOR.message_types_by_name}
OURS = {
    name: descriptor
    for file in ("inference.proto", "model_config.proto")
    for name, descriptor in messages.POOL.FindFileByName(file).message_types_by_name.items()
}


def test_the_descriptors_are_those_of_the_proto_files() -> None:
    pytest.importorskip("grpc_tools")
    made = descriptor_pb2.FileDescriptorSet.FromString(compile_protos.described())
    assert descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS) == made, (
        "run python -m mainspring.gateway.grpc.compile_protos"
    )


def test_both_live_in_one_process() -> None:
    assert descriptor_pool.Default().FindMessageTypeByName("inference.ModelInferRequest") is not None
    assert messages.ModelInferRequest is not service_pb2.ModelInferRequest
    assert messages.ModelInferRequest.DESCRIPTOR.full_name == "inference.ModelInferRequest"


def same_fields(ours: Any, theirs: Any) -> None:
    for field in ours.fields:
        other = theirs.fields_by_name[field.name]
        assert (field.number, field.type, field.is_repeated) == (other.number, other.type, other.is_repeated)
        oneof = [each.containing_oneof and each.containing_oneof.name for each in (field, other)]
        assert oneof[0] == oneof[1]
        if field.message_type is not None:
            assert field.message_type.full_name == other.message_type.full_name
        if field.enum_type is not None:
            assert field.enum_type.full_name == other.enum_type.full_name
    for nested in ours.nested_types:
        same_fields(nested, theirs.nested_types_by_name[nested.name])
    for enum in ours.enum_types:
        same_values(enum, theirs.enum_types_by_name[enum.name])


def same_values(ours: Any, theirs: Any) -> None:
    assert [(value.name, value.number) for value in ours.values] == [
        (value.name, value.number) for value in theirs.values
    ]


@pytest.mark.parametrize("name", sorted(OURS))
def test_every_field_is_the_protocol_s(name: str) -> None:
    same_fields(OURS[name], THEIRS[name])


def test_no_field_of_the_protocol_is_missing() -> None:
    for name, theirs in service_pb2.DESCRIPTOR.message_types_by_name.items():
        assert {field.name for field in theirs.fields} == {field.name for field in OURS[name].fields}
    same_values(
        messages.POOL.FindEnumTypeByName("inference.DataType"),
        model_config_pb2.DESCRIPTOR.enum_types_by_name["DataType"],
    )


def test_every_call_of_the_protocol_is_there() -> None:
    theirs = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    ours = messages.POOL.FindServiceByName(messages.INFERENCE)
    described = [
        [
            (call.name, call.input_type.name, call.client_streaming, call.output_type.name)
            for call in sorted(service.methods, key=lambda each: str(each.name))
        ]
        for service in (ours, theirs)
    ]
    assert described[0] == described[1]


NUMBERS = {
    "bool": st.booleans(),
    "int32": st.integers(-(1 << 31), (1 << 31) - 1),
    "int64": st.integers(-(1 << 63), (1 << 63) - 1),
    "uint32": st.integers(0, (1 << 32) - 1),
    "uint64": st.integers(0, (1 << 64) - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=8),
    "bytes": st.binary(max_size=8),
}
KINDS = {1: "double", 2: "float", 3: "int64", 4: "uint64", 5: "int32", 8: "bool", 9: "string", 12: "bytes"}
KINDS[13] = "uint32"


def fill(data: st.DataObject, message: Any, depth: int = 0) -> None:
    """Set some of the message's fields to anything."""
    fields = message.DESCRIPTOR.fields
    chosen = data.draw(st.sets(st.sampled_from(range(len(fields))), max_size=6)) if fields else ()
    for index in sorted(chosen):
        field = fields[index]
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            fill_map(data, getattr(message, field.name), field.message_type, depth)
        elif field.message_type is not None:
            if depth < 3:
                child = getattr(message, field.name)
                child = child.add() if field.is_repeated else child
                child.SetInParent()
                fill(data, child, depth + 1)
        elif field.is_repeated:
            getattr(message, field.name).extend(data.draw(st.lists(values(field), max_size=3)))
        else:
            setattr(message, field.name, data.draw(values(field)))


def fill_map(data: st.DataObject, entries: Any, entry: Any, depth: int) -> None:
    for key in data.draw(st.sets(values(entry.fields_by_name["key"]), max_size=2)):
        value = entry.fields_by_name["value"]
        if value.message_type is None:
            entries[key] = data.draw(values(value))
        else:
            fill(data, entries[key], depth + 1)


def values(field: Any) -> st.SearchStrategy[Any]:
    if field.enum_type is not None:
        return st.sampled_from([value.number for value in field.enum_type.values])
    return NUMBERS[KINDS[field.type]]


@settings(max_examples=200, deadline=None)
@given(name=st.sampled_from(sorted(OURS)), data=st.data())
def test_the_same_bytes_mean_the_same_on_both_sides(name: str, data: st.DataObject) -> None:
    """Fill one of our messages, send it to Triton's client, and back."""
    ours = messages.message(f"inference.{name}")
    theirs = getattr(service_pb2, name, None) or getattr(model_config_pb2, name)
    message = ours()
    fill(data, message)
    received = theirs.FromString(message.SerializeToString())
    assert MessageToDict(received) == MessageToDict(message)
    returned = ours.FromString(received.SerializeToString())
    assert returned == message
