"""Requests that nobody waits for: they have a worker load a model before clients are directed to it.

They are requests like any others to the controller and the workers, without a deadline, so that they only use
idle time; their inputs are withdrawn, so that the worker runs the model on zeros and sends no outputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import msgspec

from mainspring.messages import ids, peers
from mainspring.messages.codec import encode
from mainspring.messages.roles import Role
from mainspring.transport.bounds import Limits
from mainspring.transport.greeting import Pass
from mainspring.transport.handshake import Identity
from mainspring.transport.hub import Hub
from mainspring.transport.link import Link


class Warming:
    """The requests of one session with a controller, and the connections to its workers."""

    def __init__(self, hub: Hub, limits: Limits, shows: Pass) -> None:
        self._hub = hub
        self._shows = shows
        self._limits = limits
        self._serials = itertools.count(1)
        self._number = 0
        self._requests: dict[str, int] = {}
        """By model."""
        self._addresses: dict[str, str] = {}
        self._links: dict[str, Link] = {}

    def welcomed(self, number: int) -> None:
        """Begin a session in which this gateway has a number."""
        self._number = number
        self._requests.clear()

    def warm(self, model: str) -> peers.Arrival | None:
        """Return what to send to the controller for a model; None if that was done."""
        if model in self._requests:
            return None
        request_id = self._requests[model] = ids.request_id(self._number, next(self._serials))
        return peers.Arrival(request_id, model, 1, None)

    def cool(self, models: Iterable[str]) -> list[peers.Cancel]:
        """Return what to send to the controller for models that clients are directed to by now."""
        requests = [self._requests.pop(model, None) for model in models]
        return [peers.Cancel(each) for each in requests if each is not None]

    def worker_up(self, worker: str, address: str) -> None:
        """A worker takes inputs at this address."""
        if self._addresses.get(worker) != address:
            self.worker_down(worker)
            self._addresses[worker] = address

    def worker_down(self, worker: str) -> None:
        """A worker is gone."""
        self._addresses.pop(worker, None)
        link = self._links.pop(worker, None)
        if link is not None:
            link.close(0)

    def dispatched(self, message: peers.Dispatch) -> None:
        """Let the worker run the batch without inputs of ours."""
        if message.worker not in self._addresses:
            return
        if message.worker not in self._links:
            address = self._addresses[message.worker]
            there = Identity(Role.WORKER, message.worker.encode())
            self._links[message.worker] = Link(
                self._hub, address, self._limits, keeps=True, shows=self._shows, expects=there
            )
        for request_id in message.request_ids:
            withdrawn: msgspec.Struct = peers.Input(message.action_id, request_id, withdrawn=True)
            self._links[message.worker].send((encode(withdrawn),))

    def drain(self) -> None:
        """Take what workers send: nothing that is of use, but their connections' ends are seen so."""
        for link in self._links.values():
            while link.receive() is not None:
                pass
