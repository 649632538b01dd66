"""Pictures as JSON for scripts, and commands of operators.

``GET api/console`` says what this console is, ``GET api/SHOW?param=value`` is one picture as a page gets it.
``POST api/operate`` needs a token that may change what is served; the controller grants the command or says
why not, and records it with the token's name.
"""

from __future__ import annotations

import asyncio
import typing
from time import monotonic_ns
from typing import Any

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from mainspring.console.config import ConsoleConfig
from mainspring.console.queries.asking import BadQuery, Unknown
from mainspring.console.queries.models import model
from mainspring.console.web.guard import JSON, answer, failure
from mainspring.console.web.pictures import Pictures
from mainspring.console.web.shows import SHOWS, BadParams, Broken, ask
from mainspring.console.web.source import Seek, Source, Unanswered
from mainspring.messages.codes import Reason
from mainspring.messages.operating import OperatorCommand
from mainspring.transport.tokens import EVERYTHING, Credential, Refusal, TokenFile, from_header, headers_of

_STATUS = {Reason.UNAUTHENTICATED: 401, Reason.FORBIDDEN: 403, Reason.RATE_LIMITED: 429}
_COMMANDS = tuple(str(kind.__struct_config__.tag) for kind in typing.get_args(OperatorCommand))
TURN_ON = (
    "nothing may be changed from this console, because it has no file of tokens: write one with "
    "`mainspring token new NAME --admin >> tokens.toml` and set token_file in the table [console]"
)


class Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request."""

    command: OperatorCommand


_CHANGE = msgspec.json.Decoder(Change)


class BadRequest(ValueError):
    """A request that can't be understood."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


class Changes:
    """Takes operators' commands."""

    def __init__(self, config: ConsoleConfig, source: Source, tokens: TokenFile) -> None:
        self._config = config
        self._source = source
        self._tokens = tokens
        self._waiting = 0

    async def operate(self, request: Request) -> Response:
        """Answer one command."""
        if not self._tokens.gate.closed:
            return failure(404, TURN_ON)
        try:
            command = await self._read(request)
        except BadRequest as error:
            return failure(error.status, str(error))
        refusal = self._refusal(request.headers.get("authorization"), command)
        if refusal is not None:
            return _turn_away(refusal)
        return await self._pass_on(command, from_header(request.headers.get("authorization")))

    async def _pass_on(self, command: OperatorCommand, shown: Credential) -> Response:
        # Counted from here on: a caller that may not ask, or sends slowly, keeps no other from asking.
        if self._waiting >= self._config.max_operations:
            return failure(503, f"{self._waiting} commands are waiting for the controller; try again")
        self._waiting += 1
        try:
            return answer(await self._source.operate(command, self._tokens.gate.name(shown)))
        except Unanswered as error:
            return failure(503 if error.at_once else 504, str(error))
        finally:
            self._waiting -= 1

    async def _read(self, request: Request) -> OperatorCommand:
        body = await read_body(request, self._config)
        try:
            command = _CHANGE.decode(body).command
            _check_fields(command, msgspec.json.decode(body)["command"])
            return command
        except msgspec.ValidationError as error:
            wrong_kind = str(error).endswith(" - at `$.command.type`")
            kinds = f"; its type is one of {', '.join(_COMMANDS)}" if wrong_kind else ""
            raise BadRequest(f'the body is not {{"command": ...}}: {error}{kinds}') from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadRequest(f"the body is not JSON: {error}") from None

    def _refusal(self, header: str | None, command: OperatorCommand) -> Refusal | None:
        """Return why the bearer of this token may not give the command, or None."""
        now_ns = monotonic_ns()
        self._tokens.tick(now_ns)
        named = getattr(command, "model", None)
        refusal = self._tokens.gate.authorise(
            header, None if named is None else self._public(named), now_ns, administers=True
        )
        if refusal is not None or named is not None:
            return refusal
        if not self._tokens.gate.may_see(from_header(header), EVERYTHING):
            return Reason.FORBIDDEN, "a worker serves all models, and the token is for some only", None
        return None

    def _public(self, name: str) -> str:
        """Return what clients call a model, which is what tokens are for."""
        try:
            return model(self._source.view, name).versions_of or name
        except Unknown:
            return name


def _check_fields(command: OperatorCommand, sent: dict[str, object]) -> None:
    """Raise `BadRequest` for a field that the command does not have, for it would be ignored."""
    fields = ("type", *command.__struct_fields__)
    strange = [name for name in sent if name not in fields]
    if strange:
        kind = command.__struct_config__.tag
        raise BadRequest(f"a {kind} has no field {strange[0][:100]!r}; it has {', '.join(fields)}")


async def read_body(request: Request, config: ConsoleConfig) -> bytes:
    """Return a request's JSON body; raise `BadRequest` for another kind, a large one, or one that lingers."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise BadRequest(f"the body is {kind[:100] or 'of no type'}; send application/json", 415)
    body = bytearray()
    try:
        async with asyncio.timeout(config.header_timeout_ms / 1e3):
            async for chunk in request.stream():
                body += chunk
                if len(body) > config.max_message_bytes:
                    raise BadRequest(f"the body is larger than {config.max_message_bytes} bytes", 413)
    except TimeoutError:
        raise BadRequest(f"the body did not come within {config.header_timeout_ms:g} ms", 408) from None
    except ClientDisconnect:
        raise BadRequest("the body ended early") from None
    return bytes(body)


def _turn_away(refusal: Refusal) -> Response:
    return failure(_STATUS.get(refusal[0], 403), refusal[1], headers_of(refusal))


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
