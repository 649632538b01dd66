"""The console's HTTP answers: JSON, errors included."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

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
