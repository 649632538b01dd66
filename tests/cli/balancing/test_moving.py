"""How models are moved between controllers, with controllers that only take notes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring.cli.balancing.choosing import ModelMove
from mainspring.cli.balancing.moving import Controller, move_models, newest_map, switch
from mainspring.messages.codes import Reason
from mainspring.messages.model import ModelSpec
from mainspring.messages.peers import AdminReply
from mainspring.messages.sharding import ShardMap, first_map
from mainspring.repository.controller_link import Refusal
from mainspring.transport.greeting import Pass
from tests.scheduler.hand import spec


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


class Full:
    """A controller with room for a number of models."""

    def __init__(self, room: int) -> None:
        self.models: list[str] = []
        self._room = room

    async def ask(self, *, add: ModelSpec | None = None, remove: str = "") -> AdminReply:
        """Add or remove a model."""
        if add is not None:
            if len(self.models) == self._room:
                raise Refusal(Reason.OVERLOADED, "no room for another model")
            self.models.append(add.name)
        else:
            self.models.remove(remove)
        return AdminReply(1)


def test_a_refusal_leaves_no_model_half_moved() -> None:
    async def moved(target: Full) -> list[str]:
        source: Any = Controller(0, "tcp://127.0.0.1:1", Pass("repository"))
        other: Any = Controller(1, "tcp://127.0.0.1:1", Pass("repository"))
        source.told.models = {name: spec(name) for name in ("a", "b", "c")}
        other.link = target
        moves = [ModelMove(name, 0, 1) for name in ("a", "removed", "b", "c")]
        return await move_models((source, other), moves, said.append)

    said: list[str] = []
    target = Full(room=2)
    with pytest.raises(Refusal, match="no room"):
        asyncio.run(moved(target))
    assert target.models == []
    assert said == ["removed was removed from shard 0 meanwhile"]
