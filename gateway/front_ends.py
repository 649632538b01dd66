"""Which protocols a gateway serves beside ZeroMQ, and where: whatever its configuration gives an address."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.services import Services


class Addresses(NamedTuple):
    """Where a gateway's clients connect, with real ports; empty for what is not served."""

    zeromq: str
    http: str = ""
    grpc: str = ""
    metrics: str = ""
    trace: str = ""
    """Where traces go."""
    access_log: str = ""
    """The file with a line for each request."""


class Served(Protocol):
    """A protocol that is being served."""

    address: str
    """With the real port."""

    def leave(self) -> None:
        """Tell clients to go, and serve them as before."""

    async def close(self, grace_s: float) -> None:
        """Take nothing new; let what is in flight be answered within ``grace_s``; then close all."""


Starter = Callable[[Services, GatewayConfig], Awaitable[Served]]


async def start(services: Services, config: GatewayConfig) -> dict[str, Served]:
    """Serve every protocol that has an address, by name; raise OSError, with none served, if one can't be."""
    served: dict[str, Served] = {}
    try:
        for name, starter in STARTERS.items():
            if getattr(config, _KEYS.get(name, f"{name}_address")):
                served[name] = await starter(services, config)
    except BaseException:
        for each in served.values():
            with contextlib.suppress(OSError):
                await each.close(0)
        raise
    return served


async def _serve_http(services: Services, config: GatewayConfig) -> Served:
    from mainspring.gateway.http.server import serve_http

    return await serve_http(services, config)


async def _serve_grpc(services: Services, config: GatewayConfig) -> Served:
    from mainspring.gateway.grpc.server import serve_grpc

    return await serve_grpc(services, config)


async def _serve_metrics(services: Services, config: GatewayConfig) -> Served:
    from mainspring.gateway.metrics.server import serve_metrics

    return await serve_metrics(services, config)


async def _start_tracing(services: Services, config: GatewayConfig) -> Served:
    from mainspring.gateway.otlp import start_tracing

    return start_tracing(services, config)


async def _start_access_log(services: Services, config: GatewayConfig) -> Served:
    from mainspring.gateway.access_log import start_access_log

    return start_access_log(services, config)


_KEYS = {"access_log": "access_log"}
STARTERS: dict[str, Starter] = {
    "http": _serve_http,
    "grpc": _serve_grpc,
    "metrics": _serve_metrics,
    "trace": _start_tracing,
    "access_log": _start_access_log,
}
"""By the name of the protocol; ``NAME_address`` of `GatewayConfig` says where, or the key in `_KEYS`. Each
imports what it needs when it is called, so that a gateway for ZeroMQ alone starts at once."""
