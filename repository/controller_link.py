"""The connections to a cluster's controllers, to which this process is a gateway without clients.

It hears of models and versions as every gateway does, and asks for changes as gateways do for their clients.
All of it runs in one event loop's thread. A model's versions are together in one shard: the one that the map
names for what clients call the model. What one controller tells and is asked concerns its own models only
(`Cluster` knows which those are).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import secrets
from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import Protocol

import msgspec

from mainspring.messages import PROTOCOL_VERSION, peers
from mainspring.messages.codec import TO_GATEWAY, BadMessage, encode
from mainspring.messages.codes import Reason
from mainspring.messages.model import ModelSpec
from mainspring.messages.operating import SetGraph
from mainspring.messages.peers import AdminReply
from mainspring.messages.roles import Role
from mainspring.messages.served import Awaited, ServedModel
from mainspring.messages.sharding import ShardMap, first_map, hashed
from mainspring.messages.status import ClusterStatus
from mainspring.repository.builds import Cluster
from mainspring.transport.bounds import Delivery, Limits
from mainspring.transport.greeting import Pass
from mainspring.transport.handshake import Identity
from mainspring.transport.hub import Hub
from mainspring.transport.link import ControllerSession, Link

_LOGGER = logging.getLogger("mainspring.repository")
NAME = "model-repository"
HELLO_NS = 200_000_000
ANSWER_S = 10.0
"""Longest time that the controller may take to answer, in seconds."""
TICK_S = 0.1
ToldMessage = peers.ModelUp | peers.ModelDown | peers.Served | peers.Graph | ShardMap
"""Messages that a controller sends without being asked."""
LIMITS = Limits(part_bytes=256 << 20, backlog_bytes=256 << 20, backlog_messages=100_000)


class Heard(Protocol):
    """Takes note of what a controller tells."""

    @property
    def known(self) -> bool:
        """Return whether it has told all of it."""

    def heard(self, message: ToldMessage) -> None:
        """Take note of what it told."""

    def complete(self) -> None:
        """Take note that it has told all that it knew."""

    def welcomed(self) -> None:
        """Take note that it begins to tell all that it knows."""

    def lost(self) -> None:
        """Take note that it is gone."""


class Refusal(Exception):
    """The controller did not do what it was asked."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason.value}: {detail}")
        self.reason = reason
        self.detail = detail

    @property
    def passing(self) -> bool:
        """Return whether it may be done when it is asked again."""
        return self.reason in (Reason.CONTROLLER_UNREACHABLE, Reason.SHUTTING_DOWN, Reason.TIMED_OUT)


ITSELF = Pass(Role.REPOSITORY)
"""Credentials for processes of its own user on its host."""


