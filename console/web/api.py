"""Pictures as JSON for scripts, and what operators ask for.

``GET api/console`` says what this console is, ``GET api/SHOW?param=value`` is one picture as a page gets it.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import Any

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mainspring.console.config import ConsoleConfig
from mainspring.console.queries.asking import BadQuery, Unknown
from mainspring.console.web.answers import JSON, answer, failure
from mainspring.console.web.changes import BadRequest, Changes, read_body
from mainspring.console.web.pictures import Pictures
from mainspring.console.web.shows import SHOWS, BadParams, Broken, ask
from mainspring.console.web.source import Seek, Source
from mainspring.transport.tokens import EVERYTHING, Credential, TokenFile, from_header

_LISTS = {"workers", "outcomes"}
"""Parameters that may be there several times."""
_SEEK = msgspec.json.Decoder(Seek)


class Api:
    """The JSON API."""

    def __init__(self, config: ConsoleConfig, source: Source, pictures: Pictures, tokens: TokenFile) -> None:
        self._config = config
        self._source = source
        self._pictures = pictures
        self._tokens = tokens
        self._changes = Changes(config, source, tokens)

    def routes(self) -> list[Route]:
        """Return the API's routes."""
        return [
            Route("/api/console", self._console),
            Route("/api/operate", self._changes.operate, methods=["POST"]),
            Route("/api/replay", self._seek, methods=["POST"]),
            Route("/api/overview", self._overview),
            Route("/api/{show}", self._picture),
        ]

    def refused(self, shown: Credential) -> str:
        """Return why the bearer of this token may see nothing; empty if it may."""
        if not self._config.reading_needs_token:
            return ""
        self._tokens.tick(monotonic_ns())
        refusal = self._tokens.gate.known(shown)
        if refusal is not None:
            return refusal[1]
        if not self._tokens.gate.may_see(shown, EVERYTHING):
            return 'the token is for some models only; to see the console it must be for all: models = ["*"]'
        return ""

    async def _console(self, request: Request) -> Response:
        hidden = bool(self.refused(from_header(request.headers.get("authorization"))))
        shows = {name: msgspec.json.schema(show.params) for name, show in SHOWS.items()}
        return answer(
            {
                "head": None if hidden else self._source.head(),
                "replay": None if hidden else self._source.replay(),
                "reading_needs_token": self._config.reading_needs_token,
                "update_interval_ms": self._config.update_interval_ms,
                "shows": shows,
            }
        )

    async def _picture(self, request: Request) -> Response:
        problem = self.refused(from_header(request.headers.get("authorization")))
        if problem:
            return failure(401, problem, {"WWW-Authenticate": "Bearer"})
        try:
            asked = ask(request.path_params["show"], _params(request.query_params), text=True)
            picture = await self._pictures.get(asked)
        except (BadParams, BadQuery) as error:
            return failure(400, str(error))
        except Unknown as error:
            return failure(404, str(error))
        except Broken as error:
            return failure(500, str(error))
        return Response(picture.message(), media_type=JSON)

    async def _overview(self, request: Request) -> Response:
        problem = self.refused(from_header(request.headers.get("authorization")))
        if problem:
            return failure(401, problem, {"WWW-Authenticate": "Bearer"})
        found = self._source.overview()
        if found is None:
            return failure(404, "this console shows a live cluster; only a recorded run has an overview")
        return answer(found)

    async def _seek(self, request: Request) -> Response:
        problem = self.refused(from_header(request.headers.get("authorization")))
        if problem:
            return failure(401, problem, {"WWW-Authenticate": "Bearer"})
        try:
            self._source.seek(_SEEK.decode(await read_body(request, self._config)))
        except BadRequest as error:
            return failure(error.status, str(error))
        except (ValueError, msgspec.MsgspecError) as error:
            return failure(400, str(error))
        return answer({"replay": self._source.replay()})


def _params(query: QueryParams) -> dict[str, Any]:
    """Return a query string's parameters; raise `BadParams` for one that is there twice."""
    found: dict[str, Any] = {}
    for name, value in query.multi_items():
        if name in _LISTS:
            found.setdefault(name, []).append(value)
        elif name in found:
            raise BadParams(f"{name[:100]!r} is there twice")
        else:
            found[name] = value
    return found
