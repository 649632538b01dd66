"""Pages of other sites that may call the gateway: CORS, as WHATWG's Fetch has it.

Off unless origins are named. What changes something is never among what such a page may call.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Final

from mainspring.gateway.config import ANY
from mainspring.gateway.http.exchange import Exchange, Handler

EXPOSED: Final = b"inference-header-content-length, server-timing, www-authenticate"
"""Headers of replies that a page may read beside those that it always may."""
_KEPT_S: Final = 600
"""Seconds that a browser may remember what a preflight said."""
_NAMES = re.compile(rb"[a-zA-Z0-9_, -]{1,1024}")
_KEEP_OFF = (
    "a page of another site may not call this: it changes something, or its origin is not among "
    "http_cors_origins of [gateway]"
)


class Cors:
    """The pages of other sites that may call."""

    def __init__(self, origins: Iterable[str]) -> None:
        named = {each.lower().encode() for each in origins}
        self._any = ANY.encode() in named
        self._origins = named

    def headers(self, headers: Mapping[bytes, bytes]) -> bytes:
        """Return what the reply to a request with these headers says; empty where a page may not read it."""
        origin = headers.get(b"origin")
        if origin is None:
            return b""
        if self._any:
            return _allowed(ANY.encode(), b"")
        return _allowed(origin, b"vary: origin\r\n") if origin.lower() in self._origins else b""


@functools.lru_cache(64)
def _allowed(origin: bytes, vary: bytes) -> bytes:
    return (
        b"access-control-allow-origin: %s\r\naccess-control-expose-headers: %s\r\n"
        b"timing-allow-origin: %s\r\n%s" % (origin, EXPOSED, origin, vary)
    )


def is_preflight(exchange: Exchange) -> bool:
    """Say whether a browser asks what a page may do."""
    return exchange.method == b"OPTIONS" and b"access-control-request-method" in exchange.headers


def preflight(methods: Iterable[bytes]) -> Handler:
    """Return the handler that answers a preflight for a path that takes these methods."""
    return functools.partial(_preflight, b", ".join(sorted(methods)))


def _preflight(methods: bytes, exchange: Exchange) -> None:
    if not exchange.extra:
        exchange.fail(403, _KEEP_OFF)
        return
    more = b"access-control-allow-methods: %s\r\naccess-control-max-age: %d\r\n" % (methods, _KEPT_S)
    asked = exchange.headers.get(b"access-control-request-headers", b"")
    if _NAMES.fullmatch(asked):
        more += b"access-control-allow-headers: %s\r\n" % asked
    if exchange.headers.get(b"access-control-request-private-network") == b"true":
        more += b"access-control-allow-private-network: true\r\n"
    exchange.reply(200, (), b"text/plain", more)
