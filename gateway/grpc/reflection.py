"""``grpc.reflection``: clients such as grpcurl ask the server itself for its services and messages. Pure.

The versions v1 and v1alpha are the same bytes under two names. What is told stands in the ``.proto`` files
that are installed with the package, so it needs no token, as ``/openapi.json`` does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mainspring.gateway.grpc.messages import (
    APPLICATIONS,
    HEALTH,
    INFERENCE,
    POOL,
    REFLECTION,
    Message,
    message,
)

SERVICES = (HEALTH, REFLECTION, INFERENCE, APPLICATIONS)
"""Services that are listed."""
NAMES = (REFLECTION, "grpc.reflection.v1alpha.ServerReflection")
"""Names of the service."""
_INVALID_ARGUMENT = 3
_NOT_FOUND = 5
Response = message("grpc.reflection.v1.ServerReflectionResponse")


def answer(request: Message) -> Message:
    """Return the answer to one request of a client's stream."""
    asked = request.WhichOneof("message_request")
    response = Response(valid_host=request.host, original_request=request)
    try:
        match asked:
            case "list_services":
                services = response.list_services_response.service
                for name in SERVICES:
                    services.add(name=name)
            case "file_by_filename":
                _tell(response, POOL.FindFileByName(request.file_by_filename))
            case "file_containing_symbol":
                _tell(response, _file_of(request.file_containing_symbol))
            case "all_extension_numbers_of_type":
                # Proto3 has none; the answer says so of a message that there is.
                name = request.all_extension_numbers_of_type
                POOL.FindMessageTypeByName(name)
                response.all_extension_numbers_response.base_type_name = name
            case "file_containing_extension":
                _refuse(response, _NOT_FOUND, "no message here has extensions")
            case _:
                _refuse(response, _INVALID_ARGUMENT, "the request asks for nothing; set one of its fields")
    except KeyError:
        wanted = getattr(request, str(asked))
        _refuse(response, _NOT_FOUND, f"there is no {wanted[:200]!r}; the services are {', '.join(SERVICES)}")
    return response


def _file_of(symbol: str) -> Any:
    """Return the file that defines a symbol; raise KeyError."""
    try:
        return POOL.FindFileContainingSymbol(symbol)
    except KeyError:
        # Protobuf's usual implementation knows methods by another name only.
        return POOL.FindMethodByName(symbol).containing_service.file


def _tell(response: Message, file: Any) -> None:
    found: dict[str, bytes] = {}
    _collect([file], found)
    response.file_descriptor_response.file_descriptor_proto.extend(found.values())


def _collect(files: Iterable[Any], found: dict[str, bytes]) -> None:
    """Add these files, and after them those that they import."""
    for file in files:
        if file.name not in found:
            found[file.name] = file.serialized_pb
            _collect(file.dependencies, found)


def _refuse(response: Message, code: int, detail: str) -> None:
    response.error_response.error_code = code
    response.error_response.error_message = detail
