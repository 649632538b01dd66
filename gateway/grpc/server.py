"""The gateway's gRPC server: grpc.aio in the gateway's own loop, with every queue and size bounded."""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import grpc
from grpc import aio

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.core.validation import BadRequest
from mainspring.gateway.descriptors import share
from mainspring.gateway.grpc import reflection
from mainspring.gateway.grpc.access import Caller, Lock
from mainspring.gateway.grpc.applications import Applications
from mainspring.gateway.grpc.control import Behaviour, Control
from mainspring.gateway.grpc.going import keep_telling
from mainspring.gateway.grpc.health import Health
from mainspring.gateway.grpc.inference import Inference
from mainspring.gateway.grpc.messages import (
    APPLICATIONS,
    HEALTH,
    INFERENCE,
    REFLECTION,
    Message,
    Method,
    decode,
    methods,
)
from mainspring.gateway.grpc.room import Room, defer
from mainspring.gateway.grpc.shared_memory import SharedMemory
from mainspring.gateway.grpc.status import Context, answered
from mainspring.gateway.services import Services
from mainspring.messages.codes import Reason
from mainspring.transport.certificate import BadCertificate, serial_of
from mainspring.transport.keys import ServerKeys

SCHEMES = ("grpc://", "grpcs://")
_LEAST_PING_MS = 5_000
"""Clients may ping this often; one that does so more often is cut off."""
_MOST_ASKED_BYTES = 64 << 10
"""Most bytes of a message that is not an inference request: it holds a few names and settings."""


class GrpcServer:
    """The server that `serve_grpc` returns."""

    def __init__(self, server: aio.Server, health: Health, address: str, room: Room) -> None:
        self._server = server
        self._health = health
        self.address = address
        """Address with the real port."""
        self._port = int(address.rpartition(":")[2])
        self._tasks = [asyncio.get_running_loop().create_task(room.keep(self._port))]

    def leave(self) -> None:
        """Tell clients to go, those that are connected and those that come yet; they are served as before."""
        if self.address.startswith(SCHEMES[False]):
            self._tasks.append(asyncio.get_running_loop().create_task(keep_telling(self._port)))

    async def close(self, grace_s: float) -> None:
        """Take no new calls, give those in flight ``grace_s`` to end, and close all connections."""
        self._health.close()
        for task in self._tasks:
            task.cancel()
        await self._server.stop(grace_s)


async def serve_grpc(services: Services, config: GatewayConfig) -> GrpcServer:
    """Serve gRPC at the configuration's ``grpc_address``; raise OSError if that can't be had.

    Over TLS it also raises that if the certificate can't be shown.
    """
    target = _target(config.grpc_address)
    server = aio.server(options=_options(config), maximum_concurrent_rpcs=config.grpc_max_calls)
    shared = SharedMemory(services)
    control = Control(services, shared)
    health = Health(services.driver)
    room = Room(share(config, config.grpc_max_connections))
    door = _Door(Lock(config), room)
    keys = None
    if config.grpc_address.startswith(SCHEMES[True]):
        keys = ServerKeys(config.tls, clients=config.client_certificates)
    handlers = (
        _inference(Inference(services, config, shared, room), control, door),
        _applications(Applications(services), door),
        _health(health, door),
        *_reflection(room),
    )
    server.add_generic_rpc_handlers(
        handlers if keys is None else tuple(Unrevoked(each, keys) for each in handlers)
    )
    try:
        if keys is None:
            port = server.add_insecure_port(target)
        else:
            port = server.add_secure_port(target, credentials(keys))
    except RuntimeError:
        port = 0
    if port == 0:
        raise OSError(
            f"the gateway can't serve gRPC at {config.grpc_address}: is another server running there? Choose "
            "another address, or port 0 for a free one"
        )
    defer(port, config.grpc_handshake_timeout_ms)
    shared.listens(target.rpartition(":")[0], port)
    await server.start()
    address = f"{SCHEMES[keys is not None]}{target.rpartition(':')[0]}:{port}"
    return GrpcServer(server, health, address, room)


class _Door(NamedTuple):
    """The entry of calls that carry no tensors."""

    lock: Lock
    room: Room

    def enter(self, name: str, context: Context) -> Caller:
        """Return who calls this; raise as `Lock.check`."""
        caller = Caller(context)
        self.room.asks(caller.peer)
        self.lock.check(name, caller)
        return caller


