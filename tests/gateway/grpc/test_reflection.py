"""Reflection, asked by gRPC's own client for it: what the server says of itself is enough to call it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory
from tritonclient.grpc import service_pb2

from mainspring.gateway.grpc import reflection
from mainspring.gateway.grpc.messages import message
from tests.gateway.grpc.conftest import Fake

Request = message("grpc.reflection.v1.ServerReflectionRequest")


def test_a_client_without_the_files_calls_by_what_the_server_says(fake: Fake) -> None:
    client = pytest.importorskip("grpc_reflection.v1alpha.proto_reflection_descriptor_database")
    database = client.ProtoReflectionDescriptorDatabase(fake.channel)
    assert set(database.get_services()) == {*reflection.SERVICES}
    pool = descriptor_pool.DescriptorPool(database)
    service = pool.FindServiceByName("inference.GRPCInferenceService")
    assert {method.name for method in service.methods} == {
        method.name for method in service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
    }
    method = service.FindMethodByName("ModelConfig")
    asked, answer = map(message_factory.GetMessageClass, (method.input_type, method.output_type))
    call = fake.channel.unary_unary(
        f"/{service.full_name}/{method.name}", asked.SerializeToString, answer.FromString
    )
    assert call(asked(name="double")).config.max_batch_size == 8
    with pytest.raises(KeyError):
        pool.FindServiceByName("inference.Nothing")


def ask(channel: grpc.Channel, requests: Iterable[Any], name: str = reflection.NAMES[0]) -> list[Any]:
    call: Callable[..., Iterable[Any]] = channel.stream_stream(
        f"/{name}/ServerReflectionInfo", Request.SerializeToString, reflection.Response.FromString
    )
    return list(call(iter(requests)))


@pytest.mark.parametrize("name", reflection.NAMES)
def test_each_request_of_a_stream_is_answered_in_its_turn(fake: Fake, name: str) -> None:
    listed, file, method, wrong, nothing = ask(
        fake.channel,
        [
            Request(host="here", list_services=""),
            Request(file_by_filename="model_config.proto"),
            Request(file_containing_symbol="inference.GRPCInferenceService.ModelInfer"),
            Request(file_containing_symbol="no.such.thing"),
            Request(),
        ],
        name,
    )
    assert [each.name for each in listed.list_services_response.service] == [*reflection.SERVICES]
    assert (listed.valid_host, listed.original_request.host) == ("here", "here")
    assert len(file.file_descriptor_response.file_descriptor_proto) == 1
    assert len(method.file_descriptor_response.file_descriptor_proto) == 2, "with the file that it imports"
    assert wrong.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
    assert "no 'no.such.thing'" in wrong.error_response.error_message
    assert nothing.error_response.error_code == grpc.StatusCode.INVALID_ARGUMENT.value[0]


def test_extensions_are_none(fake: Fake) -> None:
    some, no, what = ask(
        fake.channel,
        [
            Request(all_extension_numbers_of_type="inference.ModelConfig"),
            Request(file_containing_extension={"containing_type": "inference.ModelConfig"}),
            Request(all_extension_numbers_of_type="inference.Nothing"),
        ],
    )
    assert some.all_extension_numbers_response.base_type_name == "inference.ModelConfig"
    assert no.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
    assert what.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


def test_a_request_that_is_too_long_ends_the_stream(fake: Fake) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        ask(fake.channel, [Request(file_by_filename="x" * 100_000)])
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "65,536" in caught.value.details()
