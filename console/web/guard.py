"""Access to the console: browsers that call it by a name of its own, and no other sites' pages; its answers.

`transport.origins` says what that keeps off.
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from mainspring.transport.origins import KnownNames

_ENCODER = msgspec.json.Encoder()
JSON = "application/json"


def encode(value: Any) -> bytes:
    """Return a value of payloads' kinds as JSON."""
    return _ENCODER.encode(value)


def answer(value: Any, status: int = 200) -> Response:
    """Return a value as an answer."""
    return Response(encode(value), status, media_type=JSON)


def failure(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    """Return an error as an answer; ``text`` says what was wrong and what would be right."""
    return Response(encode({"error": {"text": text}}), status, headers, JSON)


CONTENT_SECURITY_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
)
"""The page's permissions: run and fetch what comes from here, and make no text into markup."""

HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
"""Headers of every answer."""


class Names(KnownNames):
    """The names by which the console may be called."""

    def problem(self, headers: Headers) -> str:
        """Return why a request with these headers is refused; empty if it is not."""
        called = headers.getlist("host")
        if len(called) != 1 or not self.known(called[0]):
            return (
                f"the console is not known as {', '.join(called)[:200]!r}: call it by its address or as "
                "localhost, or add the name to hosts in the table [console]"
            )
        origin = headers.get("origin")
        if origin is not None and not self.own(origin, called[0]):
            return f"a page of {origin[:200]!r} may not use the console; open the console's own page"
        if origin is None and headers.get("sec-fetch-site") == "cross-site" and not _navigates(headers):
            return "a page of another site may not use the console; open the console's own page"
        return ""


class Guard:
    """Stands before the application: refuses who may not ask, and adds `HEADERS`."""

    def __init__(self, app: ASGIApp, names: Names) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or WebSocket."""
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        problem = self._names.problem(Headers(scope=scope))
        if not problem:
            await self._app(scope, receive, _with_headers(send))
            return
        if scope["type"] == "websocket":
            # Browsers tell their pages nothing of why; the page itself could not be had either.
            await WebSocket(scope, receive, send).close()
        else:
            await failure(403, problem)(scope, receive, _with_headers(send))


def _with_headers(send: Send) -> Send:
    async def adding(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("Cache-Control", "no-store")
        await send(message)

    return adding


def _navigates(headers: Headers) -> bool:
    """Return whether a person follows a link to here, which shows the page and does nothing else."""
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
