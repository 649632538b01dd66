"""Requests to an ASGI application without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Scope


class Answer(NamedTuple):
    """Of an application."""

    status: int
    headers: dict[str, str]
    body: bytes


def get(app: ASGIApp, path: str, headers: Mapping[str, str] | None = None) -> Answer:
    """Return what an application answers to GET."""
    named = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    scope: Scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"localhost"), *named],
        "scheme": "http",
        "server": ("localhost", 80),
        "client": ("localhost", 1),
        "root_path": "",
    }
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], found, b"".join(message.get("body", b"") for message in sent[1:]))
