"""One of several controllers: which models are its own, and the map, which the first one keeps."""

from __future__ import annotations

import logging

from mainspring.controller.config import ControllerConfig
from mainspring.controller.memory import Memory
from mainspring.controller.outbox import Outbox
from mainspring.controller.registry import Refusal
from mainspring.controller.sessions import GatewaySession, SessionTable
from mainspring.messages.codes import Reason
from mainspring.messages.operating import MoveWorker
from mainspring.messages.peers import Greet, WorkerHello
from mainspring.messages.sharding import MOVED, ShardMap, first_map, map_fault

_LOGGER = logging.getLogger(__name__)


class Shards:
    """A controller's knowledge of the others; one that is alone knows none, and has every model."""

    def __init__(self, config: ControllerConfig, outbox: Outbox) -> None:
        self._number = config.shard
        self._outbox = outbox
        self._first: ShardMap | None = None
        """Map by which models are divided at the start, always the same."""
        if len(config.shards) > 1:
            self._first = first_map(config.shards, config.shard_pages)
        self.map = None if self._number else self._first
        """The newest map, at the first controller of several; None at all others."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the addresses of all controllers; none if this one is alone."""
        return () if self._first is None else self._first.addresses

    def has(self, model: str) -> bool:
        """Return whether this controller has a model at its start, by the name that clients call it; what was
        moved since is in its memory."""
        return self._first is None or self._first.place(model) == self._number

    def welcome(self, gateway: GatewaySession) -> None:
        """Tell a new gateway the map."""
        if self.map is not None:
            self._outbox.send(gateway, self.map)

    def told(self, new: ShardMap) -> None:
        """Take a newer map from a gateway: this controller has lost it with its memory."""
        if self.map is not None and new.version > self.map.version and self._refusal(new) is None:
            _LOGGER.warning("a gateway knows version %d of the map: it counts from now on", new.version)
            self._take(new)

    def change(self, new: ShardMap) -> Refusal | None:
        """Route by another map from now on; return why not, or None."""
        refusal = self._refusal(new)
        if refusal is None:
            self._take(new)
        return refusal

    def _take(self, new: ShardMap) -> None:
        self.map = new
        self._outbox.send_gateways(new)

    def _refusal(self, new: ShardMap) -> Refusal | None:
        if self.map is None:
            where = "there is one controller" if self._first is None else f"this is shard {self._number}"
            return (
                Reason.BAD_MESSAGE,
                f"{where}: the map is kept by the first controller of several",
            )
        fault = map_fault(new)
        if fault is not None:
            return Reason.BAD_MESSAGE, f"the map can't be taken: {fault}"
        if new.addresses != self.map.addresses:
            return (
                Reason.BAD_MESSAGE,
                f"the map's controllers are {', '.join(new.addresses)}, and those of [shards] "
                f"{', '.join(self.map.addresses)}",
            )
        if new.version <= self.map.version:
            return (
                Reason.BAD_MESSAGE,
                f"the map has version {new.version} and the one that is known {self.map.version}: make a "
                "newer one of that",
            )
        return None


class Moves:
    """Knows which workers have another controller."""

    def __init__(
        self,
        sessions: SessionTable,
        outbox: Outbox,
        memory: Memory,
        controllers: tuple[str, ...],
    ) -> None:
        """``controllers``: the addresses of all controllers of the cluster; none if there is one."""
        self._sessions = sessions
        self._outbox = outbox
        self._memory = memory
        self._controllers = controllers

    def refusal(self, asked: MoveWorker) -> str | None:
        """Return why a worker can't go where it is asked to, or None."""
        known = self._controllers
        if asked.controller in known:
            return None
        where = ", ".join(known) or "none: [shards] lists them"
        return f"{asked.controller!r} is not one of the controllers, which are {where}"

    def sent(self, worker: str, address: str) -> None:
        """Send a worker away, behind all that it was told before."""
        self._memory.moved(worker, address)
        session = self._sessions.workers.get(worker)
        if session is not None:
            self._outbox.send(session, Greet(address))

    def elsewhere(self, hello: WorkerHello) -> Greet | None:
        """Return where a worker belongs that says hello here, if that is another controller."""
        if hello.sent == MOVED:
            self._memory.moved(hello.worker, "")
        address = self._memory.places.get(hello.worker)
        return None if address is None else Greet(address, again=True)
