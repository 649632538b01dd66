"""The routes that the gateway serves, one line for each."""

from __future__ import annotations

from mainspring.gateway.http import extensions
from mainspring.gateway.http.control import Control
from mainspring.gateway.http.exchange import Handler
from mainspring.gateway.http.infer import Inference
from mainspring.gateway.http.openapi import describe
from mainspring.gateway.http.routes import Route, Routes

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
    both: dict[bytes, Handler] = {GET: extensions.trace, POST: extensions.trace}
    return [
        Route("/v2/trace/setting", both, guarded=True),
        Route(f"{MODEL}/trace/setting", both, guarded=True),
        Route("/v2/logging", {GET: extensions.logs, POST: extensions.logs}, guarded=True),
    ]


def _shared_memory(kind: str) -> list[Route]:
    region = f"/v2/{kind}/region/{{region}}"
    return [
        Route(f"/v2/{kind}/status", {GET: extensions.regions}),
        Route(f"{region}/status", {GET: extensions.regions}),
        Route(f"{region}/register", {POST: extensions.register}, guarded=True),
        Route(f"{region}/unregister", {POST: extensions.unregister}, guarded=True),
        Route(f"/v2/{kind}/unregister", {POST: extensions.unregister}, guarded=True),
    ]