class ControllerLink:
    """Keeps a session with the controller; `changed` is called after each message that changes anything."""

    def __init__(
        self,
        address: str,
        timeout_ms: float,
        cluster: Heard,
        changed: Callable[[], None],
        shows: Pass = ITSELF,
        name: str = NAME,
    ) -> None:
        """Begin to connect as ``name``; raise ValueError if the address can't be one."""
        self._name = name
        self._cluster = cluster
        self._changed = changed
        self._hub = Hub()
        identity = f"{name}:{os.getpid()}-{secrets.token_hex(4)}".encode()
        there = Identity(Role.CONTROLLER)
        self._link = Link(self._hub, address, LIMITS, name=identity, shows=shows, expects=there)
        self._tokens = itertools.count(1)
        self._asked: dict[int, asyncio.Future[peers.AdminReply]] = {}
        self.sessions = 0
        """Number of times that the controller has welcomed this process."""
        self.loading: set[str] = set()
        """Models that this session's controller was asked to load."""
        self._session = ControllerSession(
            monotonic_ns(), hello_ns=HELLO_NS, silence_ns=round(timeout_ms * 1e6)
        )

    async def run(self) -> None:
        """Keep the session until cancelled."""
        loop = asyncio.get_running_loop()
        descriptor = self._hub.epoll.fileno()
        loop.add_reader(descriptor, self._turn)
        try:
            while True:
                self._tick(monotonic_ns())
                self._turn()
                await asyncio.sleep(TICK_S)
        finally:
            loop.remove_reader(descriptor)
            self._send(peers.Goodbye(f"the {self._name} stops"))
            self._hub.close(100_000_000)

    def tell_awaited(self, message: Awaited) -> None:
        """Tell which models are to be served and are not."""
        self._send(message)

    async def ask(self, **command: object) -> peers.AdminReply:
        """Ask the controller for one thing of `AdminRequest`; raise `Refusal`."""
        token = next(self._tokens)
        future: asyncio.Future[peers.AdminReply] = asyncio.get_running_loop().create_future()
        self._asked[token] = future
        try:
            request = msgspec.structs.replace(peers.AdminRequest(token), **command)
            if not self._session.welcomed or not self._send(request):
                raise Refusal(Reason.CONTROLLER_UNREACHABLE, f"the {self._name} has no controller")
            reply = await asyncio.wait_for(future, ANSWER_S)
        except TimeoutError:
            raise Refusal(Reason.TIMED_OUT, "the controller did not answer in time") from None
        finally:
            del self._asked[token]
        if reply.reason is not None:
            raise Refusal(reply.reason, reply.detail)
        return reply

    async def load(self, model: str) -> None:
        """Have a worker load a model once it is idle; raise `Refusal`."""
        await self.ask(load=model)
        self.loading.add(model)

    def _send(self, message: msgspec.Struct) -> bool:
        return self._link.send((encode(message),)) is Delivery.SENT

    def _turn(self) -> None:
        """Take in what has come."""
        news = False
        while self._link in self._hub.wait(0):
            while (parts := self._link.receive()) is not None:
                try:
                    message = TO_GATEWAY.decode(parts[0])
                    known = self._cluster.known
                    self._take(message)
                    news = news or not isinstance(message, peers.Ping) or self._cluster.known != known
                except BadMessage as error:
                    _LOGGER.warning("the controller sent a message that is none: %s", error)
        if news:
            self._changed()

    def _take(self, message: object) -> None:
        now_ns = monotonic_ns()
        self._session.heard(now_ns)
        match message:
            case peers.Ping():
                self._send(peers.Pong(message.sequence, message.sent_ns, now_ns, monotonic_ns()))
                if self._session.welcomed and not self._cluster.known:
                    # The first one comes behind all that the controller knows.
                    self._cluster.complete()
            case peers.ModelUp() | peers.ModelDown() | peers.Served() | peers.Graph() | ShardMap():
                self._cluster.heard(message)
                if isinstance(message, peers.ModelDown):
                    self.loading.discard(message.name)
                    if message.drain:
                        self._send(peers.Drained(message.name))
            case peers.AdminReply():
                future = self._asked.get(message.token)
                if future is not None and not future.done():
                    future.set_result(message)
            case peers.Welcome():
                self._session.welcome(now_ns)
                self.sessions += 1
                self.loading.clear()
                self._cluster.welcomed()
            case peers.Refused():
                said = f"the controller refused the {self._name} ({message.code}): {message.detail}"
                refusal = self._session.refused(now_ns, message.code, said)
                if refusal.news:
                    _LOGGER.warning("%s", said)
                if refusal.lost:
                    self._lost(message.detail)
            case peers.Goodbye():
                if self._session.lose(now_ns):
                    self._lost("it stops")

    def _lost(self, why: str) -> None:
        """Answer what the controller was asked: whether it was done is not known."""
        _LOGGER.info("the controller is lost: %s", why)
        self._cluster.lost()
        refused = peers.AdminReply(
            0, Reason.CONTROLLER_UNREACHABLE, "the controller was lost before it answered"
        )
        for future in self._asked.values():
            if not future.done():
                future.set_result(refused)

    def _tick(self, now_ns: int) -> None:
        """Notice that the controller is silent; say hello while it does not know this process."""
        self._session.connected(now_ns, self._link.opened)
        if self._session.cut_off(now_ns, self._link.connected):
            self._lost("its connection has ended")
        if self._session.timed_out(now_ns):
            self._lost("it is silent")
        if self._link.connected and self._session.hello_due(now_ns):
            self._session.hello_sent(now_ns)
            self._send(peers.GatewayHello(PROTOCOL_VERSION, self._name))


