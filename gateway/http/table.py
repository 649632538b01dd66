"""The routes that the gateway serves, one line for each."""

from __future__ import annotations

from mainspring.gateway.http.control import Control
from mainspring.gateway.http.docs import page
from mainspring.gateway.http.exchange import Handler
from mainspring.gateway.http.infer import Inference
from mainspring.gateway.http.openapi import describe
from mainspring.gateway.http.routes import Route, Routes
from mainspring.gateway.http.shared_memory import SharedMemory, no_regions, no_register, no_unregister
from mainspring.gateway.restrictions import Group

GET, POST = b"GET", b"POST"
MODEL = "/v2/models/{model}"
VERSION = f"{MODEL}/versions/{{version}}"
REPOSITORY = "/v2/repository"


def routes(control: Control, inference: Inference, shared: SharedMemory, *, docs: bool = False) -> Routes:
    """Return all routes with their handlers; ``docs``: that of the page to try models, too."""
    load, unload = control.in_task(control.load), control.in_task(control.unload)
    return Routes(
        (
            Route("/v2", {GET: control.server}, open=True, group=Group.METADATA),
            Route("/v2/health/live", {GET: control.live}, open=True, group=Group.HEALTH),
            Route("/v2/health/ready", {GET: control.ready}, open=True, group=Group.HEALTH),
            Route("/openapi.json", {GET: describe}, open=True),
            Route("/v2/models/stats", {GET: control.in_task(control.all_statistics)}, group=Group.STATISTICS),
            *_of_models(control, inference),
            Route(f"{REPOSITORY}/index", {POST: control.in_task(control.index)}, group=Group.REPOSITORY),
            _changing(f"{REPOSITORY}/models/{{model}}/load", {POST: load}, Group.REPOSITORY),
            _changing(f"{REPOSITORY}/models/{{model}}/unload", {POST: unload}, Group.REPOSITORY),
            *_settings(control),
            *([Route("/docs", {GET: page()}, open=True)] if docs else []),
            *_shared_memory("systemsharedmemory", shared.status, shared.register, shared.unregister),
            *_shared_memory("cudasharedmemory", no_regions, no_register, no_unregister),
        )
    )


def _changing(pattern: str, handlers: dict[bytes, Handler], group: str) -> Route:
    return Route(pattern, handlers, administers=True, group=group)


def _of_models(control: Control, inference: Inference) -> list[Route]:
    found = []
    for base in (MODEL, VERSION):
        found += [
            Route(base, {GET: control.model}, group=Group.METADATA),
            Route(f"{base}/infer", {POST: inference.handle}, group=Group.INFERENCE),
            Route(f"{base}/generate", {POST: inference.generate}, group=Group.INFERENCE),
            Route(f"{base}/generate_stream", {POST: inference.generate_stream}, group=Group.INFERENCE),
            Route(f"{base}/ready", {GET: control.model_ready}, group=Group.HEALTH),
            Route(f"{base}/config", {GET: control.model_config}, group=Group.MODEL_CONFIG),
            Route(f"{base}/stats", {GET: control.model_statistics}, group=Group.STATISTICS),
        ]
    return found


def _settings(control: Control) -> list[Route]:
    traces: dict[bytes, Handler] = {GET: control.traces, POST: control.set_traces}
    return [
        _changing("/v2/trace/setting", traces, Group.TRACE),
        _changing(f"{MODEL}/trace/setting", traces, Group.TRACE),
        _changing("/v2/logging", {GET: control.log, POST: control.set_log}, Group.LOGGING),
    ]


def _shared_memory(kind: str, status: Handler, register: Handler, unregister: Handler) -> list[Route]:
    region = f"/v2/{kind}/region/{{region}}"
    return [
        Route(f"/v2/{kind}/status", {GET: status}, group=Group.SHARED_MEMORY),
        Route(f"{region}/status", {GET: status}, group=Group.SHARED_MEMORY),
        Route(f"{region}/register", {POST: register}, guarded=True, group=Group.SHARED_MEMORY),
        Route(f"{region}/unregister", {POST: unregister}, guarded=True, group=Group.SHARED_MEMORY),
        Route(f"/v2/{kind}/unregister", {POST: unregister}, guarded=True, group=Group.SHARED_MEMORY),
    ]
