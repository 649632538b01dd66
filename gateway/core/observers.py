"""Who is told of every request when it ends: statistics, traces, metrics. Pure."""

from __future__ import annotations

from typing import Protocol

from mainspring.gateway.core.effects import Dispatched
from mainspring.gateway.core.requests import Pending
from mainspring.messages.clients import InferRequest
from mainspring.messages.codes import Reason
from mainspring.messages.peers import Output


class Observer(Protocol):
    """Told once of every request, when it ends. Must be quick and may not raise."""

    def answered(
        self, now_ns: int, request: Pending, dispatch: Dispatched | None, output: Output | None
    ) -> None:
        """It got outputs: of this dispatch and message, or, with neither, of an earlier request."""

    def refused(self, request: Pending, reason: Reason) -> None:
        """It got a reason instead, or its client is gone."""

    def turned_away(self, request: InferRequest, reason: Reason) -> None:
        """It was refused before the request table saw it."""


class Observers:
    """Passes what it is told on to each that was added."""

    def __init__(self) -> None:
        self._all: tuple[Observer, ...] = ()

    def add(self, observer: Observer) -> None:
        """Tell this one too from now on."""
        self._all = (*self._all, observer)

    def answered(
        self, now_ns: int, request: Pending, dispatch: Dispatched | None, output: Output | None
    ) -> None:
        """As `Observer.answered`."""
        for observer in self._all:
            observer.answered(now_ns, request, dispatch, output)

    def refused(self, request: Pending, reason: Reason) -> None:
        """As `Observer.refused`."""
        for observer in self._all:
            observer.refused(request, reason)

    def turned_away(self, request: InferRequest, reason: Reason) -> None:
        """As `Observer.turned_away`."""
        for observer in self._all:
            observer.turned_away(request, reason)


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
