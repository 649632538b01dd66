"""The model repository as a gateway's front ends see it: its index, and loading and unloading if that is on.

The repository is a process of its own, asked over a connection for each question, so that nothing of it can
keep the gateway from serving; while it is away, callers are told so. Runs in the gateway's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from time import monotonic_ns
from typing import Any

import msgspec

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.core.catalog import Catalog
from mainspring.gateway.core.readiness import Readiness
from mainspring.gateway.core.validation import BadRequest, shorten
from mainspring.gateway.memory import Budget
from mainspring.gateway.oip.datatypes import Withheld
from mainspring.messages.codes import Reason
from mainspring.messages.repository import (
    MAX_FILES,
    MAX_LOAD_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_QUESTION_BYTES,
    Changed,
    GetIndex,
    Index,
    IndexEntry,
    LoadModel,
    ModelState,
    NotChanged,
    Question,
    Reply,
    UnloadModel,
)
from mainspring.messages.roles import Role
from mainspring.messages.served import BEING_COMPILED, STARTING, WAITS
from mainspring.transport.bounds import Ended, Limits
from mainspring.transport.greeting import present
from mainspring.transport.handshake import Identity
from mainspring.transport.hub import Hub
from mainspring.transport.link import Link
from mainspring.transport.loop import ready

TOLD_NS = 2_000_000_000
"""Nanoseconds that the controller's word of a change may take after the repository's."""
_ANSWER = Limits(
    part_bytes=MAX_MESSAGE_BYTES,
    backlog_bytes=0,
    backlog_messages=0,
    message_bytes=MAX_MESSAGE_BYTES,
    tensors=0,
)
_LOOK_S = 0.002
_DECODER: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
_ENCODER = msgspec.msgpack.Encoder()
_UNLOAD_DEPENDENTS = "unload_dependents"


class RepositoryError(BadRequest):
    """The repository did not do what it was asked.

    Its reason is that of a refused request: ``unknown_model``; ``bad_input`` for a model that can't be loaded
    or a parameter that can't be taken; ``bad_message`` where loading is off; ``controller_unreachable`` while
    the process or its controller is away; ``timed_out``.
    """


def repository_of(config: GatewayConfig, catalog: Catalog) -> ModelRepository | None:
    """Return the repository of the configuration, None if there is none."""
    return ModelRepository(config, catalog) if config.repository_address else None


async def index_of(
    repository: ModelRepository | None, catalog: Catalog, readiness: Readiness, *, ready: bool
) -> list[IndexEntry]:
    """Return every model and version, or those that are ready; also what is served beside a repository.

    Raises `RepositoryError`.
    """
    entries = [] if repository is None else await repository.index()
    known = {entry.name for entry in entries}
    entries += [
        IndexEntry(name, str(version), ModelState.READY)
        for name in catalog.names()
        for version in catalog.versions(name)
        if name not in known
    ]
    entries = [_as_ready(entry, readiness) for entry in entries]
    if ready:
        entries = [entry for entry in entries if entry.state is ModelState.READY]
    return sorted(entries, key=lambda entry: (entry.name, int(entry.version or 0)))


def _as_ready(entry: IndexEntry, readiness: Readiness) -> IndexEntry:
    """Return an entry that is READY only if a request for it would be answered."""
    if entry.state is not ModelState.READY:
        return entry
    try:
        reason = readiness.model(entry.name, int(entry.version))
    except BadRequest:
        # The controller's word that it is served has yet to come, or to be taken back.
        return entry
    if not reason:
        return entry
    comes = reason.startswith((STARTING, WAITS, BEING_COMPILED))
    state = ModelState.LOADING if comes else ModelState.UNAVAILABLE
    said = f"{reason}; {entry.reason}" if entry.reason else reason
    return IndexEntry(entry.name, entry.version, state, said)


class ModelRepository:
    """The repository's process. Everything may raise `RepositoryError`, and a change `Withheld`.

    The latter is what Triton says where clients may not load and unload, for gateways that are to say so.
    """

    def __init__(self, config: GatewayConfig, catalog: Catalog) -> None:
        self._address = config.repository_address
        self._shows = present(Role.GATEWAY, config.keys)
        self._timeout_s = config.repository_timeout_ms / 1e3
        self._catalog = catalog
        self._sent = Budget(MAX_LOAD_BYTES)
        """Bytes of the files of loads under way."""

    async def index(self) -> list[IndexEntry]:
        """Return every model and version of the repository, by name and version."""
        reply = await self._ask(GetIndex(), self._timeout_s)
        assert isinstance(reply, Index), f"{reply} is not an index"
        return list(reply.models)

    async def load(self, name: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Load a model, or load it again; return once it is served, which takes as long as compiling does.

        The parameter ``config`` is a configuration as JSON that counts in the place of the folder's, and
        ``file:PATH`` the content of a file, in bytes: with any, they count in the place of the whole folder.
        Raises `RepositoryError` for other parameters, and with the repository's reason.
        """
        given = parameters or {}
        files = {path: value for path, value in given.items() if isinstance(value, bytes)}
        if len(files) > MAX_FILES:
            raise RepositoryError(
                Reason.BAD_INPUT, f"there are {len(files)} files; a load has at most {MAX_FILES}"
            )
        others = {path: value for path, value in given.items() if path not in files}
        await self._load(LoadModel(name, others, tuple(files)), [*files.values()])

    async def load_as_told(self, name: str, body: memoryview) -> None:
        """Load a model as the JSON of a request over HTTP says, which the repository reads; see `load`."""
        await self._load(LoadModel(name, encoded=True), [body or b"{}"])

    async def _load(self, question: LoadModel, parts: Sequence[Any]) -> None:
        size = sum(map(len, parts))
        if not self._sent.take(size):
            raise RepositoryError(
                Reason.OVERLOADED,
                f"loads under way have {self._sent.held_bytes:,} bytes of files, this one has {size:,}, and "
                f"at most {self._sent.limit_bytes:,} are handed on at one time",
            )
        try:
            await self._change(question.name, question, parts)
        finally:
            self._sent.give(size)

    async def unload(self, name: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Stop serving a model; return once no request for it is taken.

        With the parameter ``unload_dependents`` the ensembles with a step of it are unloaded too, before it,
        and behind an ensemble its steps' models that no other graph needs. Raises `RepositoryError` for an
        unknown parameter, for a model that a graph needs, and with the repository's reason.
        """
        graphs, dependents = self._catalog.graphs, bool((parameters or {}).get(_UNLOAD_DEPENDENTS))
        using, steps = graphs.using(name), graphs.models_of(name)
        for parameter in parameters or {}:
            if parameter != _UNLOAD_DEPENDENTS:
                raise RepositoryError(
                    Reason.BAD_INPUT, f"there is no parameter {shorten(parameter)} of unloading"
                )
        if using and not dependents and not self._catalog.triton:
            raise RepositoryError(
                Reason.BAD_INPUT,
                f"graph {using[0]!r} has a step of model {name!r}: unload both with {_UNLOAD_DEPENDENTS}, or "
                "the graph first",
            )
        for graph in using if dependents else ():
            await self._unload_if_there(graph)
        await self._change(name, UnloadModel(name))
        for model in steps if dependents else ():
            if not [each for each in graphs.using(model) if each != name]:
                await self._unload_if_there(model)

    async def _unload_if_there(self, name: str) -> None:
        """Unload what may be none of the repository's, or unloaded already."""
        try:
            await self._change(name, UnloadModel(name))
        except RepositoryError as error:
            if error.reason is not Reason.UNKNOWN_MODEL:
                raise

    async def _change(self, name: str, question: Question, parts: Sequence[Any] = ()) -> None:
        reply = await self._ask(question, None, parts)
        assert isinstance(reply, Changed), f"{reply} is not an answer to {question}"
        # The controller's word to this gateway may be behind the repository's.
        give_up_ns = monotonic_ns() + TOLD_NS
        while self._told(name) != reply.versions and monotonic_ns() < give_up_ns:
            await asyncio.sleep(_LOOK_S)

    def _told(self, name: str) -> dict[int, str]:
        served = self._catalog.served.get(name)
        return served.versions if served is not None else {}

    async def _ask(self, question: Question, timeout_s: float | None, parts: Sequence[Any] = ()) -> Reply:
        """Return the process's answer, waiting at most ``timeout_s``; raise `RepositoryError`."""
        encoded = _ENCODER.encode(question)
        if len(encoded) > MAX_QUESTION_BYTES:
            raise RepositoryError(
                Reason.BAD_MESSAGE,
                f"the question has {len(encoded)} bytes; at most {MAX_QUESTION_BYTES} are allowed",
            )
        try:
            data = await self._exchange((encoded, *parts), timeout_s)
            reply = _DECODER.decode(data)
        except TimeoutError:
            raise RepositoryError(
                Reason.TIMED_OUT, f"the model repository did not answer within {self._timeout_s:g} s"
            ) from None
        except (OSError, Ended, ValueError) as error:
            raise RepositoryError(
                Reason.CONTROLLER_UNREACHABLE,
                f"the model repository's process is away ({error}); what is served stays so, and "
                "`mainspring up` starts it again",
            ) from None
        if not isinstance(reply, NotChanged):
            return reply
        if not self._catalog.triton:
            raise RepositoryError(reply.reason, reply.detail)
        if reply.reason is Reason.FORBIDDEN:
            raise Withheld(f"explicit model load / unload is not allowed: {reply.detail}")
        if isinstance(question, UnloadModel) and reply.reason is Reason.UNKNOWN_MODEL:
            # To Triton that is not an error.
            return Changed({})
        raise _not_changed(question, reply)

    async def _exchange(self, question: Sequence[Any], timeout_s: float | None) -> Any:
        hub = Hub()
        try:
            link = Link(hub, self._address, _ANSWER, shows=self._shows, expects=Identity(Role.REPOSITORY))
            async with asyncio.timeout(self._timeout_s):
                while not link.connected:
                    await _turn(hub, link)
            link.send(question)
            async with asyncio.timeout(timeout_s):
                while (answer := link.receive()) is None:
                    await _turn(hub, link)
            return answer[0]
        finally:
            hub.close()


def _not_changed(question: Question, reply: NotChanged) -> RepositoryError:
    """Return what Triton says of a model that is not loaded, or not unloaded."""
    if isinstance(question, GetIndex):
        return RepositoryError(reply.reason, reply.detail)
    said = f"failed to {'load' if isinstance(question, LoadModel) else 'unload'} '{question.name[:200]}', "
    if reply.reason is Reason.UNKNOWN_MODEL:
        said += "failed to poll from model repository: "
        return RepositoryError(Reason.BAD_INPUT, said + reply.detail)
    return RepositoryError(reply.reason, said + reply.detail)


async def _turn(hub: Hub, link: Link) -> None:
    """Wait for the only connection of a hub; raise `Ended` if it has failed."""
    if link.failure:
        raise Ended(link.failure)
    await ready(hub)
    hub.wait(0)
