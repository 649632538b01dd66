"""What stands at which path.

A route is a pattern of segments; ``{name}`` stands for one that the handler gets. Of two that fit, the one
that was added first counts: ``/v2/models/stats`` is not a model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from mainspring.gateway.http.exchange import Handler

_KNOWN = 4_096
"""Targets whose route is remembered."""
_KNOWN_BYTES = 256
"""Of each of them: what clients make up must not fill the memory."""


class Route(NamedTuple):
    """One pattern and what answers there, by method."""

    pattern: str
    handlers: Mapping[bytes, Handler]
    administers: bool = False
    """Whether a POST there changes what is served."""
    open: bool = False
    """Whether it is there for clients without a token too."""
    guarded: bool = False
    """Whether other sites' pages are kept off, though it changes nothing that is served."""
    group: str = ""
    """Of calls that the configuration may restrict, one of `restrictions.Group`; empty for none."""


class Match(NamedTuple):
    """A route with what the variable segments were."""

    route: Route
    arguments: tuple[str, ...]
    model: str | None
    """What was in the place of ``{model}``."""


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
