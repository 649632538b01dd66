"""The routes of applications: which there are, what was learnt, changes, and what comes true."""

from __future__ import annotations

import asyncio
from time import monotonic_ns
from typing import Any

import msgspec

from mainspring.gateway.core.admin import AdminCommand
from mainspring.gateway.core.validation import BadRequest
from mainspring.gateway.graphs.applications import application_of
from mainspring.gateway.http.exchange import Exchange
from mainspring.gateway.services import Services
from mainspring.messages.clients import (
    AddGraph,
    BestItems,
    ErrorReply,
    ForgetContext,
    RemoveGraph,
    TopK,
)
from mainspring.messages.learning import Observe
from mainspring.transport.tokens import from_header

Truth = int | float | str


class Feedback(msgspec.Struct):
    """What came true of an application's answer, for one row or several."""

    query_id: int
    """The parameter of this name in the answer."""
    y: Truth | list[Truth] | None = None
    """Number of the class, label or value."""
    reward: float | list[float] | None = None
    """In place of ``y``: how good the answer was, from 0 to 1."""
    rows: list[int] = []
    """The rows that it is about; without any the first ones."""


class Wanted(msgspec.Struct):
    """The best items that are asked for."""

    k: int
    items: list[int] | None = None
    """Numbers of the items among which they are; without any, all."""
    context: str = ""
    """User whom they are for."""


class BestReport(msgspec.Struct):
    """The best items, the best first."""

    query_id: int
    items: tuple[int, ...]
    scores: tuple[float, ...]
    random: int
    """Place of an item that was drawn, whatever its score; -1 if none was."""
    version: int


class FeedbackReport(msgspec.Struct):
    """What became of feedback, in rows."""

    joined: int
    late: int
    """The answer is not kept any more."""
    duplicate: int
    """There was feedback before."""
    unknown: int
    """This gateway never gave such an answer."""


class Forgotten(msgspec.Struct):
    """The context to forget."""

    context: str


class ApplicationRoutes:
    """Handles these routes."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._catalog = services.driver.catalog

    def all(self, exchange: Exchange) -> None:
        """Show the applications, and what was learnt of each."""
        gate, shown = self._services.driver.gate, from_header(exchange.header(b"authorization"))
        exchange.reply_json(
            [*self._catalog.graphs.reports(lambda name: not gate.closed or gate.may_see(shown, name))]
        )

    def one(self, exchange: Exchange) -> None:
        """Show an application, and what was learnt of it."""
        exchange.reply_json(self._catalog.graphs.report(exchange.arguments[0]))

    async def put(self, exchange: Exchange) -> None:
        """Serve an application of this name from now on."""
        name = exchange.arguments[0]
        trusted = self._services.driver.gate.closed
        spec = application_of(name, exchange.decoded(dict), trusted=trusted)
        await self._ask(AddGraph(self._services.next_key(), spec))
        self.one(exchange)

    async def remove(self, exchange: Exchange) -> None:
        """Serve an application no more, and forget what was learnt."""
        name = exchange.arguments[0]
        self._catalog.graphs.report(name)
        await self._ask(RemoveGraph(self._services.next_key(), name))
        exchange.reply_json({})

    async def observe(self, exchange: Exchange) -> None:
        """Have an application learn what came true of an answer."""
        given = exchange.decoded(Feedback)
        feedback = _each(given.y), _each(given.reward), tuple(given.rows)
        message = Observe(0, exchange.arguments[0], given.query_id, *feedback)
        told = await self._services.observe(message)
        if isinstance(told, ErrorReply):
            raise BadRequest(told.reason, told.detail)
        exchange.reply_json(FeedbackReport(told.joined, told.late, told.duplicate, told.unknown))

    async def top_k(self, exchange: Exchange) -> None:
        """Return the best items for a user."""
        given = exchange.decoded(Wanted)
        items = None if given.items is None else tuple(given.items)
        message = TopK(0, exchange.arguments[0], given.k, items, given.context)
        told: asyncio.Future[BestItems | ErrorReply] = asyncio.get_running_loop().create_future()
        self._catalog.top_k(monotonic_ns(), message, told.set_result)
        found = await told
        if isinstance(found, ErrorReply):
            raise BadRequest(found.reason, found.detail)
        exchange.reply_json(
            BestReport(found.query_id, found.items, found.scores, found.random, found.version)
        )

    def forget(self, exchange: Exchange) -> None:
        """Erase what an application has learnt of a context."""
        context = exchange.decoded(Forgotten).context
        told = self._catalog.forget(ForgetContext(0, exchange.arguments[0], context))
        if isinstance(told, ErrorReply):
            raise BadRequest(told.reason, told.detail)
        exchange.reply_json({})

    async def _ask(self, command: AdminCommand) -> None:
        reply = await self._services.ask(command)
        if isinstance(reply, ErrorReply):
            raise BadRequest(reply.reason, reply.detail)


def _each(given: Any) -> tuple[Any, ...]:
    """Return what was given of one row, or of several, as of several."""
    if given is None:
        return ()
    return tuple(given) if isinstance(given, list) else (given,)