def _target(address: str) -> str:
    """Return host and port of an address; raise OSError if it is none."""
    target = address.removeprefix(SCHEMES[False]).removeprefix(SCHEMES[True])
    host, colon, port = target.rpartition(":")
    if target == address or not host or not colon or not port.isdecimal() or int(port) > 65_535:
        raise OSError(
            f"{address!r} is not an address to serve gRPC at; it is grpc://HOST:PORT, such as "
            "grpc://127.0.0.1:8001, or grpcs://HOST:PORT, with port 0 for any free one"
        )
    return target


def _options(config: GatewayConfig) -> list[tuple[str, int]]:
    """Return gRPC's options: what a client may send, and when a connection is given up."""
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", config.grpc_max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", config.grpc_max_metadata_bytes),
        ("grpc.absolute_max_metadata_size", config.grpc_max_metadata_bytes),
        ("grpc.max_allowed_incoming_connections", share(config, config.grpc_max_connections)),
        ("grpc.max_concurrent_streams", config.grpc_max_streams),
        ("grpc.server_handshake_timeout_ms", round(config.grpc_handshake_timeout_ms)),
        ("grpc.keepalive_time_ms", round(config.grpc_keepalive_ms)),
        ("grpc.keepalive_timeout_ms", round(config.grpc_keepalive_timeout_ms)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", _LEAST_PING_MS),
        ("grpc.max_connection_idle_ms", round(config.grpc_idle_timeout_ms)),
        *_age(config),
    ]


def _age(config: GatewayConfig) -> list[tuple[str, int]]:
    if not config.max_connection_age_ms:
        return []
    return [
        ("grpc.max_connection_age_ms", max(1, round(config.max_connection_age_ms))),
        ("grpc.max_connection_age_grace_ms", round(config.max_connection_age_grace_ms)),
    ]


def _inference(inference: Inference, control: Control, door: _Door) -> Any:
    """Return the handler of the service; tensors are taken off the bytes of a message, and put there."""
    handlers = {
        "ModelInfer": grpc.stream_unary_rpc_method_handler(inference.infer),
        "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(inference.stream),
    }
    known = methods(INFERENCE)
    for name, behaviour in control.behaviours.items():
        handlers[name] = _unary(known[name], behaviour, door)
    return grpc.method_handlers_generic_handler(INFERENCE, handlers)


def _applications(applications: Applications, door: _Door) -> Any:
    known = methods(APPLICATIONS)
    handlers = {name: _unary(known[name], each, door) for name, each in applications.behaviours.items()}
    return grpc.method_handlers_generic_handler(APPLICATIONS, handlers)


def _health(health: Health, door: _Door) -> Any:
    check, watch = methods(HEALTH)["Check"], methods(HEALTH)["Watch"]
    handlers = {"Check": _unary(check, health.check, door), "Watch": _watching(watch, health.watch, door)}
    return grpc.method_handlers_generic_handler(HEALTH, handlers)


def _reflection(room: Room) -> list[Any]:
    """Return the handlers of the service, one for each name that clients call it by."""
    method = methods(REFLECTION)["ServerReflectionInfo"]

    async def call(incoming: AsyncIterator[bytes], context: Context) -> None:
        room.asks(context.peer())

        async def answer() -> None:
            async for data in incoming:
                await context.write(reflection.answer(_asked(method, data)).SerializeToString())

        await answered(context, answer())

    handlers = {method.name: grpc.stream_stream_rpc_method_handler(call)}
    return [grpc.method_handlers_generic_handler(name, handlers) for name in reflection.NAMES]


def _unary(method: Method, behaviour: Behaviour, door: _Door) -> Any:
    async def call(data: bytes, context: Context) -> bytes:
        async def answer() -> bytes:
            caller = door.enter(method.name, context)
            return bytes((await behaviour(_asked(method, data), caller)).SerializeToString())

        return await answered(context, answer(), triton=door.lock.triton)

    return grpc.unary_unary_rpc_method_handler(call)


def _asked(method: Method, data: bytes) -> Message:
    """Return what a call asks; raise `BadRequest`."""
    if len(data) > _MOST_ASKED_BYTES:
        raise BadRequest(
            Reason.BAD_MESSAGE,
            f"a message of {len(data):,} bytes is too long for {method.name}, which takes at most "
            f"{_MOST_ASKED_BYTES:,}",
        )
    return decode(method.request, data)


def _watching(
    method: Method, behaviour: Callable[[Message, Caller], AsyncIterator[Message]], door: _Door
) -> Any:
    async def call(data: bytes, context: Context) -> None:
        async def answer() -> None:
            caller = door.enter(method.name, context)
            async for message in behaviour(_asked(method, data), caller):
                await context.write(message.SerializeToString())

        await answered(context, answer())

    return grpc.unary_stream_rpc_method_handler(call)


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
