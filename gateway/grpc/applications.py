"""The service ``mainspring.Applications``: which there are, what was learnt, changes, and what comes true."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from google.protobuf.json_format import ParseDict

from mainspring.gateway.core.admin import AdminCommand
from mainspring.gateway.core.validation import BadRequest
from mainspring.gateway.graphs.applications import application_of
from mainspring.gateway.grpc.access import Caller, check, sees
from mainspring.gateway.grpc.messages import APPLICATIONS, Message, methods
from mainspring.gateway.services import Services
from mainspring.messages.applications import ApplicationReport
from mainspring.messages.clients import AddGraph, ErrorReply, ForgetContext, RemoveGraph
from mainspring.messages.codes import Reason
from mainspring.messages.learning import Observe

_METHODS = methods(APPLICATIONS)
_CHANGES = frozenset(("Put", "Remove", "Forget"))
"""Calls for tokens that may administer."""


class Applications:
    """Answers its calls."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._catalog = services.driver.catalog
        found: dict[str, Callable[[Message, Caller], Awaitable[dict[str, Any]]]] = {
            "List": self._list,
            "Show": self._show,
            "Put": self._put,
            "Remove": self._remove,
            "Observe": self._observe,
            "Forget": self._forget,
        }
        self.behaviours: Mapping[str, Callable[[Message, Caller], Awaitable[Message]]] = {
            name: self._guarded(name, answer) for name, answer in found.items()
        }
        """Function that answers each call; raises `BadRequest`."""

    def _guarded(
        self, name: str, answer: Callable[[Message, Caller], Awaitable[dict[str, Any]]]
    ) -> Callable[[Message, Caller], Awaitable[Message]]:
        async def behaviour(request: Message, caller: Caller) -> Message:
            about = None if name == "List" else request.name
            check(self._services.driver.gate, caller, about, administers=name in _CHANGES)
            return ParseDict(await answer(request, caller), _METHODS[name].response())

        return behaviour

    async def _list(self, _request: Message, caller: Caller) -> dict[str, Any]:
        gate = self._services.driver.gate
        return {
            "applications": [
                _shown(each) for each in self._catalog.graphs.reports(lambda name: sees(gate, caller, name))
            ]
        }

    async def _show(self, request: Message, _caller: Caller) -> dict[str, Any]:
        return _shown(self._catalog.graphs.report(request.name))

    async def _put(self, request: Message, caller: Caller) -> dict[str, Any]:
        try:
            table = msgspec.json.decode(request.specification or "{}", type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise BadRequest(Reason.BAD_INPUT, f"the specification is no JSON object: {error}") from None
        spec = application_of(request.name, table, trusted=self._services.driver.gate.closed)
        await self._ask(AddGraph(self._services.next_key(), spec))
        return await self._show(request, caller)

    async def _remove(self, request: Message, _caller: Caller) -> dict[str, Any]:
        self._catalog.graphs.report(request.name)
        await self._ask(RemoveGraph(self._services.next_key(), request.name))
        return {}

    async def _observe(self, request: Message, _caller: Caller) -> dict[str, Any]:
        if request.y and request.labels:
            raise BadRequest(Reason.BAD_INPUT, "give y or labels, not both")
        truth = tuple(request.y) or tuple(request.labels)
        rows = tuple(request.rows)
        message = Observe(0, request.name, request.query_id, truth, tuple(request.rewards), rows)
        told = _done(await self._services.observe(message))
        return {name: getattr(told, name) for name in ("joined", "late", "duplicate", "unknown")}

    async def _forget(self, request: Message, _caller: Caller) -> dict[str, Any]:
        _done(self._catalog.forget(ForgetContext(0, request.name, request.context)))
        return {}

    async def _ask(self, command: AdminCommand) -> None:
        _done(await self._services.ask(command))


def _done(reply: Any) -> Any:
    """Return a reply; raise `BadRequest` if it is an error."""
    if isinstance(reply, ErrorReply):
        raise BadRequest(reply.reason, reply.detail)
    return reply


def _shown(report: ApplicationReport) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(report)
    del found["spec"]
    return {
        **found,
        "name": report.spec.name,
        "specification": msgspec.json.encode(report.spec).decode(),
    }
