"""The controllers of a cluster, each with its part of the repository's models: links to all of them.

A model's versions are together in one shard: the one that the map names for what clients call the model. What
one controller tells and is asked concerns its own models only (`Cluster` knows which those are).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from mainspring.messages.codes import Reason
from mainspring.messages.model import ModelSpec
from mainspring.messages.peers import AdminReply
from mainspring.messages.readiness import Awaited
from mainspring.messages.served import ServedModel
from mainspring.messages.sharding import ShardMap, first_map, hashed
from mainspring.messages.status import ClusterStatus
from mainspring.repository.cluster import Cluster
from mainspring.repository.controller_link import ControllerLink, Refusal, ToldMessage
from mainspring.transport.greeting import Pass


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
