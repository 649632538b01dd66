"""``grpc.health.v1``: the gateway's readiness as load balancers ask for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from mainspring.gateway.core.validation import BadRequest
from mainspring.gateway.driver import GatewayDriver
from mainspring.gateway.grpc.access import Caller, sees
from mainspring.gateway.grpc.messages import HEALTH, INFERENCE, HealthCheckResponse, Message
from mainspring.gateway.grpc.status import Ended
from mainspring.messages.served import LEAVING

SERVICES = ("", INFERENCE, HEALTH)
"""Names that stand for the whole server; any other service is a model by its name."""
_LOOK_S = 0.2
"""Seconds between two checks of a watched status."""

SERVING = 1
NOT_SERVING = 2
SERVICE_UNKNOWN = 3


class Health:
    """The service, for one server."""

    def __init__(self, driver: GatewayDriver) -> None:
        self._readiness = driver.readiness
        self._gate = driver.gate
        self._closed = False

    def close(self) -> None:
        """Serve no more: say so to those who watch, and end their calls."""
        self._closed = True

    def _status(self, service: str, caller: Caller) -> tuple[int, str]:
        """Return the status of the server or of a model, and why it does not serve."""
        if self._closed:
            return NOT_SERVING, LEAVING
        if service in SERVICES:
            reason = self._readiness.server()
        elif not sees(self._gate, caller, service):
            return SERVICE_UNKNOWN, ""
        else:
            try:
                reason = self._readiness.model(service)
            except BadRequest:
                return SERVICE_UNKNOWN, ""
        return (NOT_SERVING if reason else SERVING), reason

    async def check(self, request: Message, caller: Caller) -> Message:
        """Return the status; raise `Ended` for a service that there is not."""
        status, reason = self._status(request.service, caller)
        if status == SERVICE_UNKNOWN:
            known = ", ".join(map(repr, SERVICES[1:]))
            raise Ended(
                "NOT_FOUND",
                f"there is no service {request.service[:100]!r}; ask for {known}, for a model by its name, "
                "or for all with ''",
            )
        caller.told_why(reason)
        return HealthCheckResponse(status=status)

    async def watch(self, request: Message, caller: Caller) -> AsyncIterator[Message]:
        """Yield the status now, and whenever it is another."""
        said = None
        while True:
            closed = self._closed
            status, _ = self._status(request.service, caller)
            if status != said:
                yield HealthCheckResponse(status=status)
                said = status
            if closed:
                return
            await asyncio.sleep(_LOOK_S)
