"""What this gateway refuses itself, so that no controller, event log or console would know of it. Pure."""

from __future__ import annotations

from mainspring.gateway.core.effects import Dispatched
from mainspring.gateway.core.requests import Pending
from mainspring.messages.clients import InferRequest
from mainspring.messages.codes import Reason
from mainspring.messages.peers import Output


class OwnRefusals:
    """An observer of the request table that counts requests refused while no controller had them.

    What a controller had when it ended is in the controller's records, as rejected or cancelled.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        """Since the gateway started, by `Reason`."""

    def answered(
        self, now_ns: int, request: Pending, dispatch: Dispatched | None, output: Output | None
    ) -> None:
        """Count nothing."""

    def refused(self, request: Pending, reason: Reason) -> None:
        """Count a request that is not submitted now: it never was, or is given up."""
        if request.request_id is None and reason is not Reason.CANCELLED:
            self._count(reason)

    def turned_away(self, request: InferRequest, reason: Reason) -> None:
        """Count a request that was no good."""
        del request
        self._count(reason)

    def _count(self, reason: Reason) -> None:
        self.counts[reason.value] = self.counts.get(reason.value, 0) + 1
