"""How models are moved between controllers, with controllers that only take notes."""

from __future__ import annotations

import asyncio
from typing import Any

from mainspring.cli.balancing.moving import newest_map, switch
from mainspring.cli.balancing.session import Controller
from mainspring.messages.peers import AdminReply
from mainspring.messages.sharding import ShardMap, first_map
from mainspring.transport.greeting import Pass


class Link:
    """The first controller: it tells all gateways a new map before it answers."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def ask(self, *, shard_map: ShardMap) -> AdminReply:
        """Take a map."""
        self._controller.told.heard(shard_map)
        return AdminReply(1)


def test_a_map_that_came_with_the_answer_is_not_waited_for() -> None:
    async def switched() -> tuple[float, ShardMap]:
        first: Any = Controller(0, "tcp://127.0.0.1:1", Pass("repository"))
        first.told.heard(first_map(("tcp://a:1", "tcp://b:1")))
        first.link = Link(first)
        began_s = asyncio.get_running_loop().time()
        await switch(first, {"m": 1})
        return asyncio.get_running_loop().time() - began_s, newest_map(first)

    took_s, shard_map = asyncio.run(switched())
    assert shard_map.version == 2
    assert shard_map.place("m") == 1
    assert took_s < 0.9, "the map had come"
