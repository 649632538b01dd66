"""The messages of ``proto/`` as Python classes, and the services' methods.

They live in a descriptor pool of their own: protobuf's usual one takes each name only once in a process, and
a client of the same protocol, such as Triton's, may be in it already.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from mainspring.gateway.grpc.descriptors import DESCRIPTORS
from mainspring.gateway.oip.datatypes import Unfit
from mainspring.messages.codes import Reason

Message = Any
"""An instance of a class of protobuf's, whose attributes no type checker knows."""

INFERENCE = "inference.GRPCInferenceService"
APPLICATIONS = "mainspring.Applications"
HEALTH = "grpc.health.v1.Health"
REFLECTION = "grpc.reflection.v1.ServerReflection"


class Method(NamedTuple):
    """A method of a service."""

    name: str
    request: Any
    """The class of its requests."""
    response: Any


def _pool() -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


POOL = _pool()


def message(name: str) -> Any:
    """Return the class of a message by its full name; raise KeyError if there is none."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(name))


def methods(service: str) -> dict[str, Method]:
    """Return a service's methods by name; raise KeyError for an unknown service."""
    return {
        each.name: Method(each.name, message(each.input_type.full_name), message(each.output_type.full_name))
        for each in POOL.FindServiceByName(service).methods
    }


def decode(kind: Any, data: bytes) -> Message:
    """Return the message that bytes are, of this class; raise `Unfit` if they are none."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise Unfit(
            Reason.BAD_MESSAGE, f"these {len(data):,} bytes are not a {kind.DESCRIPTOR.name}: {error}"
        ) from None


ModelInferRequest = message("inference.ModelInferRequest")
ModelInferResponse = message("inference.ModelInferResponse")
ModelStreamInferResponse = message("inference.ModelStreamInferResponse")
HealthCheckResponse = message("grpc.health.v1.HealthCheckResponse")
