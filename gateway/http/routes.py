"""The handlers at each path.

A route is a pattern of segments; ``{name}`` stands for one that the handler gets. Of two that fit, the one
that was added first counts: ``/v2/models/stats`` is not a model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from mainspring.gateway.config import Group
from mainspring.gateway.http.applications import ApplicationRoutes
from mainspring.gateway.http.control import Control
from mainspring.gateway.http.exchange import Handler
from mainspring.gateway.http.infer import Inference
from mainspring.gateway.http.openapi import describe, page
from mainspring.gateway.http.shared_memory import SharedMemory, no_regions, no_register, no_unregister
from mainspring.gateway.http.texts import Texts

_KNOWN = 4_096
"""Targets whose route is remembered."""
_KNOWN_BYTES = 256
"""Most bytes of each target that is remembered: what clients make up must not fill the memory."""


class Route(NamedTuple):
    """One pattern and what answers there, by method."""

    pattern: str
    handlers: Mapping[bytes, Handler]
    administers: bool = False
    """True if anything but a GET there changes what is served."""
    open: bool = False
    """True if it is there for clients without a token too."""
    guarded: bool = False
    """True if other sites' pages are kept off, though it changes nothing that is served."""
    group: str = ""
    """The group of calls that the configuration may restrict, one of `config.Group`; empty for none."""


class Match(NamedTuple):
    """A route with what the variable segments were."""

    route: Route
    arguments: tuple[str, ...]
    model: str | None
    """The text in the place of ``{model}``."""


class Routes:
    """All routes."""

    def __init__(self, routes: tuple[Route, ...]) -> None:
        self._patterns = [(tuple(route.pattern.strip("/").split("/")), route) for route in routes]
        self._known: dict[bytes, Match] = {}

    def find(self, target: bytes) -> Match | None:
        """Return what stands at a request's target; None if nothing does."""
        match = self._known.get(target)
        if match is None:
            match = self._find(target)
            if match is not None and len(target) <= _KNOWN_BYTES:
                if len(self._known) >= _KNOWN:
                    self._known.clear()
                self._known[target] = match
        return match

    def _find(self, target: bytes) -> Match | None:
        path = target.partition(b"?")[0]
        if not path.startswith(b"/"):
            # A proxy's form, which servers have to take too.
            path = b"/" + path.partition(b"://")[2].partition(b"/")[2]
        segments = path.strip(b"/").split(b"/")
        for pattern, route in self._patterns:
            if len(pattern) != len(segments):
                continue
            arguments = _fit(pattern, segments)
            if arguments is not None:
                names = [part for part in pattern if part.startswith("{")]
                model = arguments[names.index("{model}")] if "{model}" in names else None
                return Match(route, arguments, model)
        return None


def _fit(pattern: tuple[str, ...], segments: list[bytes]) -> tuple[str, ...] | None:
    """Return the segments in the places of the pattern's variables; None if they do not fit it."""
    arguments = []
    for part, segment in zip(pattern, segments, strict=True):
        if part.startswith("{"):
            if not segment:
                return None
            arguments.append(unquote_to_bytes(segment).decode(errors="replace"))
        elif part.encode() != segment:
            return None
    return tuple(arguments)


GET, POST, PUT, DELETE = b"GET", b"POST", b"PUT", b"DELETE"
MODEL = "/v2/models/{model}"
VERSION = f"{MODEL}/versions/{{version}}"
REPOSITORY = "/v2/repository"


def routes(
    control: Control,
    inference: Inference,
    shared: SharedMemory,
    texts: Texts,
    applications: ApplicationRoutes,
    *,
    docs: bool = False,
) -> Routes:
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
            *_of_applications(control, applications),
            Route("/v1/models", {GET: texts.models}, group=Group.METADATA),
            Route("/v1/models/{model}", {GET: texts.model}, group=Group.METADATA),
            Route("/v1/embeddings", {POST: texts.embeddings}, group=Group.INFERENCE),
            Route("/rerank", {POST: texts.rerank}, group=Group.INFERENCE),
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


def _of_applications(control: Control, routes: ApplicationRoutes) -> list[Route]:
    change: dict[bytes, Handler] = {PUT: control.in_task(routes.put), DELETE: control.in_task(routes.remove)}
    return [
        Route(
            f"{MODEL}/observe", {POST: control.in_task(routes.observe)}, guarded=True, group=Group.INFERENCE
        ),
        Route(f"{MODEL}/topk", {POST: control.in_task(routes.top_k)}, guarded=True, group=Group.INFERENCE),
        Route("/v2/applications", {GET: routes.all}, group=Group.REPOSITORY),
        _changing("/v2/applications/{model}/forget", {POST: routes.forget}, Group.REPOSITORY),
        _changing("/v2/applications/{model}", {GET: routes.one, **change}, Group.REPOSITORY),
    ]


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
