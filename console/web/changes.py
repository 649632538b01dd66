"""Commands of operators: ``POST api/operate`` with a token that may change what is served.

The console checks the token and passes the command on to the controller, which grants it or says why not, and
records it with the token's name.
"""

from __future__ import annotations

import asyncio
import typing
from time import monotonic_ns

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from mainspring.console.config import ConsoleConfig
from mainspring.console.queries.asking import Unknown
from mainspring.console.queries.model import model
from mainspring.console.web.answers import answer, failure
from mainspring.console.web.source import Source, Unanswered
from mainspring.messages.codes import Reason
from mainspring.messages.operating import OperatorCommand
from mainspring.transport.tokens import EVERYTHING, Credential, TokenFile, from_header

Refusal = tuple[Reason, str]
"""The reason why a command is not passed on, as a code and for a person."""
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
            return Reason.FORBIDDEN, "a worker serves all models, and the token is for some only"
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
    reason, detail = refusal
    headers = {"WWW-Authenticate": "Bearer"} if reason is Reason.UNAUTHENTICATED else None
    return failure(_STATUS.get(reason, 403), detail, headers)
