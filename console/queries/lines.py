"""Requests as lines of a list."""

from __future__ import annotations

from mainspring.console.payloads import RequestLine
from mainspring.console.view.requests import Request


def request_line(request: Request) -> RequestLine:
    """Return one request in a list."""
    latency_ns = request.latency_ns
    return RequestLine(
        id=str(request.id),
        model=request.model,
        arrived_ns=request.arrived_ns,
        outcome=request.outcome,
        reason=request.reason,
        detail=request.detail,
        latency_ms=None if latency_ns is None else latency_ns / 1e6,
    )
