"""What Triton's requests about shared memory, tracing and logging get where none of it can be set over HTTP.

Clients ask for these to clean up before they start, or to show them: reading and clearing succeed, as with a
Triton that has them switched off; changing does not.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from mainspring.gateway.http.exchange import Exchange, Fault
from mainspring.gateway.oip.settings import TRACE_SETTINGS, log_settings


def trace(exchange: Exchange) -> None:
    """Show trace settings, or refuse to change them."""
    if exchange.method == b"POST":
        _check("trace", exchange.decoded(dict[str, Any]), TRACE_SETTINGS)
    exchange.reply_json(TRACE_SETTINGS)


def logs(exchange: Exchange) -> None:
    """Show log settings, or refuse to change them."""
    present = log_settings(logging.getLogger("mainspring").getEffectiveLevel())
    if exchange.method == b"POST":
        _check("log", exchange.decoded(dict[str, Any]), present)
    exchange.reply_json(present)


def regions(exchange: Exchange) -> None:
    """List the regions of shared memory: there are none."""
    if exchange.arguments:
        raise Fault(404, f"there is no region {exchange.arguments[0][:100]!r}: memory is not shared here")
    exchange.reply_json([])


def register(_exchange: Exchange) -> None:
    """Refuse to share memory."""
    raise Fault(501, "memory can't be shared with this server; send tensors as binary data")


def unregister(exchange: Exchange) -> None:
    """Share memory no more: it never was."""
    exchange.reply_json({})


def _check(what: str, wanted: Mapping[str, Any], present: Mapping[str, Any]) -> None:
    """Raise `Fault` if a setting is to be another than it is; null, which stands for the default, is fine."""
    for name, value in wanted.items():
        if name not in present:
            raise Fault(400, f"there is no {what} setting {name[:100]!r}; there are {', '.join(present)}")
        if value is not None and value not in (present[name], [present[name]]):
            raise Fault(501, f"{what} settings can't be changed over HTTP: {name!r} stays {present[name]!r}")