class Part:
    """The knowledge that one controller tells (`controller_link.Heard`)."""

    def __init__(self, cluster: Cluster, shard: int) -> None:
        self._cluster = cluster
        self._shard = shard

    @property
    def known(self) -> bool:
        """Return whether it has told all of it."""
        return self._cluster.knows(self._shard)

    def heard(self, message: ToldMessage) -> None:
        """Take note of what it told."""
        self._cluster.heard(message, self._shard)

    def complete(self) -> None:
        """Take note that it has told all that it knew."""
        self._cluster.complete(self._shard)

    def welcomed(self) -> None:
        """Take note that it begins to tell all that it knows."""
        self._cluster.welcomed(self._shard)

    def lost(self) -> None:
        """Take note that it is gone."""
        self._cluster.lost(self._shard)


class Links:
    """A session with each controller, by shard."""

    def __init__(
        self,
        addresses: Sequence[str],
        pages: Sequence[int],
        timeout_ms: float,
        cluster: Cluster,
        changed: Callable[[], None],
        shows: Pass,
    ) -> None:
        """Begin to connect; raise ValueError if an address can't be one. ``pages``: the shards' weights."""
        self._cluster = cluster
        self._map: ShardMap = first_map(addresses, pages)
        self._links = [
            ControllerLink(address, timeout_ms, Part(cluster, shard), changed, shows)
            for shard, address in enumerate(addresses)
        ]
        self._told: dict[str, str] = {}
        self._told_in = 0
        """Reasons that `tell_awaited` has sent, and in which of the first controller's sessions."""

    async def run(self) -> None:
        """Keep the sessions until cancelled."""
        await asyncio.gather(*(each.run() for each in self._links))

    async def add(self, spec: ModelSpec) -> None:
        """Have a version added to the shard of its model; raise `Refusal`."""
        await self._links[self._shard_of(spec.public_name)].ask(add=spec)

    async def serve(self, model: ServedModel) -> None:
        """Have gateways take requests for a model to these versions; raise `Refusal`."""
        await self._links[self._shard_of(model.name)].ask(serve=model)

    async def set_graph(self, command: SetGraph) -> None:
        """Have gateways take requests for a graph, or no more; raise `Refusal`."""
        await self._links[0].ask(operate=command)

    async def remove(self, name: str) -> None:
        """Have a version removed once no gateway has a request for it in flight; raise `Refusal`."""
        await self._having(name).ask(remove=name, drain=True)

    async def load(self, name: str) -> None:
        """Have a worker load a version once it is idle; raise `Refusal`."""
        await self._having(name).load(name)

    def loads(self, name: str) -> bool:
        """Return whether this session's controller was asked to load a version."""
        return any(name in each.loading for each in self._links)

    def tell_awaited(self, models: dict[str, str]) -> None:
        """Tell which models are to be served and are not, each with why: of all shards, the first controller.

        What it knows already is not said again.
        """
        first = self._links[0]
        if not self._cluster.knows(0) or (self._told_in == first.sessions and models == self._told):
            return
        news = {name: reason for name, reason in models.items() if self._told.get(name) != reason}
        if self._told_in == first.sessions:
            news.update({name: "" for name in self._told if name not in models})
            first.tell_awaited(Awaited(news))
        else:
            first.tell_awaited(Awaited(dict(models), whole=True))
        self._told, self._told_in = dict(models), first.sessions

    async def statuses(self) -> dict[int, ClusterStatus]:
        """Return the status of each shard; raise `Refusal` if one can't be had."""
        replies: list[AdminReply] = await asyncio.gather(*(each.ask(status=True) for each in self._links))
        return {shard: each.status for shard, each in enumerate(replies) if each.status is not None}

    def _shard_of(self, public_name: str) -> int:
        """Return the shard of a model: not what the newest map says, for nothing moves its versions."""
        return hashed(public_name, self._map.shards)

    def _having(self, name: str) -> ControllerLink:
        shard = self._cluster.shard_of(name)
        if shard is None:
            raise Refusal(Reason.UNKNOWN_MODEL, f"no controller has {name!r} any more")
        return self._links[shard]
