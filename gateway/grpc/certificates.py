"""The server's certificate for TLS, and the clients whose certificates were revoked.

gRPC's library asks for a certificate and checks its authority; it knows no list of what is revoked.
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from mainspring.gateway.grpc.status import Context
from mainspring.transport.certificate import BadCertificate, serial_of
from mainspring.transport.keys import ServerKeys

_KINDS = {
    (False, False): ("unary_unary", grpc.unary_unary_rpc_method_handler),
    (False, True): ("unary_stream", grpc.unary_stream_rpc_method_handler),
    (True, False): ("stream_unary", grpc.stream_unary_rpc_method_handler),
    (True, True): ("stream_stream", grpc.stream_stream_rpc_method_handler),
}
"""Kind of call and its handler, by whether requests and answers are streams."""
_REVOKED = "the client's certificate has been revoked"

_Call = Callable[[Any, Context], Awaitable[Any]]


def credentials(keys: ServerKeys) -> grpc.ServerCredentials:
    """Return what the server shows: always what the folder has."""

    def configuration() -> Any:
        keys.context()
        key, certificate, authority = keys.texts()
        return grpc.ssl_server_certificate_configuration([(key, certificate)], authority)

    return grpc.dynamic_ssl_server_credentials(
        configuration(), configuration, require_client_authentication=keys.clients
    )


class Unrevoked(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The calls of another handler, of clients whose certificates have not been revoked."""

    def __init__(self, handler: grpc.GenericRpcHandler, keys: ServerKeys) -> None:
        self._handler, self._keys = handler, keys

    def service(self, handler_call_details: Any) -> Any:
        """Return the handler of a call, which ends it before anything else is done."""
        found = self._handler.service(handler_call_details)
        if found is None:
            return None
        kind, made = _KINDS[found.request_streaming, found.response_streaming]
        call = functools.partial(self._call, getattr(found, kind))
        return made(call, found.request_deserializer, found.response_serializer)

    async def _call(self, call: _Call, asked: Any, context: Context) -> Any:
        serials = [_serial(pem) for pem in context.auth_context().get("x509_pem_cert", ())]
        if not self._keys.revoked.isdisjoint(serials):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, _REVOKED)
        return await call(asked, context)


@functools.lru_cache(maxsize=4_096)
def _serial(pem: bytes) -> int:
    try:
        return serial_of(ssl.PEM_cert_to_DER_cert(pem.decode("ascii", "replace").strip()))
    except (BadCertificate, ValueError):
        return -1
