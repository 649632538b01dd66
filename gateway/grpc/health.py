"""``grpc.health.v1``: the gateway's readiness as load balancers ask for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from mainspring.gateway.grpc.access import Caller
from mainspring.gateway.grpc.messages import HEALTH, INFERENCE, HealthCheckResponse, Message
from mainspring.gateway.grpc.status import Ended

SERVICES = ("", INFERENCE, HEALTH)
"""What has a status; all the same one."""
_LOOK_S = 0.2
"""How often a watched status is looked at."""

SERVING = 1
NOT_SERVING = 2
SERVICE_UNKNOWN = 3


class Health:
    """The service, for one server."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        self._ready = ready
        self._closed = False

    def close(self) -> None:
        """Serve no more: say so to those who watch, and end their calls."""
        self._closed = True

    def _status(self) -> int:
        return SERVING if self._ready() and not self._closed else NOT_SERVING

    async def check(self, request: Message, _caller: Caller) -> Message:
        """Return the status; raise `Ended` for a service that there is not."""
        if request.service not in SERVICES:
            known = ", ".join(map(repr, SERVICES[1:]))
            raise Ended(
                "NOT_FOUND",
                f"there is no service {request.service[:100]!r}; ask for {known}, or for all with ''",
            )
        return HealthCheckResponse(status=self._status())

    async def watch(self, request: Message) -> AsyncIterator[Message]:
        """Yield the status now, and whenever it is another."""
        if request.service not in SERVICES:
            yield HealthCheckResponse(status=SERVICE_UNKNOWN)
            while not self._closed:
                await asyncio.sleep(_LOOK_S)
            return
        said = None
        while True:
            closed = self._closed
            status = self._status()
            if status != said:
                yield HealthCheckResponse(status=status)
                said = status
            if closed:
                return
            await asyncio.sleep(_LOOK_S)
