"""The routes that the gateway serves, one line for each."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from mainspring.gateway.http.control import Control
from mainspring.gateway.http.exchange import Exchange, Fault, Handler
from mainspring.gateway.http.infer import Inference
from mainspring.gateway.http.openapi import describe
from mainspring.gateway.http.routes import Route, Routes
from mainspring.gateway.oip.settings import TRACE_SETTINGS, log_settings

GET, POST = b"GET", b"POST"
MODEL = "/v2/models/{model}"
VERSION = f"{MODEL}/versions/{{version}}"
REPOSITORY = "/v2/repository"


def routes(control: Control, inference: Inference) -> Routes:
    """Return all routes with their handlers."""
    load, unload = control.in_task(control.load), control.in_task(control.unload)
    return Routes(
        (
            Route("/v2", {GET: control.server}, open=True),
            Route("/v2/health/live", {GET: control.live}, open=True),
            Route("/v2/health/ready", {GET: control.ready}, open=True),
            Route("/openapi.json", {GET: describe}, open=True),
            Route("/v2/models/stats", {GET: control.in_task(control.all_statistics)}),
            *_of_models(control, inference),
            Route(f"{REPOSITORY}/index", {POST: control.in_task(control.index)}),
            Route(f"{REPOSITORY}/models/{{model}}/load", {POST: load}, administers=True),
            Route(f"{REPOSITORY}/models/{{model}}/unload", {POST: unload}, administers=True),
            *_settings(),
            *_shared_memory("systemsharedmemory"),
            *_shared_memory("cudasharedmemory"),
        )
    )


def _of_models(control: Control, inference: Inference) -> list[Route]:
    found = []
    for base in (MODEL, VERSION):
        found += [
            Route(base, {GET: control.model}),
            Route(f"{base}/infer", {POST: inference.handle}),
            Route(f"{base}/ready", {GET: control.model_ready}),
            Route(f"{base}/config", {GET: control.model_config}),
            Route(f"{base}/stats", {GET: control.model_statistics}),
        ]
    return found


def _settings() -> list[Route]:
    both: dict[bytes, Handler] = {GET: trace, POST: trace}
    return [
        Route("/v2/trace/setting", both, guarded=True),
        Route(f"{MODEL}/trace/setting", both, guarded=True),
        Route("/v2/logging", {GET: logs, POST: logs}, guarded=True),
    ]


def _shared_memory(kind: str) -> list[Route]:
    region = f"/v2/{kind}/region/{{region}}"
    return [
        Route(f"/v2/{kind}/status", {GET: regions}),
        Route(f"{region}/status", {GET: regions}),
        Route(f"{region}/register", {POST: register}, guarded=True),
        Route(f"{region}/unregister", {POST: unregister}, guarded=True),
        Route(f"/v2/{kind}/unregister", {POST: unregister}, guarded=True),
    ]


# What Triton's requests about shared memory, tracing and logging get where none of it can be set over HTTP.
# Clients ask for these to clean up before they start, or to show them: reading and clearing succeed, as with
# a Triton that has them switched off; changing does not.


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
